"""Checks for rows and information that cross from validation or test to train.

One file per family; `find_*` returns evidence, `judge_*` the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.config import Declaration
from schemas.digest import verify
from schemas.records import CheckReport, CheckResult, SplitTables, ValidatedTable
from training.data.engine.engine import engine_for
from training.data.leakage.battery import statistical_results
from training.data.leakage.conflicts import label_conflict_results
from training.data.leakage.duplicates import duplicate_results, hash_features
from training.data.leakage.overlap import find_missing_rows, judge_rows, overlap_results
from training.data.leakage.sides import Sides, places_of, sides_of
from training.data.leakage.sizes import size_results
from training.data.leakage.stratification import stratification_results
from training.data.leakage.time_order import time_results
from training.data.leakage.verdict import judged, require_passed
from training.data.leakage.window_content import add_window_content
from training.data.leakage.window_faults import find_window_faults, judge_windows

__all__ = ["check_leakage", "check_overlap", "hard_results", "leak_results", "require_passed"]


def check_overlap(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> CheckReport:
    """Assert on the written files: rows, ids, groups and time windows."""
    for table in (split.train, split.val, split.test, validated.table):
        verify(table.file)
    with engine_for(declaration.data) as connection:
        sides = sides_of(connection, split, validated.spec, declaration, as_written=True)
        rows = judge_rows(*find_missing_rows(sides, split, validated), split)
        windows = window_results(split, validated, declaration)
        return CheckReport(results=(judged(rows, declaration), *hard_results(sides), *windows))


def check_leakage(
    split: SplitTables,
    validated: ValidatedTable,
    declaration: Declaration,
    is_fold: bool = False,
) -> CheckReport:
    """Check for leaks without a common key, and for splits too small to measure on.

    These are equal and similar rows, columns that predict the label, and, unless it is a fold of
    rows that were checked as a whole, rows that belong together.
    """
    with engine_for(declaration.data) as connection:
        sides = sides_of(connection, split, validated.spec, declaration)
        sides = sides._replace(places=places_of(validated))
        return CheckReport(results=tuple(leak_results(sides, split.plan.get("groups"), is_fold)))


def window_results(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> list[CheckResult]:
    """Return the result on the windows as written; empty without any."""
    found = judge_windows(find_window_faults(split, validated))
    return [judged(result, declaration) for result in found]


def hard_results(sides: Sides) -> list[CheckResult]:
    """Return the results that need no statistics.

    They concern ids, groups, their spellings, times, and shares of a stratified label.
    """
    found = [*overlap_results(sides), *time_results(sides), *stratification_results(sides)]
    return [judged(result, sides.declaration) for result in found]


def leak_results(
    sides: Sides, derived: Mapping[str, Any] | None = None, is_fold: bool = False
) -> list[CheckResult]:
    """Return the results that need the rows' content.

    Args:
        sides: the rows.
        derived: figures of the groups that `data.group_by` derived (`plan["groups"]` of the split).
        is_fold: leave out the check for rows that belong together.
    """
    if sides.spec.features:
        hash_features(sides)
        if sides.spec.windows:  # rows that are alike but for their windows are no copies
            add_window_content(sides)
    alike = [*duplicate_results(sides), *label_conflict_results(sides, derived)]
    found = [*size_results(sides), *alike, *statistical_results(sides, is_fold)]
    return [judged(result, sides.declaration) for result in found]
