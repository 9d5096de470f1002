"""Bind what preparation made into one record."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from schemas.config import SPLITS
from schemas.errors import IntegrityError, first_few
from schemas.records import ArraysRef, CheckReport, Prepared, SourceRef, SplitTables, Statistics, ValidatedTable, digest_of
from training.run_dir import read_run

__all__ = ["bind", "read_prepared", "read_run", "require_same", "require_same_source"]


def bind(
    source: SourceRef,
    validated: ValidatedTable,
    split: SplitTables,
    checks: tuple[CheckReport, ...],
    statistics: Statistics,
    arrays: ArraysRef,
    started: datetime,
) -> Prepared:
    """The record of a preparation; `cached` when its arrays were there before it started."""
    record = Path(arrays.directory) / "record.json"
    return Prepared(
        key=digest_of([source.sha256, split.train.file.sha256, digest_of(statistics), arrays.sha256]),
        directory=arrays.directory,
        source=source,
        validated=validated,
        split=split,
        checks=CheckReport(results=tuple(r for report in checks for r in report.results)),
        statistics=statistics,
        arrays=arrays,
        cached=record.is_file() and record.stat().st_mtime < started.timestamp(),
    )


def read_prepared(run_dir: Path) -> Prepared:
    """What the data of a run were when it was started."""
    return Prepared.model_validate_json((run_dir / "prepared.json").read_bytes())


def require_same_source(source: SourceRef, recorded: Prepared | None) -> None:
    """Refuse to go on with a run whose source has changed since it was started.

    Args:
        source: as it is now.
        recorded: what the run was started with; None for a new run.

    Raises:
        IntegrityError: naming the files.
    """
    if recorded is None or source.sha256 == recorded.source.sha256:
        return
    now, then = ({Path(f.path).name: f.sha256 for f in ref.files} for ref in (source, recorded.source))
    changed = [f"{name} ({_difference(now.get(name), then.get(name))})" for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]
    raise IntegrityError(
        f"the source has changed since the run was started: {first_few(changed)}; put the files back to go on with it, or start anew with `bulkhead run FILE`"
    )


def _difference(now: str | None, then: str | None) -> str:
    if now is None or then is None:
        return "is new" if then is None else "is gone"
    return f"SHA-256 was {then[:12]}…, is {now[:12]}…"


def require_same(prepared: Prepared, recorded: Prepared) -> Prepared:
    """The data prepared again, after they were found to be those that the run was started with.

    Raises:
        IntegrityError: naming the first step whose outcome differs.
    """
    for (step, now), then in zip(_digests(prepared).items(), _digests(recorded).values(), strict=True):
        if now != then:
            raise IntegrityError(
                f"prepared again from the same source, the SHA-256 of the {step} was {then[:12]}…, is {now[:12]}…: the code or the ledger of sides has changed "
                "since the run was started; go back to that code to go on with it, or start anew with `bulkhead run FILE`"
            )
    return prepared


def _digests(prepared: Prepared) -> dict[str, str]:
    """What each step of a preparation made, in their order."""
    sides = {f"{side} side": prepared.split.side(side).file.sha256 for side in SPLITS}
    fitted = {"statistics": digest_of(prepared.statistics), "arrays": prepared.arrays.sha256}
    return {"validated table": prepared.validated.table.file.sha256, **sides, **fitted}
