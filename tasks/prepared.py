"""Bind what preparation made into one record."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from schemas.errors import ConfigError
from schemas.records import ArraysRef, CheckReport, Prepared, RunSpec, SourceRef, SplitTables, Statistics, TrainReport, ValidatedTable, digest_of


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


def read_run(run_dir: Path) -> tuple[RunSpec, TrainReport]:
    """What a finished training left in its directory.

    Raises:
        ConfigError: the folder is no run directory, or its training did not finish.
    """
    found = [run_dir / name for name in ("resolved.json", "result.json")]
    for path in found:
        if not path.is_file():
            raise ConfigError(f"{run_dir}: expected the directory of a finished training, but {path.name} is missing; runs stand in .bulkhead/runs/NAME/")
    return RunSpec.model_validate_json(found[0].read_bytes()), TrainReport.model_validate_json(found[1].read_bytes())
