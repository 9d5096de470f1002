"""Hard assertions on rows and keys: every row in one split, no id or group in two.

O(rows), no statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from schemas.config import Declaration
from schemas.errors import counted, first_few
from schemas.records import CheckResult, SplitTables, TableSpec, ValidatedTable
from training.data.engine.distinct import num_distinct
from training.data.engine.engine import parquet, row, rows
from training.data.leakage.aliases import Aliases, find_aliases, judge_aliases
from training.data.leakage.keys import Characters, Keys, many_rows_each, read_keys
from training.data.leakage.sides import Sides
from training.data.leakage.straddle import (
    EVIDENCE_ROWS,
    Straddle,
    find_straddling,
    parts_of,
    repeated_keys,
)


def judge_ids(found: Straddle, repeated: int, spec: TableSpec) -> CheckResult:
    """Fail if an id is in two splits, or twice in one."""
    name = " + ".join(spec.id) or "row content"
    wrong = found.keys + repeated
    first = first_few([k for k, _ in found.examples], found.keys)
    are, stand = "is" if found.keys == 1 else "are", "stands" if repeated == 1 else "stand"
    text = (
        f"{counted(found.keys, 'id')} ({name}) {are} on more than one side (first: {first})"
        if found.keys
        else f"{counted(repeated, 'id')} ({name}) {stand} twice on one side"
    )
    return CheckResult(
        name="id_overlap",
        verdict="fail" if wrong else "pass",
        summary=text if wrong else f"no id ({name}) is on two sides",
        figures={"ids_on_two_sides": found.keys, "rows": found.rows, "repeated_ids": repeated},
        evidence=tuple({"id": k, "sides": s} for k, s in found.examples),
        columns=spec.id,
        remedy="make the id column unique, or correct the split column" if wrong else "",
    )


def judge_groups(found: Straddle, spec: TableSpec, declaration: Declaration) -> CheckResult:
    """Fail if a declared group is in two splits, with any strategy."""
    name = " + ".join((*spec.group, *spec.group_by))
    sides = found.examples[0][1] if found.examples else ""
    first = first_few([k for k, _ in found.examples], found.keys)
    remedy = (
        "correct the split column"
        if declaration.split.kind == "predefined"
        else (
            "set split.kind: group, or allow group_overlap with a reason"
            if spec.group_by
            else f"set split.kind: group with {name}: group, or allow group_overlap with a reason"
        )
    )
    return CheckResult(
        name="group_overlap",
        verdict="fail" if found.keys else "pass",
        summary=(
            f"{counted(found.keys, f'{name} value', 'is', 'are')} in both {sides} (first: {first}),"
            f" {counted(found.rows, 'row')}"
            if found.keys
            else f"no {name} is on two sides"
        ),
        figures={"groups_on_two_sides": found.keys, "rows": found.rows},
        evidence=tuple({"group": k, "sides": s} for k, s in found.examples),
        columns=spec.group,
        remedy=remedy if found.keys else "",
    )


def find_missing_rows(
    sides: Sides, split: SplitTables, validated: ValidatedTable
) -> tuple[int, int, list[str]]:
    """Count the validated rows in no split and not excluded, and split rows not in the table.

    Also return some of their ids.
    """
    everything, written = (
        f"(select __id from {parquet(validated.table)})",
        f"(select __id from {sides.together(('__id',))})",
    )
    missing = validated.table.rows - sum(sides.num_rows.values()) - sum(split.excluded.values())
    if not any(split.excluded.values()) and _fingerprint(sides, everything) == _fingerprint(
        sides, written
    ):
        return missing, 0, []
    strangers = f"from {written} as w anti join {everything} as e using (__id)"
    count = int(row(sides.connection, f"select count(*) {strangers}")[0])
    examples = (
        rows(sides.connection, f"select __id {strangers} limit {EVIDENCE_ROWS}") if count else []
    )
    return missing, count, [str(r[0]) for r in examples]


def _fingerprint(sides: Sides, relation: str) -> tuple[Any, ...]:
    """Return a fingerprint that is equal for equal multisets of ids.

    For others it is equal as rarely as 128 bits collide. It takes one scan, while a join would hold
    all ids.
    """
    return row(
        sides.connection,
        f"select count(*), bit_xor(hash(__id)), sum(cast(hash(__id) as hugeint)) from {relation}",
    )


def judge_rows(
    missing: int, strangers: int, examples: list[str], split: SplitTables
) -> CheckResult:
    """Fail unless splits and stated exclusions add up to the validated table, row for row."""
    wrong = missing != 0 or strangers != 0
    excluded = (
        ", ".join(f"{n} {reason}" for reason, n in split.excluded.items() if n) or "none excluded"
    )
    text = (
        f"{counted(abs(missing), 'row', 'is', 'are')}"
        f" {'on no side' if missing > 0 else 'on sides too often'};"
        f" {counted(strangers, 'row', 'is', 'are')} not in the validated table"
        f" ({first_few(examples, strangers)})"
    )
    return CheckResult(
        name="row_coverage",
        verdict="fail" if wrong else "pass",
        summary=(
            text
            if wrong
            else f"every row is on exactly one side or excluded for a stated reason ({excluded})"
        ),
        figures={
            "missing": missing,
            "strangers": strangers,
            **{f"excluded_{k}": v for k, v in split.excluded.items()},
        },
        remedy="delete the prepared files and run again" if wrong else "",
    )


def overlap_results(sides: Sides) -> list[CheckResult]:
    """Check that no id and no declared group is in two splits, in any spelling."""
    spec = sides.spec
    ids, alias = _crossing(sides, "__id", unique=True)
    results = [judge_ids(ids, repeated_keys(sides, "__id", ids.repeated), spec)]
    results += [judge_aliases(alias, "id", spec.id)] if spec.id else []
    if spec.group_by:  # the name of a derived group is a hash, which has one spelling
        results.append(judge_groups(_crossing(sides, "__group")[0], spec, sides.declaration))
    elif spec.group:
        groups, alias = _crossing(sides, "__group")
        results += [
            judge_groups(groups, spec, sides.declaration),
            judge_aliases(alias, "group", spec.group),
        ]
    return results


def _crossing(sides: Sides, column: str, unique: bool = False) -> tuple[Straddle, Aliases | None]:
    """Find keys in two splits, as they are and in other spellings.

    One scan if all are spelt alike. `unique`: each should be in one row.
    """
    count, repeats = parts_of(sides), unique or not many_rows_each(sides, column)
    characters, train_keys = Characters(), 0

    def read() -> Iterator[Keys]:
        """Yield the keys of each part; merge their characters."""
        nonlocal characters, train_keys
        for part in range(count):
            keys = read_keys(sides, column, part, count, repeats)
            characters, train_keys = (
                characters | keys.characters,
                train_keys + num_distinct(keys.hashes["train"]),
            )
            yield keys

    straddle = find_straddling(sides, column, read())
    return straddle, None if characters.alike else find_aliases(sides, column, train_keys, repeats)
