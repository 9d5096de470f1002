"""Hard assertions on the written files: every row on one side, no id, group or time window on two. O(rows), no statistics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import duckdb

from schemas.config import SPLITS, Declaration, GroupTimeSplit, PredefinedSplit, TimeSplit
from schemas.errors import first_few
from schemas.records import CheckResult, SplitTables, ValidatedTable
from training.data.engine import ident, parquet, row, rows
from training.data.leakage.verdict import judged

EVIDENCE_ROWS = 10


class Straddle(NamedTuple):
    """Keys that stand on more than one side."""

    keys: int
    rows: int
    examples: list[tuple[str, str]]  # key, sides


def sides_sql(split: SplitTables, columns: tuple[str, ...]) -> str:
    """The three written files as one relation with the column `side` in front; file names decide, not the plan."""
    listed = ", ".join(ident(c) for c in columns)
    return "(" + " union all ".join(f"select '{s}' as side, {listed} from {parquet(split.side(s))}" for s in SPLITS) + ")"


def find_straddling(connection: duckdb.DuckDBPyConnection, split: SplitTables, column: str) -> Straddle:
    """Values of a column, nulls left out, that stand on more than one side."""
    per_key = f"""
        select {ident(column)} as key, min(side) as low, max(side) as high, string_agg(distinct side, ' and ' order by side desc) as sides, count(*) as n
        from {sides_sql(split, (column,))} where {ident(column)} is not null group by {ident(column)} having min(side) <> max(side)"""
    count, num_rows = row(connection, f"select count(*), coalesce(sum(n), 0) from ({per_key})")
    examples = rows(connection, f"select key, sides from ({per_key}) order by md5(key), key limit {EVIDENCE_ROWS}") if count else []
    return Straddle(int(count), int(num_rows), [(str(k), str(s)) for k, s in examples])


def judge_ids(found: Straddle, repeated: int, validated: ValidatedTable) -> CheckResult:
    """Fail when an id stands on two sides, or twice on one."""
    name = " + ".join(validated.spec.id) or "row content"
    wrong = found.keys + repeated
    first = first_few([k for k, _ in found.examples], found.keys)
    text = f"{found.keys} ids ({name}) are on more than one side (first: {first})" if found.keys else f"{repeated} ids ({name}) stand twice on one side"
    return CheckResult(
        name="id_overlap",
        verdict="fail" if wrong else "pass",
        summary=text if wrong else f"no id ({name}) is on two sides",
        figures={"ids_on_two_sides": found.keys, "rows": found.rows, "repeated_ids": repeated},
        evidence=tuple({"id": k, "sides": s} for k, s in found.examples),
        columns=validated.spec.id,
        remedy="make the id column unique, or correct the split column" if wrong else "",
    )


def judge_groups(found: Straddle, validated: ValidatedTable, declaration: Declaration) -> CheckResult:
    """Fail when a declared group stands on two sides, whatever the strategy."""
    name = " + ".join((*validated.spec.group, *validated.spec.group_by))
    sides = found.examples[0][1] if found.examples else ""
    first = first_few([k for k, _ in found.examples], found.keys)
    remedy = (
        "correct the split column"
        if declaration.split.kind == "predefined"
        else f"set split.kind: group with {name}: group, or allow group_overlap with a reason"
    )
    return CheckResult(
        name="group_overlap",
        verdict="fail" if found.keys else "pass",
        summary=f"{found.keys} {name} values are in both {sides} (first: {first}), {found.rows} rows" if found.keys else f"no {name} is on two sides",
        figures={"groups_on_two_sides": found.keys, "rows": found.rows},
        evidence=tuple({"group": k, "sides": s} for k, s in found.examples),
        columns=validated.spec.group,
        remedy=remedy if found.keys else "",
    )


def find_time_ranges(connection: duckdb.DuckDBPyConnection, split: SplitTables) -> dict[str, tuple[float, float]]:
    """First and last `__time` of each side that has one."""
    found = rows(connection, f"select side, min(__time), max(__time) from {sides_sql(split, ('__time',))} where __time is not null group by side")
    return {str(side): (float(low), float(high)) for side, low, high in found}


def judge_times(ranges: dict[str, tuple[float, float]], pairs: tuple[tuple[str, str], ...], embargo: float, validated: ValidatedTable) -> CheckResult:
    """Fail unless the first side of each pair ends, with the embargo added, no later than the second begins; a timestamp is on one side."""
    shown = {side: (moment(low, validated), moment(high, validated)) for side, (low, high) in ranges.items()}
    wrong = []
    for earlier, later in pairs:
        end, begin = ranges[earlier][1], ranges[later][0]
        if end + embargo > begin or end >= begin:
            gap = f" less than the embargo of {embargo:g} s before" if end < begin else " not before"
            wrong.append(f"{earlier} ends at {shown[earlier][1]},{gap} {later} begins at {shown[later][0]}")
    return CheckResult(
        name="time_overlap",
        verdict="fail" if wrong else "pass",
        summary=f"{validated.spec.time}: " + "; ".join(wrong)
        if wrong
        else ", ".join(f"{a} ends before {b} begins" for a, b in pairs) + (f", with {embargo:g} between them" if embargo else ""),
        figures={"embargo": embargo, "violations": len(wrong)},
        evidence=tuple({"side": s, "first": low, "last": high} for s, (low, high) in shown.items()),
        columns=(validated.spec.time,) if validated.spec.time else (),
        remedy="correct the split column, or use split.kind: time" if wrong else "",
    )


def ordered_pairs(declaration: Declaration) -> tuple[tuple[str, str], ...]:
    """Which side must end before which begins; validation carved out of a predefined train shares its time."""
    carved = isinstance(declaration.split, PredefinedSplit) and declaration.split.carve_val > 0
    return (("train", "test"), ("val", "test")) if carved else (("train", "val"), ("val", "test"), ("train", "test"))


def moment(value: float, validated: ValidatedTable) -> str:
    """A time as a person reads it: ISO for timestamps, else the number."""
    return datetime.fromtimestamp(value, UTC).isoformat() if validated.spec.time_is_timestamp else f"{value:g}"


def find_missing_rows(connection: duckdb.DuckDBPyConnection, split: SplitTables, validated: ValidatedTable) -> tuple[int, int, list[str]]:
    """How many validated rows are on no side and not excluded, how many side rows are not in the table, and some of their ids."""
    everything, written = f"(select __id from {parquet(validated.table)})", f"(select __id from {sides_sql(split, ('__id',))})"
    strangers = rows(connection, f"select __id from {written} as w anti join {everything} as e using (__id) limit {EVIDENCE_ROWS}")
    num_strangers = row(connection, f"select count(*) from {written} as w anti join {everything} as e using (__id)")[0] if strangers else 0
    kept = sum(split.side(s).rows for s in SPLITS)
    return validated.table.rows - kept - sum(split.excluded.values()), int(num_strangers), [str(r[0]) for r in strangers]


def judge_rows(missing: int, strangers: int, examples: list[str], split: SplitTables) -> CheckResult:
    """Fail unless sides and stated exclusions add up to the validated table, row for row."""
    wrong = missing != 0 or strangers != 0
    excluded = ", ".join(f"{n} {reason}" for reason, n in split.excluded.items() if n) or "none excluded"
    text = f"{abs(missing)} rows are {'on no side' if missing > 0 else 'on sides too often'}; {strangers} rows are not in the validated table ({first_few(examples, strangers)})"
    return CheckResult(
        name="row_coverage",
        verdict="fail" if wrong else "pass",
        summary=text if wrong else f"every row is on exactly one side or excluded for a stated reason ({excluded})",
        figures={"missing": missing, "strangers": strangers, **{f"excluded_{k}": v for k, v in split.excluded.items()}},
        remedy="delete the prepared files and run again" if wrong else "",
    )


def repeated_ids(connection: duckdb.DuckDBPyConnection, split: SplitTables) -> int:
    """Ids that stand more than once within a side."""
    return int(row(connection, f"select count(*) from (select 1 from {sides_sql(split, ('__id',))} group by side, __id having count(*) > 1)")[0])


def overlap_results(connection: duckdb.DuckDBPyConnection, split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> list[CheckResult]:
    """All hard assertions that the declared roles call for."""
    spec = validated.spec
    results = [judge_rows(*find_missing_rows(connection, split, validated), split)]
    results.append(judge_ids(find_straddling(connection, split, "__id"), repeated_ids(connection, split), validated))
    if spec.grouped:
        results.append(judge_groups(find_straddling(connection, split, "__group"), validated, declaration))
    if spec.time is not None and _ordered_in_time(declaration, validated):
        embargo = declaration.split.embargo if isinstance(declaration.split, TimeSplit | GroupTimeSplit) else 0.0
        results.append(judge_times(find_time_ranges(connection, split), ordered_pairs(declaration), embargo, validated))
    return [judged(r, declaration) for r in results]


def _ordered_in_time(declaration: Declaration, validated: ValidatedTable) -> bool:
    """Whether the sides promise an order in time: time strategies do; so does a predefined split of timestamps.

    A numeric time (a cycle or a day since admission) counts per entity, and says nothing across entities.
    """
    return declaration.split.kind in ("time", "group_time") or (declaration.split.kind == "predefined" and validated.spec.time_is_timestamp)
