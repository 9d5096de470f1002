"""Panels: things that are followed over years or rounds, and other names of the same things."""

from __future__ import annotations

from collections.abc import Sequence

from training.data.draft.column_hints import CALENDAR, has_word
from training.data.draft.guesses import Guess, Table
from training.data.draft.profile import SAMPLE, Profile, plain
from training.data.engine.engine import ident, row

ROUNDS = {"wave", "round", "period", "visit", "t", "time", "date", "term", "semester", "cycle"}
LEAST_FOLLOWED = 10  # fewer things leave too few for test
MOST_PERIODS = 1_000
LEAST_PERIODS = 20  # of a series
FILLED = 0.5  # share of the pairs of thing and period that have a row
WHOLE_FILLED = 0.9  # … where numbers name the things: a measure hardly fills so many
ALONE = 0.95  # share of rows whose value stands in one group alone


def is_period(column: Profile) -> bool:
    """Return True for years, months, waves and the like, by name and number of values."""
    return (
        (column.is_whole or column.family in ("text", "date", "instant"))
        and not column.null_share
        and 1 < column.distinct <= MOST_PERIODS
        and has_word(column.name, CALENDAR | ROUNDS)
    )


def followed_over(table: Table, column: Profile, periods: Sequence[Profile]) -> Profile | None:
    """Return the column of periods over which the values of another one are followed, or None.

    Each value has at most one row in a period, and most pairs of value and period have one.
    """
    if column.distinct < LEAST_FOLLOWED or has_word(column.name, CALENDAR | ROUNDS):
        return None
    for period in periods:
        pairs = column.distinct * period.distinct
        least = FILLED if column.family == "text" else WHOLE_FILLED
        if period.name == column.name or not least * pairs <= table.rows <= pairs:
            continue
        if _has_one_row_each(table, column, period):
            return period
    return None


def _has_one_row_each(table: Table, column: Profile, period: Profile) -> bool:
    """Return True if no pair of a value and a period has two rows."""
    names = f"({ident(column.name)}, {ident(period.name)})"
    relation = table.relation or SAMPLE
    different = row(table.connection, f"select count(distinct {names}) from {relation}")[0]
    return bool(different == table.rows)


def period_of_few(table: Table, columns: Sequence[Profile]) -> tuple[Profile, str] | None:
    """Return the whole numbers that count the periods of a few series, with the reason, or None.

    The table has one row for each period and series, and too few series to test on new ones: a
    random split would put each held-out row between its neighbours in time.
    """
    for period in (c for c in columns if is_period(c) and c.is_whole):
        if period.distinct < LEAST_PERIODS:
            continue
        for column in columns:
            pairs = column.distinct * period.distinct
            few = column.family == "text" and 1 < column.distinct < LEAST_FOLLOWED
            if not few or column.null_share or not WHOLE_FILLED * pairs <= table.rows <= pairs:
                continue
            if _has_one_row_each(table, column, period):
                why = (
                    f"one row for each {plain(period.name)} and {plain(column.name)}:"
                    f" {column.distinct} series in time"
                )
                return period, why
    return None


def names_of_groups(table: Table, groups: Profile, columns: Sequence[Profile]) -> dict[str, Guess]:
    """Return texts of which nearly each value stands in one group alone, with the reason.

    Test holds new groups, so that train knows none of their values.
    """
    found: dict[str, Guess] = {}
    for column in columns:
        if column.family != "text" or column.distinct < LEAST_FOLLOWED:
            continue
        name, group = ident(column.name), ident(groups.name)
        alone, all_rows = row(
            table.connection,
            f"select coalesce(sum(n) filter (where one), 0), coalesce(sum(n), 0) from (select"
            f" count(*) as n, min({group}) is not distinct from max({group}) as one from {SAMPLE}"
            f" where {name} is not null group by {name})",
        )
        if all_rows and alone >= ALONE * all_rows:
            found[column.name] = Guess(
                "ignore",
                f"{column.distinct} values that each stand with one {plain(groups.name)}: train"
                " knows none of those in test",
            )
    return found
