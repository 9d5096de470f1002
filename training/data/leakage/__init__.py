"""What crosses from validation or test to train: one file per family; `find_*` returns evidence, `judge_*` the verdict."""

from __future__ import annotations

from contextlib import closing

from schemas.config import Declaration
from schemas.digest import verify
from schemas.records import CheckReport, SplitTables, ValidatedTable
from training.data.engine import connect
from training.data.leakage.battery import statistical_results
from training.data.leakage.duplicates import duplicate_results
from training.data.leakage.overlap import overlap_results
from training.data.leakage.sides import sides_of
from training.data.leakage.sizes import size_results
from training.data.leakage.verdict import require_passed

__all__ = ["check_leakage", "check_overlap", "require_passed"]


def check_overlap(split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> CheckReport:
    """Hard assertions on the files as they were written: rows, ids, groups and time windows."""
    for table in (split.train, split.val, split.test, validated.table):
        verify(table.file)
    with closing(connect()) as connection:
        return CheckReport(results=tuple(overlap_results(connection, split, validated, declaration)))


def check_leakage(split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> CheckReport:
    """What gives the test score away without any key in common: equal and similar rows, columns that tell the label; and sides too small to say anything."""
    with closing(connect()) as connection:
        results = [*size_results(split, declaration), *duplicate_results(connection, split, validated, declaration)]
        results += statistical_results(sides_of(connection, split, validated.spec, declaration))
    return CheckReport(results=tuple(results))
