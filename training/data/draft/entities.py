"""Keys of rows and of things that several rows belong to, found by what the values do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from training.data.draft.column_hints import (
    CALENDAR,
    MEASURES,
    TIMES,
    has_word,
    hint_of,
    is_row_name,
)
from training.data.draft.guesses import Guess, Table
from training.data.draft.panels import ROUNDS, followed_over, is_period
from training.data.draft.profile import SAMPLE, Profile, plain
from training.data.draft.sample_codes import SampleCodes
from training.data.draft.target import are_counts
from training.data.engine.engine import ident, row, rows

LEAST_GROUPS = 10  # fewer leave too few for test
RARELY = 0.95  # share of different values: few of them repeat
CHECKED_ROWS = 20_000
STEADY = 0.98  # of the values with several rows: a column that is constant within them
CHANCE = 15.0  # natural logarithm: constant by luck once in three million tables
RARER = 10  # times rarer than by luck are the values within which a steady column changes
SMALL = 31  # whole numbers up to here may be a count or a measure
WHOLE = 2**53  # from here on floating-point numbers skip whole ones
PAIRS = 30.0  # of equal numbers that luck leaves among measures; keys have none


class Behaviour(NamedTuple):
    """What other columns and the order of the file do within one value of a column.

    `always` is True if the constant columns have no exception, in all rows of the sample.
    """

    constant: tuple[str, ...]
    in_runs: bool
    always: bool = True


def guess_ids(table: Table, columns: Sequence[Profile], guesses: dict[str, Guess]) -> None:
    """Give the role id to a column that has another value in every row; ignore further ones."""
    unique = [
        c
        for c in columns
        if c.family in ("int", "text")
        and c.present > 1
        and c.distinct == c.present
        and table.is_unique(c)
    ]
    reasons: dict[str, str] = {}
    for column in unique:
        if hint_of(column.name) in ("entity", "key") or (
            column.family == "text" and hint_of(column.name)
        ):
            reasons[column.name] = "another value in every row"
        elif column.family == "int" and (why := _counted(table, column)):
            reasons[column.name] = f"another value in every row, {why}"
    if not reasons:
        reasons = {c.name: "another value in every row" for c in unique if _is_key_text(table, c)}
    order = sorted(reasons, key=lambda name: (not hint_of(name), is_row_name(name)))
    for name in order:
        guesses[name] = (
            Guess("id", reasons[name])
            if name == order[0]
            else Guess("ignore", "another value in every row, like the id")
        )


def _counted(table: Table, column: Profile) -> str | None:
    """Return why unique whole numbers are no quantity, or None.

    They are in equal steps, beyond what floats hold, or so close that a measure would repeat: n
    numbers of m possible ones have at least n (n - 1) / 2m equal pairs on average, whatever their
    distribution.
    """
    name = ident(column.name)
    whole = f"cast({name} as hugeint)"
    rows_of = table.relation if table.relation and table.rows > column.present else SAMPLE
    low, high, count = row(
        table.connection, f"select min({whole}), max({whole}), count(*) from {rows_of}"
    )
    if count < 3:
        return None
    step, rest = divmod(int(high) - int(low), count - 1)
    if not rest and step:
        odd = row(
            table.connection,
            f"select count(*) from {rows_of} where ({whole} - ({low})) % {step} <> 0",
        )[0]
        if not odd:
            return f"in steps of {step}"
    if max(abs(int(low)), abs(int(high))) >= WHOLE:
        return f"up to {high}, more than the digits of a feature"
    if count * (count - 1) / (2 * (int(high) - int(low) + 1)) >= PAIRS and not has_word(
        column.name, CALENDAR | TIMES | ROUNDS
    ):
        return f"and none of {count} numbers from {low} to {high} occurs twice"
    return None


def _is_key_text(table: Table, column: Profile) -> bool:
    """Return True for unique texts of one length without spaces, such as hashes and codes."""
    if column.family != "text" or column.present < 20:
        return False
    name = ident(column.name)
    short, long, spaced, digits = row(
        table.connection,
        f"select min(length({name})), max(length({name})), bool_or(contains({name}, ' ')),"
        f" bool_and(regexp_matches({name}, '[0-9]')) from {SAMPLE}",
    )
    return bool(short == long and not spaced and digits and long >= 4)


def guess_group(
    table: Table,
    columns: Sequence[Profile],
    others: Sequence[Profile],
    guesses: dict[str, Guess],
    timed: bool = False,
) -> Profile | None:
    """Return the column whose values several rows belong to; the finest of the likeliest counts.

    Args:
        table: the table.
        columns: candidates, the columns without a role so far.
        others: columns that may be constant within a value; the label is one.
        guesses: gets the role of every candidate that is a key.
        timed: whether rows have a time, by which they are split; then a panel needs no group.
    """
    ranked: dict[int, list[tuple[Profile, str]]] = {}
    codes = SampleCodes(table.connection)
    periods = [] if timed else [c for c in others if is_period(c)]
    for column in columns:
        if not _repeats(table, column):
            continue
        rank, why = _rank(table, column, others, codes)
        if not rank and (period := followed_over(table, column, periods)):
            rank = 4
            why = (
                f"{column.distinct} values, each followed over {plain(period.name)} with one row"
                " for each: rows of one of them resemble each other"
            )
        if rank and table.is_complete(column):
            ranked.setdefault(rank, []).append((column, why))
    found: Profile | None = None
    for rank in sorted(ranked):
        enough = [c for c in ranked[rank] if c[0].distinct >= LEAST_GROUPS]
        if enough and found is None:
            found, why = max(enough, key=lambda c: c[0].distinct)
            guesses[found.name] = Guess("group", why)
    for column in columns:
        if column.name not in guesses and (guess := _other_key(table, column, ranked, found)):
            guesses[column.name] = guess
    return found


def _repeats(table: Table, column: Profile) -> bool:
    """Return True if the values of a column repeat like those of a key.

    A key of a large table may do so beyond the sample: it would be an id otherwise.
    """
    beyond = table.rows > column.present and hint_of(column.name) in ("entity", "key")
    return (
        (column.is_whole or column.family == "text")
        and not column.null_share
        and column.distinct > 2
        and (column.distinct < column.present or beyond)
    )


def _rank(
    table: Table, column: Profile, others: Sequence[Profile], codes: SampleCodes
) -> tuple[int, str]:
    """Return how likely a column is a group: 1 by name, 2 as a repeated key, 3 by its values alone.

    A panel comes after these; 0 is no group. The reason has the figures.
    """
    hint = hint_of(column.name)
    share = column.distinct / column.present
    small = column.is_whole and column.low >= 0 and column.high <= SMALL
    if not hint and (share >= RARELY or share < 0.002 or column.distinct < 20):
        return 0, ""
    if not hint and (has_word(column.name, CALENDAR) or small):
        return 0, ""
    found = behaviour(table, column, others, codes)
    why = _reason(column, found)
    is_measure = small and (
        (has_word(column.name, MEASURES) and not found.constant) or _is_count(table, column)
    )
    is_name = hint == "place" and share >= RARELY and not found.constant
    if hint == "entity" or (hint == "place" and not is_measure and not is_name):
        return 1, why
    if hint == "key":
        return (2, why) if found.constant or found.in_runs or column.distinct >= 50 else (0, "")
    if hint or (column.is_whole and abs(column.high) < WHOLE and not _told(found)):
        return 0, ""
    return (3, why) if _told(found) or (found.in_runs and column.family == "text") else (0, "")


def _is_count(table: Table, column: Profile) -> bool:
    """Return True for whole numbers spread like counts: stays in a hospital, no hospital's number.

    Numbers of places begin at 1 more often, and their last is as frequent as others.
    """
    if column.low != 0:
        return False
    name = ident(column.name)
    found = rows(
        table.connection,
        f"select cast({name} as double), count(*) from {SAMPLE} group by all order by 1",
    )
    values = np.array(found, dtype=np.float64)
    return are_counts(values[:, 0], values[:, 1])


def _told(found: Behaviour) -> bool:
    return len(found.constant) >= 2


def _reason(column: Profile, found: Behaviour) -> str:
    names = ", ".join(plain(n) for n in found.constant[:3])
    parts = [f"{column.distinct} values for {column.present} rows"]
    if names:
        several = len(found.constant) > 1
        verb = ("never change" if found.always else "hardly ever change") + "s" * (not several)
        more = f" and {len(found.constant) - 3} more" if len(found.constant) > 3 else ""
        parts.append(f"{names}{more} {verb} within one")
    elif found.in_runs:
        parts.append("rows of one follow each other")
    return "; ".join(parts) + ": rows of one of them resemble each other"


def behaviour(
    table: Table, column: Profile, others: Sequence[Profile], codes: SampleCodes | None = None
) -> Behaviour:
    """Return the columns that never change within a value, and whether its rows are in a run.

    A column counts only if luck would not explain it, and if it is no scale of the values
    themselves, such as the hour of a time or the class of a size. `codes` serve several columns of
    a table of few rows in place of a query for each.
    """
    part = max(1, column.present // CHECKED_ROWS)
    looked = [c for c in others if c.name != column.name and c.distinct > 1 and c.family != "list"][
        :60
    ]
    steady: list[Profile] = []
    always = True
    if looked:
        sizes, values, counts = (codes.alike(column, looked) if codes and part == 1 else None) or (
            _alike(table, column, looked, part)
        )
        steady = [
            c
            for c, count in zip(looked, counts, strict=True)
            if count >= max(5, STEADY * values.sum())
            and _beyond_luck(sizes, values, count, _agreement(table, c))
            and not _is_scale(table, column, c)
        ]
        agreeing = {c.name: count for c, count in zip(looked, counts, strict=True)}
        always = part == 1 and all(agreeing[c.name] == values.sum() for c in steady)
    return Behaviour(tuple(c.name for c in steady), _in_runs(table, column, codes), always)


def _alike(
    table: Table, column: Profile, looked: Sequence[Profile], part: int
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Return what `SampleCodes.alike` does, of one of several parts of the values, by a query."""
    name = ident(column.name)
    some = f"(select * from {SAMPLE} where hash({name}) % {part} = 0)"
    same = ", ".join(
        f"(count({x}) in (0, count(*)) and min({x}) is not distinct from max({x})) as s{i}"
        for i, x in enumerate(ident(c.name) for c in looked)
    )
    sums = ", ".join(f"count(*) filter (where s{i})" for i in range(len(looked)))
    found = rows(
        table.connection,
        f"select n, count(*), {sums} from (select {name}, count(*) as n, {same} from {some}"
        f" group by {name} having count(*) > 1) group by n",
    )
    figures = np.array(found, dtype=np.float64).reshape(len(found), 2 + len(looked))
    sizes, values, *constant = figures.T
    return sizes, values, [float(held.sum()) for held in constant]


def _beyond_luck(sizes: np.ndarray, values: np.ndarray, constant: float, agreement: float) -> bool:
    """Return True if a column is constant within more values than luck explains.

    n rows of a value agree by luck with the chance q^(n - 1), where q is the chance that two rows
    of the table agree. With exceptions, the bound is Chernoff's for so many values, and exceptions
    must be far rarer than by luck: a column that is nearly constant everywhere tells nothing.

    Args:
        sizes: rows of a value [K], from 2.
        values: how many values have so many rows [K].
        constant: values within which the column is constant.
        agreement: q.
    """
    total = float(values.sum())
    if constant == total:
        return float(((sizes - 1) * values).sum()) * -math.log(agreement) >= CHANCE
    expected = float((agreement ** (sizes - 1) * values).sum()) / total
    share = constant / total
    if RARER * (1 - share) > 1 - expected:
        return False
    if expected <= 0:
        return True
    divergence = share * math.log(share / expected)
    divergence += (1 - share) * math.log((1 - share) / (1 - expected))
    return total * divergence >= CHANCE


def _is_scale(table: Table, column: Profile, other: Profile) -> bool:
    """Return True if a number rises or falls with the column: the same thing on a coarser scale."""
    if not (column.is_number and other.is_number) or hint_of(column.name) in ("entity", "key"):
        return False
    up, down = row(
        table.connection,
        "select bool_and(x >= b), bool_and(x <= b) from (select x, lag(x) over (order by v) as b"
        f" from (select {ident(column.name)} as v, min({ident(other.name)}) as x from {SAMPLE}"
        " group by 1))",
    )
    return bool(up or down)


def _agreement(table: Table, column: Profile) -> float:
    """Return the chance that two rows agree in a column."""
    share = row(
        table.connection,
        f"select sum(n * n) / (sum(n) * sum(n)) from (select cast(count(*) as double) as n from"
        f" {SAMPLE} group by {ident(column.name)})",
    )[0]
    return min(max(float(share), 1e-300), 1.0)


def _in_runs(table: Table, column: Profile, codes: SampleCodes | None) -> bool:
    """Return True if rows of one value follow each other, in numbers that differ little."""
    if not table.in_order or column.present < 2 * column.distinct or column.distinct < LEAST_GROUPS:
        return False
    runs, largest = (codes and codes.runs(column)) or _runs(table, column)
    return bool(runs <= 1.2 * column.distinct and largest <= 3 * column.present / column.distinct)


def _runs(table: Table, column: Profile) -> tuple[int, int]:
    """Return how many runs of one value there are, and the rows of the most frequent value."""
    name = ident(column.name)
    runs = row(
        table.connection,
        f"select count(*) from (select {name} as v, lag({name}) over (order by rowid) as b from"
        f" {SAMPLE}) where v is distinct from b",
    )[0]
    largest = rows(
        table.connection, f"select count(*) as n from {SAMPLE} group by {name} order by n desc"
    )[0][0]
    return int(runs), int(largest)


def _other_key(
    table: Table,
    column: Profile,
    ranked: dict[int, list[tuple[Profile, str]]],
    found: Profile | None,
) -> Guess | None:
    """Return the guess for a key that is not the group: a category, or nothing to learn from."""
    hint = hint_of(column.name)
    named = any(c.name == column.name for c, _ in ranked.get(1, ()))
    if named and column.distinct < LEAST_GROUPS and not has_word(column.name, {"who"}):
        return Guess(
            "categorical",
            f"{column.distinct} values: too few to test on new ones, so a category; new ones would"
            " be unknown to the model",
        )
    if named and column.distinct <= 1000:
        return Guess(
            "categorical",
            f"{column.distinct} values; the group is {plain(found.name)}"
            if found
            else f"{column.distinct} values",
        )
    if (hint == "key" or named) and column.distinct > 100 and _repeats(table, column):
        finer = f"; the group is {plain(found.name)}" if found else ""
        return Guess("ignore", f"a key: {column.distinct} values in {column.present} rows{finer}")
    return None
