"""Splits too small to show anything."""

from __future__ import annotations

from schemas.config import Declaration, GroupSplit
from schemas.errors import counted
from schemas.records import CheckResult, SplitTables
from training.data.engine.engine import count_distinct, ident, rows
from training.data.leakage.arrangements import (
    ENOUGH_UNITS,
    shortage,
    shortage_of_class,
    shortage_of_signs,
)
from training.data.leakage.sides import Sides

FEWEST_DIFFERENT = 5  # rows of features in test
LOOKED_AT = 1000
FEWEST_GROUPS = 5  # in test: four different ones can be ordered in 24 ways, 40 are needed at 95 %


def size_results(sides: Sides) -> list[CheckResult]:
    """Fail if a split has fewer rows than `checks.min_rows`.

    Warn if no scores of the test rows could show skill.
    """
    limit = sides.declaration.checks.min_rows
    small = {s: n for s, n in sides.num_rows.items() if n < limit}
    few = "" if small else too_few_test_rows(sides)
    if small:
        summary, remedy = (
            f"fewer than {counted(limit, 'row')}: "
            + ", ".join(f"{s} {n}" for s, n in small.items()),
            "change split.fractions or lower checks.min_rows",
        )
    elif few:
        summary = f"too few test rows to say whether a model has skill: {few}"
        remedy = (
            f"give more test rows (split.fractions, more data, or more groups{_balance(sides)}); a"
            " model is not registered on these unless register.require_skill is false"
        )
    else:
        summary, remedy = f"every side has at least {limit} row{'' if limit == 1 else 's'}", ""
    verdict = "fail" if small else "warn" if few else "pass"
    return [
        CheckResult(
            name="min_rows",
            verdict=verdict,
            summary=summary,
            figures={**sides.num_rows, "threshold": limit},
            remedy=remedy,
        )
    ]


def _balance(sides: Sides) -> str:
    way = sides.declaration.split
    if isinstance(way, GroupSplit) and not way.balance:
        return ", or split.balance: true, which gives test its share of few groups"
    return ""


def few_at_once(made: SplitTables, declaration: Declaration) -> str:
    """Say from the figures of a split alone that test has too few groups or rows of a class.

    The result is empty if it has enough; `size_results` looks at the rows themselves.
    """
    figures = made.summary.get("test", {})
    if isinstance(groups := figures.get("groups"), int) and groups < FEWEST_GROUPS:
        advice = (
            "; split.balance: true gives test its share of few groups"
            if isinstance(declaration.split, GroupSplit) and not declaration.split.balance
            else ""
        )
        return _few_groups(groups) + advice
    counts = figures.get("label", {}).get("counts", {})
    if declaration.task.kind != "binary" or not counts:
        return ""
    value, fewest = min(counts.items(), key=lambda item: item[1])
    what = f"row{'' if fewest == 1 else 's'} with label {value!r}"
    return shortage_of_class(fewest, figures["rows"], what)


def _few_groups(groups: int) -> str:
    return (
        f"{groups} group{'' if groups == 1 else 's'} in test: no claim can be made,"
        f" {FEWEST_GROUPS} are needed"
    )


def too_few_test_rows(sides: Sides) -> str:
    """Say why no scores could show skill on the test rows, from their labels and groups.

    The result is empty if some could.
    """
    relation, spec, confidence = (
        sides.relations.get("test"),
        sides.spec,
        sides.declaration.evaluate.confidence,
    )
    if relation is None or not sides.num_rows["test"]:
        return ""
    unit = "coalesce('g' || __group, 'r' || __id)" if spec.grouped else "'r' || __id"
    num_units = count_distinct(sides.connection, "unit", f"(select {unit} as unit from {relation})")
    noun = "group" if spec.grouped else "document" if spec.text else "row"
    if spec.text is not None:
        return shortage_of_signs(num_units, noun, confidence)
    if not spec.label_columns:
        return ""
    if alike := _too_few_different(sides, relation):
        return alike
    if num_units >= ENOUGH_UNITS:
        return _too_few_of_class(sides, relation, unit, num_units, noun)
    label = (
        "concat_ws('|', "
        + ", ".join(
            f"coalesce(cast({ident(name)} as varchar), 'null')" for name in spec.label_columns
        )
        + ")"
    )
    of_units = (
        f"select string_agg({label}, ',' order by __id) as labels from {relation} group by {unit}"
    )
    counts = rows(sides.connection, f"select count(*) from ({of_units}) group by labels")
    why = shortage([n for (n,) in counts], noun, confidence)
    return (
        f"{_few_groups(num_units)}; {why}"
        if why and spec.grouped and num_units < FEWEST_GROUPS
        else why
    )


def _too_few_different(sides: Sides, relation: str) -> str:
    """Say that the test rows have next to no different features, where equal rows share a side.

    They do where no column is an id: then test has values that train never has. A thousand rows
    are looked at; they lie in the order of a hash.
    """
    if sides.spec.id or sides.spec.grouped or not sides.spec.features:
        return ""
    listed = ", ".join(map(ident, sides.spec.features))
    found = rows(
        sides.connection,
        f"select distinct {listed} from (select {listed} from {relation} limit {LOOKED_AT}) limit"
        f" {FEWEST_DIFFERENT}",
    )
    if len(found) >= FEWEST_DIFFERENT or sides.num_rows["test"] < FEWEST_DIFFERENT:
        return ""
    return (
        f"{counted(sides.num_rows['test'], 'test row', 'has', 'have')}"
        f" {counted(len(found), 'different row')} of features, and none of these is"
        " in train: without an id, equal rows share a side; if they are separate"
        " events, give the table a column with role id, such as a row number"
    )


def _too_few_of_class(sides: Sides, relation: str, unit: str, units: int, noun: str) -> str:
    """Say that the rarer value of a binary label has too few test rows or groups."""
    if sides.declaration.task.kind != "binary":
        return ""
    label = ident(sides.spec.label)
    found = rows(
        sides.connection,
        f"select {label}, count(distinct {unit}) from {relation} where {label} is not null group by"
        " 1 order by 2, 1 limit 1",
    )
    value, fewest = found[0] if found else (None, units)
    what = f"{noun}{'' if fewest == 1 else 's'} with label {value!r}"
    return shortage_of_class(int(fewest), units, what)
