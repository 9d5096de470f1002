"""Combine the results of a preparation in one record."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from schemas.config import SPLITS
from schemas.confinement import require_readable
from schemas.errors import IntegrityError, ResumeError, first_few
from schemas.parameters import shown
from schemas.records import (
    ArraysRef,
    CheckReport,
    Prepared,
    SourceRef,
    SplitTables,
    Statistics,
    ValidatedTable,
    digest_of,
)
from training.data.engine.in_memory import holding
from training.run.record import PREPARED, RESULT, has_part, read_part
from training.run.result_files import read_run

__all__ = [
    "FinishedRunDir",
    "bind",
    "holding",
    "read_prepared",
    "read_run",
    "require_same",
    "require_same_source",
]


def _finished(run_dir: str) -> str:
    require_readable(run_dir, "run_dir")
    if not (Path(run_dir) / RESULT).is_file():
        raise ResumeError(
            f"{run_dir!r}: expected the directory of a run whose training has ended, with its"
            f" {RESULT}"
        )
    return run_dir


FinishedRunDir = Annotated[
    str,
    shown(
        "Run directory",
        "Directory of a run whose training has ended, as the run's report names it.",
        min_length=1,
    ),
    AfterValidator(_finished),
]


def bind(
    source: SourceRef,
    validated: ValidatedTable,
    split: SplitTables,
    checks: tuple[CheckReport, ...],
    statistics: Statistics,
    arrays: ArraysRef,
    started: datetime,
) -> Prepared:
    """Return the record of a preparation; `cached` if its arrays existed before it started."""
    record = Path(arrays.directory) / "record.json"
    return Prepared(
        key=digest_of(
            [source.sha256, split.train.file.sha256, digest_of(statistics), arrays.sha256]
        ),
        directory=arrays.directory,
        source=source,
        validated=validated,
        split=split,
        checks=CheckReport(results=tuple(r for report in checks for r in report.results)),
        statistics=statistics,
        arrays=arrays,
        cached=record.is_file() and record.stat().st_mtime < started.timestamp(),
    )


def read_prepared(run_dir: Path) -> Prepared | None:
    """Return the record of a run's data at its start; None if it ended before preparation.

    Raises:
        IntegrityError: the record was changed after it was written.
    """
    return read_part(run_dir, PREPARED, Prepared) if has_part(run_dir, PREPARED) else None


def require_same_source(source: SourceRef, recorded: Prepared | None) -> None:
    """Refuse to continue a run whose source has changed since its start.

    Args:
        source: the current source.
        recorded: source at the start of the run; None for a new run.

    Raises:
        IntegrityError: the source changed; the message names the files.
    """
    if recorded is None or source.sha256 == recorded.source.sha256:
        return
    now, then = (
        {Path(f.path).name: f.sha256 for f in ref.files} for ref in (source, recorded.source)
    )
    changed = [
        f"{name} ({_difference(now.get(name), then.get(name))})"
        for name in sorted(now.keys() | then.keys())
        if now.get(name) != then.get(name)
    ]
    raise IntegrityError(
        f"the source has changed since the run was started: {first_few(changed)}; put the files"
        " back to go on with it, or start again with `bulkhead run FILE`"
    )


def _difference(now: str | None, then: str | None) -> str:
    if now is None or then is None:
        return "is new" if then is None else "is gone"
    return f"SHA-256 was {then[:12]}…, is {now[:12]}…"


def require_same(prepared: Prepared, recorded: Prepared) -> Prepared:
    """Return newly prepared data after checking that they equal those of the run's start.

    Raises:
        IntegrityError: they differ; the message names the first different step.
    """
    for (step, now), then in zip(
        _digests(prepared).items(), _digests(recorded).values(), strict=True
    ):
        if now != then:
            raise IntegrityError(
                f"prepared again from the same source, the SHA-256 of the {step} was {then[:12]}…,"
                f" is {now[:12]}…: the code or the ledger of sides has changed since the run was"
                " started; go back to that code to go on with it, or start again with `bulkhead run"
                " FILE`"
            )
    return prepared


def _digests(prepared: Prepared) -> dict[str, str]:
    """Return digests of each step of a preparation, in order."""
    sides = {f"{side} side": prepared.split.side(side).file.sha256 for side in SPLITS}
    fitted = {"statistics": digest_of(prepared.statistics), "arrays": prepared.arrays.sha256}
    return {"validated table": prepared.validated.table.file.sha256, **sides, **fitted}
