"""The exception tree. Every error that a user can cause derives from `BulkheadError`.

    BulkheadError
    ├── ConfigError(ValueError)         the declaration is wrong or impossible
    ├── DataError(ValueError)           the data are not what the declaration says
    │   ├── SourceError                 a source cannot be found, opened or read
    │   ├── SchemaError                 columns, types, nulls, ranges, values, uniqueness
    │   ├── SplitError                  a split that cannot be made or is empty
    │   └── LeakageError                something crosses from val or test to train
    ├── IntegrityError(ValueError)      a digest disagrees with what was recorded
    │   └── CheckpointError             no checkpoint that verifies
    ├── PreflightError(ValueError)      model, loss or data cannot train
    ├── TrainingError(RuntimeError)     the training program failed
    │   ├── NonFiniteError              loss or gradient is not finite
    │   ├── OutOfMemoryError            device or host memory ran out
    │   ├── LeaseError                  another process writes to the run directory
    │   └── LaunchError                 torchrun could not start or ended without a result
    ├── ResumeError(RuntimeError)       a run cannot go on: unknown, still going, no checkpoint
    ├── TrackingError(RuntimeError)     the tracking server is gone or did not take all of a run
    └── RegistryError(RuntimeError)     the registry refuses or holds something unexpected

Messages contain: what was expected; what was found; where; how many, with the first keys; what to
do.
"""

from __future__ import annotations

from collections.abc import Iterable


class BulkheadError(Exception):
    """Base of every error with a stated reason; the command line prints it without a traceback."""


class ConfigError(BulkheadError, ValueError):
    """The declaration holds an unknown key, a bad value or an impossible combination."""


class DataError(BulkheadError, ValueError):
    """The data are not what the declaration says."""


class SourceError(DataError):
    """A source cannot be found, opened or read to its end."""


class SchemaError(DataError):
    """Rows break the declared types, nulls, ranges, allowed values or uniqueness."""


class SplitError(DataError):
    """The declared split cannot be made from these rows, or leaves a split empty."""


class LeakageError(DataError):
    """Something crosses from validation or test to train."""


class IntegrityError(BulkheadError, ValueError):
    """A file's digest disagrees with what was recorded when it was written."""


class CheckpointError(IntegrityError):
    """No checkpoint verifies, or one belongs to another run."""


class PreflightError(BulkheadError, ValueError):
    """Model, loss or data would train wrongly; found before any long run."""


class TrainingError(BulkheadError, RuntimeError):
    """The training program failed; the message holds the failing rank's cause."""


class NonFiniteError(TrainingError):
    """Loss or gradient is not finite; raised on every rank before the update."""


class OutOfMemoryError(TrainingError):
    """Device or host memory ran out in a step; what was reached before it is saved."""


class LeaseError(TrainingError):
    """Another process writes to the run directory, or has taken it over."""


class LaunchError(TrainingError):
    """`torchrun` could not start, or ended without leaving a result."""


class ResumeError(BulkheadError, RuntimeError):
    """A run cannot be continued: it is unknown, still running, or has no checkpoint."""


class TrackingError(BulkheadError, RuntimeError):
    """The tracking server cannot be reached at the start, or lacks part of a run at its end."""


class RegistryError(BulkheadError, RuntimeError):
    """The model registry refuses, or holds something unexpected."""


def first_few(values: Iterable[object], total: int | None = None, limit: int = 5) -> str:
    """Render up to `limit` values for a message, with an ellipsis when there are more.

    >>> first_few([17, 40, 52], total=9, limit=2)
    '17, 40, …'
    """
    shown = list(values)
    more = (len(shown) if total is None else total) > min(len(shown), limit)
    return ", ".join(str(v) for v in shown[:limit]) + (", …" if more else "")


def counted(number: int, noun: str, one: str = "", many: str = "") -> str:
    """Return a count with its noun, in the plural unless it is one, and with the fitting verb.

    >>> counted(1, "feature"), counted(1200, "row"), counted(1, "row", "is", "are")
    ('1 feature', '1,200 rows', '1 row is')
    """
    verb = one if number == 1 else many
    several = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{several}{verb and ' '}{verb}"


def shortened(value: object, limit: int = 200, plain: bool = False) -> str:
    """Render a value for a message, cut to `limit` characters so that people can read it.

    Args:
        value: what was found.
        limit: most characters to show.
        plain: show text as it is, not its `repr`.

    >>> shortened("a" * 9, limit=4), shortened("no such file", plain=True)
    ("'aaa… (9 characters)", 'no such file')
    """
    try:
        text = (
            str(value) if plain else repr(value[: limit + 1] if isinstance(value, str) else value)
        )
    except (
        ValueError,
        RecursionError,
    ) as error:  # an integer of thousands of digits cannot be printed
        return f"a value that cannot be shown ({error})"
    if isinstance(value, str) and len(value) > limit:
        return f"{text[:limit]}… ({len(value):,} characters)"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
