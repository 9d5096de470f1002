"""Promises of a fold besides the hard assertions, checked in the written files.

They concern intervals in time, and all folds together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import duckdb

from schemas.config import Declaration
from schemas.cv_config import BY_TIME
from schemas.errors import counted, first_few
from schemas.records import CheckReport, CheckResult, SplitTables, TableSpec
from training.data.engine.engine import count_distinct, engine_for, literal, parquet, row, rows
from training.data.split.folds import embargo_of, label_end_sql
from training.data.table.time_units import in_time_units, length

EVIDENCE_ROWS = 10
ONCE = ("kfold", "stratified", "group", "stratified_group", "purged")


class Intervals(NamedTuple):
    """Rows of a fold's train and validation that are too near its test block."""

    shared_times: int
    overlapping: int
    embargoed: int
    examples: list[str]


def check_intervals(fold: SplitTables, spec: TableSpec, declaration: Declaration) -> CheckReport:
    """Check folds in time.

    No label interval of train overlaps the test block, no row lies in the embargo, and no timestamp
    is in both.
    """
    if declaration.fold_kind not in BY_TIME:
        return CheckReport(results=())
    with engine_for(declaration.data) as connection:
        return CheckReport(
            results=(
                judge_intervals(
                    find_intervals(connection, fold, spec, declaration), declaration, spec
                ),
            )
        )


def find_intervals(
    connection: duckdb.DuckDBPyConnection,
    fold: SplitTables,
    spec: TableSpec,
    declaration: Declaration,
) -> Intervals:
    """Count such rows from the files alone.

    The test block reaches from its first time to the last time at which one of its labels is known.
    """
    gap, known = (
        in_time_units(embargo_of(declaration), spec, "cv.embargo"),
        label_end_sql(spec, declaration),
    )
    first, last = row(connection, f"select min(__time), max({known}) from {parquet(fold.test)}")
    begin, end = literal(float(first)), literal(float(last))
    near = {
        "shared_times": f"__time in (select __time from {parquet(fold.test)})",
        "overlapping": f"__time <= {end} and {known} >= {begin}",
        "embargoed": (
            f"__time > {end} and __time <= {end} + {literal(gap)}"
            if declaration.fold_kind == "purged"
            else f"__time >= {begin} or __time + {literal(gap)} > {begin}"
        ),
    }
    learnt = f"(select * from {parquet(fold.train)} union all select * from {parquet(fold.val)})"
    counts = row(
        connection,
        f"select {', '.join(f'count(*) filter (where {c})' for c in near.values())} from {learnt}",
    )
    found = rows(
        connection,
        f"select __id from {learnt} where {' or '.join(f'({c})' for c in near.values())} order by"
        f" md5(__id) limit {EVIDENCE_ROWS}",
    )
    shared, overlapping, embargoed = map(int, counts)
    return Intervals(shared, overlapping, embargoed, [str(r[0]) for r in found])


def judge_intervals(found: Intervals, declaration: Declaration, spec: TableSpec) -> CheckResult:
    """Fail on any such row."""
    gap = in_time_units(embargo_of(declaration), spec, "cv.embargo")
    shared = counted(found.shared_times, "row", "has", "have")
    embargoed = counted(found.embargoed, "row", "is", "are")
    words = {
        f"{shared} a timestamp of the test block": found.shared_times,
        f"labels of {counted(found.overlapping, 'row')} overlap the test block": found.overlapping,
        f"{embargoed} within the embargo of {length(gap, spec)}": found.embargoed,
    }
    wrong = [text for text, number in words.items() if number]
    return CheckResult(
        name="fold_intervals",
        verdict="fail" if wrong else "pass",
        summary=(
            f"of train and validation {'; '.join(wrong)} (first: {first_few(found.examples)})"
            if wrong
            else (
                "no label of train or validation overlaps the test block or its embargo, and no"
                " timestamp is in both"
            )
        ),
        figures={
            "shared_times": found.shared_times,
            "overlapping": found.overlapping,
            "embargoed": found.embargoed,
            "embargo": gap,
        },
        evidence=tuple({"id": i} for i in found.examples),
        remedy="delete the prepared files and run again" if wrong else "",
    )


def check_folds(folds: Sequence[SplitTables], declaration: Declaration) -> CheckReport:
    """Check that no row is tested twice, or each once if declared (except bridging rows)."""
    with engine_for(declaration.data) as connection:
        tested = " union all ".join(f"select __id from {parquet(fold.test)}" for fold in folds)
        twice = rows(
            connection,
            f"select __id from ({tested}) group by __id having count(*) > 1 order by md5(__id)"
            f" limit {EVIDENCE_ROWS}",
        )
        everything = " union all ".join(
            f"select __id from {parquet(table)}"
            for fold in folds
            for table in (fold.train, fold.val, fold.test)
        )
        at_all = count_distinct(connection, "__id", f"({everything})")
        never = at_all - count_distinct(connection, "__id", f"({tested})")
    once = declaration.fold_kind in ONCE
    missing = (
        never - max((fold.excluded.get("bridge", 0) for fold in folds), default=0) if once else 0
    )
    wrong = (
        [
            f"{len(twice)} or more rows are tested in two folds (first:"
            f" {first_few([r[0] for r in twice])})"
        ]
        if twice
        else []
    )
    wrong += [f"{missing} of {at_all} rows are tested in no fold"] if missing > 0 else []
    untested = (
        ""
        if once
        else (
            f"; {never} of {at_all} rows are tested in none, as folds of kind"
            f" {declaration.fold_kind} have it"
        )
    )
    result = CheckResult(
        name="fold_coverage",
        verdict="fail" if wrong else "pass",
        summary="; ".join(wrong)
        or (
            "every row is tested in exactly one fold"
            if once
            else f"no row is tested in two folds{untested}"
        ),
        figures={"rows": at_all, "tested_in_none": never, "tested_twice": len(twice)},
        evidence=tuple({"id": str(r[0])} for r in twice),
        remedy="delete the prepared files and run again" if wrong else "",
    )
    return CheckReport(results=(result,))
