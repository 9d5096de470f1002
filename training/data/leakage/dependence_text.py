"""What the check `dependence` says: the tie, both scores, and what to declare."""

from __future__ import annotations

from typing import NamedTuple

from schemas.config import ChecksConfig
from schemas.records import CheckResult, Verdict
from training.data.dependence.search import Finding, Found
from training.data.dependence.strength import as_score
from training.data.dependence.ties import Tie
from training.data.dependence.times import Later
from training.data.leakage.sides import Sides

NAMED = 4  # columns that a sentence lists
BY_TIME = (
    "set split: {kind: time}, or where only rows of one moment belong together, make the time a"
    " group with split: {kind: group}"
)


class Dependence(NamedTuple):
    """What ties rows, and the score of later rows by earlier ones, if rows have a time.

    `label` names the label and its class; `rows` are those of train and validation looked at.
    """

    finding: Finding | None
    later: Later | None
    moments: Tie | None
    label: str
    is_class: bool
    rows: int


def quiet(text: str, checks: ChecksConfig) -> CheckResult:
    """Return a result that passes, or that says why nothing was looked at."""
    return CheckResult(
        name="dependence",
        verdict="pass",
        summary=text,
        figures={"threshold": checks.dependence_fall},
    )


def result_of(dependence: Dependence, sides: Sides, checks: ChecksConfig) -> CheckResult:
    """Return the result: the clearest tie, with the score as split and with the tie kept whole."""
    finding, later, moments = dependence.finding, dependence.later, dependence.moments
    if finding is None and later is None and moments is None:
        return quiet(
            "the score does not rest on rows that belong together: no value, cluster or"
            " neighbourhood of rows by which it falls",
            checks,
        )
    verdict: Verdict = "fail" if finding and finding.verdict == "fail" else "warn"
    parts: list[str] = []
    figures: dict[str, float | int | str | None] = {}
    columns: tuple[str, ...] = ()
    remedy = BY_TIME
    time = sides.spec.time or "time"
    if finding is not None:
        found = finding.found
        parts.append(_scores(found, dependence, time))
        figures |= _figures(found)
        columns, remedy = found.tie.columns, _remedy(found, sides)
    if moments is not None:
        parts.append(
            f"rows of one {time} have nearly the same {dependence.label}"
            f" ({moments.shared:.0%} of its variance lies between them)"
        )
    if later is not None:
        parts.append(
            f"{_said(later.as_split, dependence)} as split on the latest rows,"
            f" {_said(later.forward, dependence, named=False)} if they are predicted from earlier"
            f" ones"
        )
        figures |= {"later_as_split": later.as_split, "later_forward": later.forward}
    if (moments or later) and time not in columns:
        columns = (*columns, time)
    rounded = {n: round(v, 4) if isinstance(v, float) else v for n, v in figures.items()}
    return CheckResult(
        name="dependence",
        verdict=verdict,
        summary="; ".join(parts),
        figures={**rounded, "threshold": checks.dependence_fall},
        columns=columns,
        remedy=remedy,
    )


def _scores(found: Found, dependence: Dependence, time: str) -> str:
    steady = (
        f"; {listed(found.steady)} never change{'s' * (len(found.steady) == 1)} within one"
        if found.steady
        else ""
    )
    return (
        f"{_what(found.tie, time)}: {_said(found.as_split, dependence)} as split,"
        f" {_said(found.honest, dependence, named=False)} if they stay together"
        f" ({found.num_ties} {_unit(found.tie)} in {found.rows} train and validation rows{steady})"
    )


def _what(tie: Tie, time: str) -> str:
    names = listed(tie.columns)
    return {
        "values": (
            f"rows of one value of {names} belong together"
            if len(tie.columns) == 1
            else f"rows of the same {names} belong together"
        ),
        "cluster": f"rows that are near in {names} belong together",
        "time": f"rows of neighbouring {time} resemble each other",
        "order": f"rows of neighbouring {names} resemble each other",
        "place": "neighbouring rows of the source resemble each other",
    }[tie.kind]


def _unit(tie: Tie) -> str:
    if tie.kind == "values":
        return "values" if len(tie.columns) == 1 else "combinations"
    return "clusters" if tie.kind == "cluster" else "blocks"


def _said(strength: float, dependence: Dependence, named: bool = True) -> str:
    of = f" of {dependence.label}" if " = " in dependence.label else ""
    return as_score(strength, dependence.is_class, named, of)


def _figures(found: Found) -> dict[str, float | int | str | None]:
    return {
        "tie": "key" if is_key(found) else found.tie.kind,
        "as_split": found.as_split,
        "kept_together": found.honest,
        "standard_errors": found.errors,
        "unexplained_between": found.unexplained,
        "ties": found.num_ties,
        "rows": found.rows,
    }


def _remedy(found: Found, sides: Sides) -> str:
    """Return what to declare, in the declaration's own words."""
    names, tie = ", ".join(found.tie.columns), found.tie
    if is_key(found):
        return (
            f"rows of one value belong together: make it a group (data.columns: {{{names}: group}},"
            " split: {kind: group}); role ignore alone would leave them on both sides"
        )
    if tie.kind in ("values", "cluster"):
        way = "duplicates" if tie.kind == "values" else "near_duplicates"
        return (
            "declare the column that says which person, device or batch a row is of as group, with"
            f" split: {{kind: group}}; if it is lost, data.group_by: {{{way}: [{names}]}} ties them"
        )
    if tie.kind == "time":
        return BY_TIME
    if tie.kind == "order":
        return (
            f"if {names} is a time, declare it so (data.columns: {{{names}: time}}, split: {{kind:"
            " time}); else make runs of it a group"
            f' (data.derive: {{run: "floor({names} / LENGTH)"}})'
        )
    return (
        "declare the time of the rows with split: {kind: time}, or the person, session or batch"
        " that neighbouring rows are of as group with split: {kind: group}"
    )


def is_key(found: Found) -> bool:
    """Return True if one column ties rows that is no measurement: a number or name of something."""
    return found.tie.kind == "values" and len(found.tie.columns) == 1 and not found.is_measured


def listed(names: tuple[str, ...]) -> str:
    """Return names in a sentence.

    >>> listed(("age", "sex", "height"))
    "'age', 'sex' and 'height'"
    """
    shown = [repr(name) for name in names[:NAMED]]
    if len(names) > NAMED:
        shown.append(f"{len(names) - NAMED} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
