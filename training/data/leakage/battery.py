"""Checks that need statistics, all on one sample of the splits."""

from __future__ import annotations

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.dependence import dependence_results, with_group_remedy
from training.data.leakage.equal_columns import find_equal_columns, judge_equal_columns
from training.data.leakage.label_combinations import find_combinations, judge_combinations
from training.data.leakage.label_proxies import find_proxies, judge_proxies
from training.data.leakage.label_traces import (
    find_equal_values,
    find_missingness,
    find_pure_values,
    judge_equal_values,
    judge_missingness,
    judge_pure_values,
)
from training.data.leakage.lone_columns import OwnPast
from training.data.leakage.look_ahead import look_ahead_results
from training.data.leakage.near_duplicates import near_duplicate_results
from training.data.leakage.order import find_order, judge_order
from training.data.leakage.picture_copies import find_picture_copies
from training.data.leakage.pooled_scaling import pooled_results
from training.data.leakage.respelt_rows import with_respelt
from training.data.leakage.sampled import Sampled, sampled
from training.data.leakage.scores import Halves, halves
from training.data.leakage.shared_times import shared_time_results
from training.data.leakage.shift import find_shift, judge_shift
from training.data.leakage.sides import Sides
from training.data.leakage.target_codes import find_target_codes, judge_target_codes
from training.data.leakage.text_copies import find_text_copies, judge_text_copies

TIMED = ("time", "group_time")


def label_results(rows: Sampled, parts: Halves, sides: Sides) -> list[CheckResult]:
    """Check how well columns, their nulls, values and sums predict the label."""
    checks = sides.declaration.checks
    return [
        *judge_proxies(find_proxies(rows, parts), rows, parts, checks, OwnPast(sides)),
        *_combinations(rows, parts, checks),
        *judge_missingness(find_missingness(rows, parts), rows, checks),
        *judge_pure_values(find_pure_values(rows, checks.pure_value_chance), rows, checks),
        *judge_equal_values(find_equal_values(rows), rows, checks),
        *judge_order(find_order(rows, sides), rows, checks),
        *judge_target_codes(find_target_codes(sides, rows), checks),
    ]


def _combinations(rows: Sampled, parts: Halves, checks: ChecksConfig) -> list[CheckResult]:
    """Return columns that make up the label by sums, by products or by being equal."""
    equal = judge_equal_columns(find_equal_columns(rows, checks), rows)
    others = judge_combinations(find_combinations(rows, parts, checks), rows, checks)
    return [*equal, *(r for r in others if r.verdict != "pass" or not equal)]


def statistical_results(sides: Sides, is_fold: bool = False) -> list[CheckResult]:
    """Run all statistical checks; of a fold, leave out that for rows that belong together.

    The same data give the same figures, regardless of row order and number of threads.
    """
    rows = sampled(sides)
    parts = halves(rows, sides.declaration.split.kind, sides.declaration.split.kind in TIMED)
    results = [
        *(label_results(rows, parts, sides) if rows.labels else []),
        *with_respelt(
            near_duplicate_results(rows, sides.declaration.checks), rows, sides.declaration.checks
        ),
    ]
    copies = [*find_text_copies(sides, rows), *find_picture_copies(sides)]
    results += judge_text_copies(copies, sides.declaration.checks)
    results += [
        *shared_time_results(sides),
        *look_ahead_results(sides),
        *pooled_results(sides, rows),
        judge_shift(find_shift(rows, parts)),
    ]
    return results if is_fold else with_group_remedy([*results, *dependence_results(sides)])
