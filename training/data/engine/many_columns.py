"""Figures of many columns: a few queries for all of them.

One query for each column takes milliseconds, and one with thousands of expressions takes longer
for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow.compute as pc

from training.data.engine.engine import count_distinct, ident, row

WIDE = 300  # columns, from which planning a query over all of them takes longer than running it
PLANNING = "statistics_propagation,common_subexpressions,expression_rewriter,column_lifetime"
AT_ONCE = 100  # columns of one query
CELLS = 4_000_000  # values that are read at once


def plan_quickly(connection: duckdb.DuckDBPyConnection, columns: int) -> None:
    """Leave out steps of planning whose time grows faster than the columns, if there are many.

    Results are the same.
    """
    if columns >= WIDE:
        connection.execute(f"set disabled_optimizers = '{PLANNING}'")


def parts_of(names: Sequence[str], size: int = AT_ONCE) -> Iterator[Sequence[str]]:
    """Yield the names in parts of at most so many.

    >>> list(parts_of(["a", "b", "c"], 2))
    [['a', 'b'], ['c']]
    """
    for start in range(0, len(names), size):
        yield names[start : start + size]


def figures_of(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    relation: str,
    figures: Callable[[str], Sequence[str]],
) -> dict[str, tuple[Any, ...]]:
    """Return aggregates of each column of a relation.

    Args:
        connection: the engine.
        names: the columns.
        relation: SQL relation; it is scanned once for a hundred columns.
        figures: takes a column as SQL and returns SQL of its aggregates, as many for each.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for part in parts_of(names):
        each = [figures(ident(name)) for name in part]
        values = iter(
            row(connection, f"select {', '.join(sql for e in each for sql in e)} from {relation}")
        )
        found |= {name: tuple(next(values) for _ in e) for name, e in zip(part, each, strict=True)}
    return found


def count_each_distinct(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str], relation: str
) -> dict[str, int]:
    """Return the number of distinct non-null values of each column of a relation.

    Columns of few rows are read together. Those of many rows are grouped one by one, which spills
    to disk. Values must be without NaN and -0.0.
    """
    total = int(row(connection, f"select count(*) from {relation}")[0]) if names else 0
    at_once = min(AT_ONCE, CELLS // max(1, total))
    if at_once < 2:
        return {name: count_distinct(connection, ident(name), relation) for name in names}
    found: dict[str, int] = {}
    for part in parts_of(names, at_once):
        listed = ", ".join(map(ident, part))
        table = connection.sql(f"select {listed} from {relation}").to_arrow_table()
        found |= {n: int(pc.count_distinct(table[n], mode="only_valid").as_py()) for n in part}
    return found
