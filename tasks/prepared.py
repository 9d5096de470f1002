"""Bind what preparation made into one record."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from schemas.records import ArraysRef, CheckReport, Prepared, SourceRef, SplitTables, Statistics, ValidatedTable, digest_of
from training.run_dir import read_run

__all__ = ["bind", "read_run"]


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
