"""Exact moments and quantiles of numeric columns, independent of row order, threads and chunks.

Floating-point sums depend on their order, and an engine with several threads adds in another order
every time. Here each value is turned into an integer (62 bits below the column's largest) before it
is added: integer sums are exact in every order. It costs less than the engine's compensated sum and
needs no rounding afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

import duckdb

from schemas.errors import DataError, counted, first_few
from training.data.engine.engine import ident
from training.data.fit.order_statistics import values_at

BITS = 62  # integers up to 2^62 fit BIGINT, and their sum the engine's HUGEINT
LARGEST = 1e300  # beyond it, a difference of two values may overflow
COLUMNS_PER_QUERY = 100


class Moments(NamedTuple):
    """Counts, extremes, mean and population standard deviation of the values of one column.

    Nulls are only counted.
    """

    present: int
    nulls: int
    low: float | None
    high: float | None
    mean: float | None
    std: float | None


def column_moments(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str]
) -> dict[str, Moments]:
    """Return moments of columns of a table, bit-identical for every row order and thread count.

    Args:
        connection: an open engine.
        table: an SQL relation, e.g. `parquet(train)`.
        columns: numeric columns; null or number.

    Returns:
        Column → moments; low, high, mean and std are None where every value is null.

    Raises:
        DataError: a column holds NaN, an infinity, or a magnitude above 1e300.
    """
    found: dict[str, Moments] = {}
    for chunk in _chunks(columns, COLUMNS_PER_QUERY):
        found |= _chunk_moments(connection, table, chunk)
    return found


def _chunk_moments(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[str]
) -> dict[str, Moments]:
    total, *flat = _row(
        connection,
        table,
        ["count(*)", *(f"count({n}), min({n}), max({n})" for n in map(_number, columns))],
    )
    rows = {c: (flat[3 * i], total - flat[3 * i]) for i, c in enumerate(columns)}
    extremes = {
        c: (flat[3 * i + 1] + 0.0, flat[3 * i + 2] + 0.0)
        for i, c in enumerate(columns)
        if rows[c][0]
    }  # + 0.0: a -0.0 would reveal the row order
    refuse_extraordinary(extremes)
    units = {c: unit_above(max(abs(low), abs(high))) for c, (low, high) in extremes.items()}
    sums = _row(
        connection,
        table,
        [_exact_sum(f"({_number(c)} / {_double(unit)})") for c, unit in units.items()],
    )
    means = {
        c: exact_mean(total, rows[c][0], units[c]) for c, total in zip(extremes, sums, strict=True)
    }
    spreads = {
        c: unit_above(max(high - means[c], means[c] - low)) for c, (low, high) in extremes.items()
    }
    deviation = {
        c: f"(({_number(c)} - {_double(means[c])}) / {_double(spreads[c])})" for c in extremes
    }
    squares = _row(connection, table, [_exact_sum(f"({d} * {d})") for d in deviation.values()])
    stds = {
        c: spreads[c] * math.sqrt(exact_mean(total, rows[c][0], 1.0))
        for c, total in zip(extremes, squares, strict=True)
    }
    lows, highs = ({c: e[i] for c, e in extremes.items()} for i in (0, 1))
    return {
        c: Moments(*rows[c], lows.get(c), highs.get(c), means.get(c), stds.get(c)) for c in columns
    }


def refuse_extraordinary(found: Mapping[str, tuple[float, float]]) -> None:
    """Refuse columns whose given smallest or largest value is not an ordinary number.

    Raises:
        DataError: with the columns and both values.
    """
    bad = {c: e for c, e in found.items() if any(not abs(v) <= LARGEST for v in e)}
    if bad:
        shown = first_few(f"{c} ({low!r} to {high!r})" for c, (low, high) in bad.items())
        raise DataError(
            f"expected finite numbers up to {LARGEST:g};"
            f" {counted(len(bad), 'column', 'holds', 'hold')} others: {shown};"
            " declare them as nulls, bound them with min/max, or filter those rows"
        )


def column_quantiles(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    levels: Mapping[str, Sequence[float]],
    present: Mapping[str, int],
) -> dict[str, tuple[float, ...]]:
    """Return exact quantiles, linear between order statistics.

    Columns are not sorted, so memory stays bounded.

    Args:
        connection: an open engine.
        table: an SQL relation, e.g. `parquet(train)`.
        levels: column → levels within [0, 1].
        present: column → how many of its values are not null, at least 1; nulls do not count.

    Returns:
        Column → one value per level.

    Source: Hyndman and Fan (1996), type 7, as in `numpy.quantile`.
    """
    return {
        column: _quantiles(connection, table, column, wanted, present[column])
        for column, wanted in levels.items()
    }


def _quantiles(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    column: str,
    levels: Sequence[float],
    present: int,
) -> tuple[float, ...]:
    positions = [(present - 1) * level for level in levels]
    column_values = (
        f"(select {_number(column)} as x from {table} where {ident(column)} is not null)"
    )
    values = values_at(
        connection,
        column_values,
        [rank for p in positions for rank in (math.floor(p), math.ceil(p))],
    )
    return tuple(
        between(values[math.floor(p)], values[math.ceil(p)], p - math.floor(p)) for p in positions
    )


def least_quantile(
    connection: duckdb.DuckDBPyConnection, table: str, column: str, level: float, present: int
) -> float:
    """Return the smallest value that at least a share `level` of a column's values does not exceed.

    It is a value of the column, and a constant with the least pinball loss of that quantile.

    Args:
        connection: an open engine.
        table: an SQL relation, e.g. `parquet(train)`.
        column: numeric column; nulls do not count.
        level: above 0 and below 1.
        present: how many of its values are not null, at least 1.

    Source: Hyndman and Fan (1996), type 1, as `inverted_cdf` in `numpy.quantile`.
    """
    rank = min(max(math.ceil(present * level), 1), present) - 1
    values = f"(select {_number(column)} as x from {table} where {ident(column)} is not null)"
    return values_at(connection, values, [rank])[rank]


def between(low: float, high: float, share: float) -> float:
    """Return the value at a fraction of the way from one value to another."""
    return low + (high - low) * share


def _row(connection: duckdb.DuckDBPyConnection, table: str, parts: Sequence[str]) -> list:
    """Return the single row of an aggregate query; without columns, run no query."""
    if not parts:
        return []
    return list(connection.execute(f"select {', '.join(parts)} from {table}").fetchall()[0])


def _exact_sum(expression: str) -> str:
    """Return the sum of values within [-2, 2] as an integer in units of 2^-62.

    It is exact, so independent of order. The type is a hugeint, which the engine itself uses for a
    sum of bigints and which Spark's dialect calls decimal(38, 0); Spark's own sum would overflow.
    """
    return f"sum(cast(cast(round({expression} * {_double(2.0**BITS)}) as bigint) as hugeint))"


def exact_mean(total: int, count: int, unit: float) -> float:
    """Return the correctly rounded mean from an exact sum."""
    return float(Fraction(int(total), count << BITS) * Fraction(unit))


def unit_above(magnitude: float) -> float:
    """Return the power of two just above a magnitude; 1 for zero.

    Division by it is exact.
    """
    return math.ldexp(1.0, min(math.frexp(magnitude)[1], 1023)) if magnitude else 1.0


def _number(column: str) -> str:
    return f"cast({ident(column)} as double)"


def _double(value: float) -> str:
    """Return a literal that every engine reads as exactly this double, never as a decimal."""
    return f"cast('{value!r}' as double)"


def _chunks(items: Iterable[str], size: int) -> Iterable[list[str]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
