"""Hard assertion: a stratified split keeps the label's distribution in every split.

It holds as far as whole units allow.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.config import StratifiedGroupSplit, StratifiedSplit
from schemas.records import CheckResult
from training.data.engine.engine import ident, row, rows
from training.data.leakage.sides import Sides


class Deviation(NamedTuple):
    """Deviation of a label from its distribution over all splits, in the split where it is largest.

    `deviation`: of a class, the difference of its shares; of a value, that of its means in standard
    deviations. `unit`: the change that one indivisible unit (a row, or the largest group) can make
    there, with half the share of the classes that are too rare for the smallest side.
    """

    side: str
    what: str
    deviation: float
    unit: float


def find_deviation(sides: Sides) -> Deviation:
    """Return the largest deviation of the label in any split."""
    label, task = ident(sides.spec.label), sides.declaration.task.kind
    key = "__group" if isinstance(sides.declaration.split, StratifiedGroupSplit) else "__id"
    together = sides.together((sides.spec.label, key))
    largest = "(select max(n) from (select count(*) as n from t group by k))"
    if task == "regression":
        per_side = (
            f"(select side, abs(avg({label}) - (select avg({label}) from t)) / nullif((select"
            f" stddev_pop({label}) from t), 0) as d, count(*) as n from t group by side)"
        )
        found = row(
            sides.connection,
            f"with t as (select *, {ident(key)} as k from {together}) select side, 'mean', d,"
            f" {largest} / n from {per_side} order by d desc limit 1",
        )
    else:
        shares = f"(select side, {label} as v, count(*) as c from t group by all)"
        totals = "(select side, count(*) as n from t group by side)"
        overall = (
            f"(select {label} as v, count(*) / (select count(*) from t) as share from t group by v)"
        )
        # a class of which less than one row is due may be absent, and its rows are on another side
        rare = f"(select sum(share) from {overall} where share * (select min(n) from {totals}) < 1)"
        grid = (
            f"select s.side, o.v, abs(coalesce(c, 0) / s.n - o.share) as d, {largest} / s.n +"
            f" coalesce({rare}, 0) / 2 as unit from {totals} s cross join {overall} o left join"
            f" {shares} x on x.side = s.side and x.v = o.v"
        )
        found = rows(
            sides.connection,
            f"with t as (select *, {ident(key)} as k from {together}) select side, cast(v as"
            f" varchar), d, unit from ({grid}) order by d desc, side limit 1",
        )[0]
    side, what, deviation, unit = found
    return Deviation(str(side), str(what), float(deviation or 0.0), float(unit))


def stratification_results(sides: Sides) -> list[CheckResult]:
    """Check the deviation if a stratified split was declared."""
    if not isinstance(sides.declaration.split, StratifiedSplit) or sides.spec.has_several_labels:
        return []
    return [judge_deviation(find_deviation(sides), sides)]


def judge_deviation(found: Deviation, sides: Sides) -> CheckResult:
    """Fail above the tolerance and two units: the split was not made as declared.

    Warn if groups may leave no choice.
    """
    limit = sides.declaration.checks.stratify_tolerance
    wrong = found.deviation > limit + 2 * found.unit
    by_group = isinstance(sides.declaration.split, StratifiedGroupSplit)
    of = (
        f"the share of class {found.what!r}"
        if sides.declaration.task.kind != "regression"
        else "the mean (in standard deviations)"
    )
    text = (
        f"{sides.spec.label}: {of} on {found.side} is {found.deviation:.4f} away from that of all"
        " rows"
    )
    return CheckResult(
        name="stratification",
        verdict="pass" if not wrong else "warn" if by_group else "fail",
        summary=text + (f", above {limit:g}" if wrong else ""),
        figures={"deviation": found.deviation, "threshold": limit, "one_unit": found.unit},
        columns=(sides.spec.label,),
        remedy=(
            "delete the prepared files and run again; where rows of a class arrived later, raise"
            " checks.stratify_tolerance"
            if wrong
            else ""
        ),
    )
