"""Request and report of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from schemas.config import SplitName
from schemas.errors import ConfigError
from schemas.records import CheckReport
from schemas.references import Record

AuditTask = Literal["binary", "multiclass", "regression", "causal_lm"]
AuditSplit = Literal["random", "stratified", "group", "stratified_group", "time", "group_time"]


class FilesToAudit(Record):
    """Two or three files from anywhere, and what is known about their columns.

    `label`, `task` and `split` are guessed where absent, and the guess is said; of `causal_lm`,
    which is never guessed, the label is the column of documents. `split`: how the rows were given
    to the files; by it the label checks divide train again. `available`: column of times → the
    features that were known by then (none named: all). `settings`: path=value of the sections
    checks, task and split.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    val: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    time: str | None = None
    label: str | None = None
    label_time: str | None = None
    available: dict[str, tuple[str, ...]] = {}
    ignore: tuple[str, ...] = ()
    task: AuditTask | None = None
    split: AuditSplit | None = None
    settings: tuple[str, ...] = ()

    @property
    def times(self) -> tuple[str, ...]:
        """Every column that contains times."""
        return tuple(n for n in (self.time, self.label_time, *self.available) if n)

    @property
    def uris(self) -> dict[SplitName, tuple[str, ...]]:
        """URIs of the files, by split."""
        given: dict[SplitName, tuple[str, ...]] = {
            "train": self.train,
            "val": self.val,
            "test": self.test,
        }
        return {side: uris for side, uris in given.items() if uris}


def read_request(values: Mapping[str, Any]) -> FilesToAudit:
    """Return the request that a command line makes.

    Raises:
        ConfigError: naming the option, what was expected and what was given.
    """
    try:
        return FilesToAudit.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"--{first['loc'][0]}: {first['msg'].removeprefix('Input ')}; got {first['input']!r}"
        ) from error


class ShownRows(Record):
    """Rows of several sides next to each other: a line for each column, a value for each row, and
    whether the values differ.
    """

    title: str
    headers: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...], bool], ...]


class AuditReport(Record):
    """The outcome of an audit.

    `sources`: side → files, or the declaration's source. `roles`: role → columns. `guesses`: what
    was assumed, with the reason. `shown`: position of a check → rows side by side. `undecided`:
    what these data cannot tell. `seconds`: of the checks alone.
    """

    name: str
    sources: dict[str, tuple[str, ...]]
    sha256: dict[str, str]
    roles: dict[str, tuple[str, ...]]
    task: str
    rows: dict[str, int]
    guesses: tuple[str, ...] = ()
    checks: CheckReport
    shown: dict[int, tuple[ShownRows, ...]] = {}
    undecided: tuple[str, ...] = ()
    seconds: float = 0.0
