"""Contradicting copies: equal rows, or copies by `data.group_by`, with different labels.

Equal rows are equal in every feature. This is not a leak, but it limits any score: a model is wrong
on at least one of two such rows. If more than a tenth of the rows repeat others, the features are
coarse and equal rows are different subjects. Then the check reports them without a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from schemas.records import CheckResult
from training.data.engine.engine import ident, row, rows
from training.data.leakage.sides import Sides

EVIDENCE_ROWS = 10
LEAST_SHARE = 0.0005  # of rows in conflict; below it they are reported without a warning
COARSE_SHARE = (
    0.1  # of rows that repeat another one; above it equal features do not mean the same subject
)
CLOSE = 0.1  # standard deviations of a numeric label that are no contradiction


class Conflicts(NamedTuple):
    """Counts of rows that equal another one in every feature.

    `repeats` counts rows beyond the first of each set, `rows` those in sets whose labels differ.
    """

    total: int
    repeats: int
    rows: int
    examples: list[dict[str, Any]]


def find_label_conflicts(sides: Sides) -> Conflicts:
    """Find conflicts over all splits, among the rows that `hash_features` found."""
    connection, names = sides.connection, list(sides.spec.label_columns)
    differ = " or ".join(_differ(sides, name, f"label_{i}") for i, name in enumerate(names))
    connection.execute(
        "create or replace temp table disputed_rows as select content, count(*) as n from"
        f" equal_rows group by content having count(*) > 1 and ({differ})"
    )
    repeats = row(
        connection,
        "select coalesce(sum(n - 1), 0) from (select count(*) as n from equal_rows group by"
        " content)",
    )[0]
    disputed = row(connection, "select coalesce(sum(n), 0) from disputed_rows")[0]
    shown = " || ', ' || ".join(
        f"coalesce(cast(label_{i} as varchar), 'unknown')" for i in range(len(names))
    )
    examples = rows(
        connection,
        f"select __id, {shown}, content from equal_rows where content in (select content from"
        f" disputed_rows) order by content, __id limit {EVIDENCE_ROWS}",
    )
    return Conflicts(
        sum(sides.num_rows.values()),
        int(repeats),
        int(disputed),
        [{"id": i, "label": label, "copies": c[:8]} for i, label, c in examples],
    )


def judge_label_conflicts(
    found: Conflicts, derived: Mapping[str, Any], columns: tuple[str, ...]
) -> CheckResult:
    """Warn if copies contradict each other and few enough rows repeat to be copies.

    Args:
        found: rows equal in every feature.
        derived: figures of the groups that `data.group_by` derived; empty where it derived none.
        columns: the label columns.
    """
    coarse = (
        found.repeats > COARSE_SHARE * max(found.total, 1) or found.rows < LEAST_SHARE * found.total
    )
    texts = (
        [f"{found.rows} rows equal another one in every feature and have another label"]
        if found.rows
        else []
    )
    figures: dict[str, float | int | str | None] = {
        "rows": found.rows,
        "repeats": found.repeats,
        "total": found.total,
    }
    evidence = list(found.examples)
    for family in ("duplicates", "near_duplicates"):
        copies = derived.get(family, {})
        figures |= {
            f"{family}_{name}": copies[name]
            for name in ("rows", "conflicting_rows")
            if name in copies
        }
        if copies.get("conflicting_rows"):
            texts.append(
                f"{copies['conflicting_rows']} of {copies['rows']} {family.replace('_', '-')}"
                " (data.group_by) have another label than their copy"
            )
            evidence += copies["examples"]
    is_copy = bool(found.rows and not coarse) or len(texts) > bool(found.rows)
    note = (
        f"; {found.repeats} of {found.total} rows repeat another one, which is either seldom, or so"
        " often that features are coarse: no error by itself"
        if texts and not is_copy
        else ""
    )
    return CheckResult(
        name="label_conflicts",
        verdict="warn" if is_copy else "pass",
        summary=(
            "; ".join(texts) or "no two rows that are equal in every feature have different labels"
        )
        + note,
        figures=figures,
        evidence=tuple(evidence[:EVIDENCE_ROWS]),
        columns=columns,
        remedy=(
            "look at the rows: correct the labels, or leave such rows out with data.filter"
            if is_copy
            else ""
        ),
    )


def label_conflict_results(
    sides: Sides, derived: Mapping[str, Any] | None = None
) -> list[CheckResult]:
    """Run the check after `hash_features`; a language model has no label, so no result.

    Args:
        sides: the rows.
        derived: `plan["groups"]` of the split, if groups were derived.
    """
    if sides.spec.text is not None or not sides.spec.features:
        return []
    return [
        judge_label_conflicts(
            find_label_conflicts(sides), derived or {}, tuple(sides.spec.label_columns)
        )
    ]


def _differ(sides: Sides, name: str, column: str) -> str:
    """Return an SQL condition over a set of equal rows: two of its known labels contradict."""
    if sides.declaration.task.label(name).kind != "regression":
        return f"count(distinct {column}) > 1"
    spread = row(
        sides.connection,
        f"select coalesce(stddev_pop(cast({ident(name)} as double)), 0) from"
        f" {sides.together((name,))}",
    )[0]
    return f"max({column}) - min({column}) > {CLOSE * float(spread)!r}"
