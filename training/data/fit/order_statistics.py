"""Exact values at given ranks of a column, found in ever narrower intervals without sorting it.

A pass counts the values in equal parts of an interval, which shows the part that holds a rank.
Small parts are sorted, others divided again. Memory does not grow with the rows, and the
values are those that a sort would find.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.data.engine.engine import literal, row, rows

PARTS = 4096  # of an interval
SORTED_ROWS = 2**20  # sorted by the engine at a time
LEAST_WIDTH = 5e-324


class Interval(NamedTuple):
    """Interval from `low` to `high`, both included, with row counts and ranks.

    The counts are of rows with a value in it and of rows with a lower one; ranks int64 are those in
    the interval.
    """

    low: float
    high: float
    rows: int
    before: int
    ranks: np.ndarray
    part: int = 0


def values_at(connection: Any, relation: str, ranks: Sequence[int]) -> dict[int, float]:
    """Return rank (from 0) → the value at that rank in sorted order.

    Each pass takes O(rows); usually two are enough.

    Args:
        connection: the engine.
        relation: SQL relation with a column `x` of doubles up to 1e300 without nulls and NaN.
        ranks: each at least 0 and less than the number of rows.
    """
    low, high, count = row(connection, f"select min(x), max(x), count(*) from {relation}")
    return (
        _within(
            connection,
            relation,
            Interval(low, high, count, 0, np.unique(np.asarray(ranks, dtype=np.int64))),
        )
        if len(ranks)
        else {}
    )


def _within(connection: Any, relation: str, interval: Interval) -> dict[int, float]:
    if interval.low == interval.high:
        # + 0.0: a -0.0 would reveal the row order
        return dict.fromkeys(interval.ranks.tolist(), interval.low + 0.0)
    inside = (
        f"(select x from {relation} where x between {literal(interval.low)} and"
        f" {literal(interval.high)})"
    )
    if interval.rows <= SORTED_ROWS:
        return _sorted(connection, inside, "0", [interval])
    width = max((interval.high - interval.low) / PARTS, LEAST_WIDTH)
    part = (
        f"least(cast(floor((x - {literal(interval.low)}) / {literal(width)}) as bigint),"
        f" {PARTS - 1})"
    )
    parts = list(
        _holding(
            rows(
                connection,
                f"select {part} as part, min(x), max(x), count(*) from {inside} group by 1 order"
                " by 1",
            ),
            interval,
        )
    )
    few = [p for p in parts if p.rows <= SORTED_ROWS]
    found = _sorted(connection, inside, part, few)
    for many in (p for p in parts if p.rows > SORTED_ROWS):
        found |= _within(connection, relation, many)
    return found


def _holding(counted: list[tuple[Any, ...]], interval: Interval) -> Iterator[Interval]:
    """Return the parts that hold a rank.

    Parts are (number, lowest value, highest value, rows), of all parts that hold a value.
    """
    counts = np.array([c[3] for c in counted], dtype=np.int64)
    before = interval.before + np.cumsum(counts) - counts
    places = np.searchsorted(before, interval.ranks, "right") - 1
    for place in np.unique(places).tolist():
        number, low, high, count = counted[place]
        yield Interval(
            low, high, count, int(before[place]), interval.ranks[places == place], number
        )


def _sorted(connection: Any, inside: str, part: str, intervals: list[Interval]) -> dict[int, float]:
    """Return the values at the ranks of some parts.

    As many parts are sorted together as stay within `SORTED_ROWS`.
    """
    found: dict[int, float] = {}
    while intervals:
        taken = max(
            1, int(np.searchsorted(np.cumsum([i.rows for i in intervals]), SORTED_ROWS, "right"))
        )
        chunk, intervals = intervals[:taken], intervals[taken:]
        ends = np.cumsum([i.rows for i in chunk])
        rank_of = {
            int(end - i.rows + rank - i.before): int(rank)
            for i, end in zip(chunk, ends, strict=True)
            for rank in i.ranks
        }
        placed = (
            f"select x, row_number() over (order by x) - 1 as place from {inside} as v where {part}"
            f" in ({', '.join(str(i.part) for i in chunk)})"
        )
        for place, x in rows(
            connection,
            f"select place, x from ({placed}) as p where place in ({', '.join(map(str, rank_of))})",
        ):
            found[rank_of[place]] = x + 0.0
    return found
