"""Figures of number columns of a sample of few rows, in NumPy.

An SQL query of their figures takes a millisecond for each column, and a wide table has thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from training.data.engine.engine import ident
from training.data.engine.many_columns import AT_ONCE, parts_of

FLOATS = {"FLOAT", "DOUBLE"}
INTEGERS = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
}


class NumberFigures(NamedTuple):
    """Non-null rows of a column, its different values and extremes, as the engine counts them.

    NaN is the largest number. The extremes are NaN where all rows are null.
    """

    present: int
    distinct: int
    low: float
    high: float
    is_whole: bool


def number_figures(
    connection: duckdb.DuckDBPyConnection, relation: str, types: Mapping[str, str]
) -> Iterator[tuple[str, NumberFigures]]:
    """Yield the figures of each column whose type is a float or an integer of up to 64 bits.

    Args:
        connection: the engine.
        relation: SQL relation of few rows.
        types: type of each of its columns.
    """
    names = [name for name, kind in types.items() if kind in FLOATS | INTEGERS]
    for part in parts_of(names, 10 * AT_ONCE):
        listed = ", ".join(map(ident, part))
        table = connection.sql(f"select {listed} from {relation}").to_arrow_table()
        for place, name in enumerate(part):
            yield name, _figures(table.column(place))


def _figures(column: pa.ChunkedArray) -> NumberFigures:
    values = np.sort(column.drop_null().to_numpy())
    is_integer = values.dtype.kind in "iu"
    if not len(values):
        return NumberFigures(0, 0, math.nan, math.nan, pa.types.is_integer(column.type))
    finite = values if is_integer else values[np.isfinite(values)]
    # each NaN, sorted to the end, differs from its neighbour
    nans = 0 if is_integer else int(np.isnan(values).sum())
    steps = int((values[1:] != values[:-1]).sum())
    distinct = 1 + steps - max(0, nans - 1)
    whole = is_integer or (len(finite) == len(values) and bool((finite == np.trunc(finite)).all()))
    return NumberFigures(len(values), distinct, float(values[0]), float(values[-1]), whole)
