"""The split that fits a draft, and others to fall back on where the rows do not allow it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from schemas.duration import seconds_of
from training.data.draft.entities import LEAST_GROUPS
from training.data.draft.guesses import Draft, Guess, Table
from training.data.draft.label_guess import rarest_rows
from training.data.draft.profile import SAMPLE, Profile
from training.data.draft.row_times import TIME_DERIVED
from training.data.engine.engine import ident, row

EMBARGOES = ("1d", "12h", "6h", "3h", "1h", "30min", "10min", "1min", "1s")
MANY_GROUPS = 500  # from here on a hash gives every side its share
MANY_ROWS = 1_000  # of the rarest class: a hash gives every side its share
LEAST_TIMED_GROUPS = 20


class Plan(NamedTuple):
    """A draft with the split that it needs, as YAML, and the reason."""

    draft: Draft
    split: str
    why: str


def plans(table: Table, draft: Draft, task: str) -> Iterator[Plan]:
    """Yield the split that fits the draft, then simpler ones, each with a draft that agrees."""
    yield from _with_embargo(table, draft, task)
    if draft.split:
        return
    if draft.groups and draft.time and draft.groups.distinct >= LEAST_TIMED_GROUPS:
        why = "a split by group and time leaves too few rows"
        yield _plan(table, _without_time(draft, why), task)
        yield _plan(table, _without_groups(draft, why), task)
    elif draft.time:
        yield _plan(
            table, _without_time(draft, "a split by time leaves too few rows or classes"), task
        )
    plain = _without_groups(
        _without_time(draft, "a split by time leaves too few rows or classes"),
        "no split by whole groups divides the rows",
    )
    if draft.groups or draft.molecules or draft.tied:
        yield _plan(table, plain, task)
    if "multilabel" not in task:
        yield Plan(
            plain,
            "{kind: stratified}",
            f"few rows ({table.rows}), so the label's shares are kept equal",
        )
        if not plain.together[0]:
            yield Plan(plain, "{kind: random}", "no other split divides so few rows of a class")


def _with_embargo(table: Table, draft: Draft, task: str) -> Iterator[Plan]:
    plan = _plan(table, draft, task)
    yield plan
    if "embargo: " in plan.split and "embargo: 0" not in plan.split:
        short = plan.split[: plan.split.index("embargo: ")] + "embargo: 0}"
        yield Plan(draft, short, "train before test, as in use; a gap would leave too few rows")


def _plan(table: Table, draft: Draft, task: str) -> Plan:
    """Return the split that fits what the draft knows of groups, times and classes."""
    classes, several = "regression" not in task, "multilabel" in task
    if draft.split:
        carve = "" if draft.split & {"val", "valid", "validation"} else ", carve_val: 0.2"
        return Plan(
            draft,
            f"{{kind: predefined{carve}}}",
            "the table says the side of each row"
            + ("; validation is carved out of train" if carve else ""),
        )
    if draft.groups and draft.time and draft.groups.distinct >= LEAST_TIMED_GROUPS:
        return Plan(
            draft,
            f"{{kind: group_time, embargo: {_embargo(draft, table)}}}",
            "new groups in later time, about half of the rows; make embargo as long as the label"
            " looks ahead",
        )
    if draft.groups:
        return _grouped(table, draft, draft.groups.distinct, several)
    if draft.tied:
        return _grouped(table, draft, draft.tied.distinct, several)
    if draft.molecules:
        kind = "stratified_group" if classes and not several and table.rows < 20_000 else "group"
        why = "test holds new scaffolds, as a new series of molecules does"
        return Plan(draft, f"{{kind: {kind}}}", why)
    if draft.together[0]:
        kind = "stratified_group" if classes and not several else "group"
        near = "nearly " if draft.together[0] == "near_duplicates" else ""
        return Plan(draft, f"{{kind: {kind}}}", f"{near}equal rows stay together")
    if draft.time:
        return Plan(
            draft,
            f"{{kind: time, embargo: {_embargo(draft, table)}}}",
            "train before test, as in use; make embargo as long as the label looks ahead; if the"
            " table grows, see roll",
        )
    return _independent(table, draft, classes and not several)


def _grouped(table: Table, draft: Draft, groups: int, several: bool) -> Plan:
    if groups < MANY_GROUPS and not several:
        return Plan(
            _without_time(draft, f"{groups} groups are too few to split by time as well"),
            "{kind: stratified_group}",
            f"whole groups, few enough ({groups}) that the shares of the label need care",
        )
    return Plan(
        _without_time(draft, f"{groups} groups are too few to split by time as well"),
        "{kind: group, balance: true}" if groups < MANY_GROUPS else "{kind: group}",
        f"whole groups ({groups}), so that test holds new ones",
    )


def _independent(table: Table, draft: Draft, classes: bool) -> Plan:
    """Return the split of rows that belong neither together nor to a time."""
    known = "rows are numbered" if draft.row_number else "no group or time found"
    if classes and table.rows < 20_000:
        return Plan(
            draft,
            "{kind: stratified}",
            f"{known}; few rows, so the shares of the classes are kept equal",
        )
    rarest = rarest_rows(table, draft.label) if classes else MANY_ROWS
    if rarest < MANY_ROWS:
        return Plan(
            draft,
            "{kind: stratified}",
            f"{known}; {rarest} rows of the rarest class, so the shares are kept equal",
        )
    return Plan(draft, "{kind: random}", f"{known}; if rows belong together, declare the group")


def _without_time(draft: Draft, why: str) -> Draft:
    """Return the draft without a time; a time that was derived for it goes, too."""
    if draft.time is None:
        return draft
    draft = draft._replace(time=None, filter=None)
    name = next(n for n, g in draft.columns.items() if g.role == "time" or "role: time" in g.role)
    if name not in draft.derive:
        return draft.with_column(name, Guess("ignore", why))
    columns = {
        n: g._replace(why=why) if g.why == TIME_DERIVED else g
        for n, g in draft.columns.items()
        if n != name
    }
    derive = {n: made for n, made in draft.derive.items() if n != name}
    return draft._replace(derive=derive, columns=columns)


def _without_groups(draft: Draft, why: str) -> Draft:
    """Return the draft without groups; their column becomes a category, or is left out."""
    draft = draft._replace(molecules=None, tied=None)
    if draft.groups is None:
        return draft
    column: Profile = draft.groups
    few = column.distinct <= 100 and column.distinct * LEAST_GROUPS <= column.present
    guess = Guess("categorical" if few else "ignore", f"{column.distinct} values; {why}")
    return draft._replace(groups=None).with_column(column.name, guess)


def _embargo(draft: Draft, table: Table) -> str:
    """Return a day, or less if the times have a short span: at most a fortieth of it.

    A day could then leave nothing.
    """
    name = str(draft.time)
    guess = draft.columns[name]
    if any(c.name == name and c.is_number and "unit: " not in guess.role for c in table.columns):
        return "0"  # periods or other numbers without a unit
    expression = draft.derive[name][0] if name in draft.derive else ident(name)
    if "unit: " in guess.role:
        unit = guess.role.split("unit: ")[1].rstrip("}")
        moment = f"{expression} / {({'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': 10**9})[unit]}"
    else:
        moment = f"epoch(cast({expression} as timestamp))"
    span = float(
        row(table.connection, f"select coalesce(max({moment}) - min({moment}), 0) from {SAMPLE}")[0]
    )
    return next((length for length in EMBARGOES if seconds_of(length) <= span / 40), "0")
