"""Columns of a sample of few rows as codes, by which many columns are compared without a query.

A query that compares one column with sixty others takes a tenth of a second, and a wide table has
hundreds of columns to compare. Shapes: N rows in the order of the sample, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from training.data.draft.profile import SAMPLE, Profile
from training.data.engine.engine import ident

MOST_ROWS = 40_000
Codes = NDArray[np.int64]


class SampleCodes:
    """Codes of columns of the sample: equal values have one code, nulls too."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._last: tuple[str, Codes | None] = ("", None)
        self._others: dict[str, Codes | None] = {}

    def alike(
        self, column: Profile, others: Sequence[Profile]
    ) -> tuple[Codes, Codes, list[float]] | None:
        """Return within how many values of a column each other column is constant.

        Returns:
            Rows of a value [K], from 2; how many values have so many rows [K]; and of these values
            those within which each other column is constant. None if there are too many rows, or
            values that have no code.
        """
        codes = self._of(column)
        values = self._matrix(others) if codes is not None else None
        if codes is None or values is None:
            return None
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(codes[order]) > 0])
        sizes = np.diff(np.r_[starts, len(order)])
        several, ordered = sizes > 1, values[:, order]
        low = np.minimum.reduceat(ordered, starts, axis=1)
        same = low == np.maximum.reduceat(ordered, starts, axis=1)
        rows, counts = np.unique(sizes[several], return_counts=True)
        return rows, counts, [float(n) for n in same[:, several].sum(axis=1)]

    def runs(self, column: Profile) -> tuple[int, int] | None:
        """Return how many runs of one value there are, and the rows of the most frequent value."""
        codes = self._of(column)
        if codes is None or not len(codes):
            return None
        return 1 + int((codes[1:] != codes[:-1]).sum()), int(np.bincount(codes).max())

    def outside_modes(self, columns: Sequence[Profile]) -> list[int] | None:
        """Return in how many rows each column differs from its most frequent value, or is null.

        None if there are too many rows, or values that have no code.
        """
        if not columns or max(c.present for c in columns) > MOST_ROWS:
            return None
        values = self._read([c.name for c in columns])
        found = [len(v) - int(np.bincount(v[v >= 0]).max()) for v in values if v is not None]
        return found if len(found) == len(columns) else None

    def _of(self, column: Profile) -> Codes | None:
        """Return the codes of a column without nulls, read once for both questions."""
        if column.present > MOST_ROWS:
            return None
        if self._last[0] != column.name:
            self._last = (column.name, self._read([column.name])[0])
        return self._last[1]

    def _matrix(self, columns: Sequence[Profile]) -> Codes | None:
        """Return codes [C, N]; columns that were asked for before are not read again."""
        missing = [c.name for c in columns if c.name not in self._others]
        self._others |= dict(zip(missing, self._read(missing), strict=True))
        found = [codes for c in columns if (codes := self._others[c.name]) is not None]
        return np.stack(found) if len(found) == len(columns) else None

    def _read(self, names: Sequence[str]) -> list[Codes | None]:
        if not names:
            return []
        listed = ", ".join(map(ident, names))
        table = self._connection.sql(f"select {listed} from {SAMPLE}").to_arrow_table()
        return [_codes(table.column(place)) for place in range(len(names))]


def _codes(values: pa.ChunkedArray) -> Codes | None:
    """Return codes [N] of values, -1 for null; None if they cannot be compared."""
    try:
        if pa.types.is_floating(values.type):  # 0.0 and -0.0 are one value, as is every NaN
            numbers = values.cast(pa.float64()).to_numpy() + 0.0
            codes = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
            codes[values.is_null().to_numpy()] = -1
            return codes
        indices = values.combine_chunks().dictionary_encode().indices
        return np.asarray(indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
    except pa.ArrowNotImplementedError:
        return None
