"""Columns that are nearly empty: whether a value says something about the label by being there."""

from __future__ import annotations

import math

from training.data.draft.guesses import Table
from training.data.draft.profile import SAMPLE, Profile
from training.data.engine.engine import ident, literal, row

LEAST_PRESENT = 10
DEVIATIONS = 4.0  # standard errors between the label with a value and without
SUSPICIOUS = 0.9  # of the label told by the nulls alone: rather known afterwards


def telling_nulls(table: Table, column: Profile, label: Profile) -> str | None:
    """Return the figures if the label differs between rows with and without a value.

    Args:
        table: the table.
        column: with nulls.
        label: a number, true/false or two texts.

    Returns:
        None if the difference may be luck, or is so large that the column is rather known only
        afterwards.
    """
    if column.present < LEAST_PRESENT or (number := label_number(table, label)) is None:
        return None
    name = ident(column.name)
    filled, empty = (f"filter (where {name} is {no}null)" for no in ("not ", ""))
    figures = row(
        table.connection,
        f"select avg(v) {filled}, var_samp(v) {filled}, count(v) {filled}, avg(v) {empty},"
        f" var_samp(v) {empty}, count(v) {empty}, var_pop(v), count(v) from (select *, {number} as"
        f" v from {SAMPLE})",
    )
    mean, spread, count, other, others_spread, others, total, everything = figures
    if not count or not others or not total:
        return None
    error = math.sqrt((spread or total) / count + (others_spread or total) / others)
    gap = abs(mean - other)
    explained = gap**2 * count * others / (everything**2 * total)
    if not error or gap < DEVIATIONS * error or explained > SUSPICIOUS**2:
        return None
    flag = "a missing flag is added" if column.is_number else "a null is a category of its own"
    return f"the label is {mean:.3g} on average where it is given, else {other:.3g}; {flag}"


def label_number(table: Table, label: Profile) -> str | None:
    """Return the label as a number in SQL, or None for more than two texts."""
    name = ident(label.name)
    if label.is_number or label.family == "bool":
        return f"cast({name} as double)"
    if label.distinct != 2:
        return None
    high = row(table.connection, f"select max({name}) from {SAMPLE}")[0]
    return f"cast({name} = {literal(str(high))} as double)"
