"""Rows in the order of the hash of their id, in memory: one read, one sort of the hashes, and each column gathered once.

The engine's own sort carries all columns through its runs, which takes twice as long.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

HASH = "__hash"
HASH_BYTES = 16
BATCH_ROWS = 65_536
DISTINCT_SHARE = 0.25  # of a first batch's texts, up to which they are kept as places in a dictionary
DTYPES = {pa.float64(): np.float64, pa.int64(): np.int64}


def hash_sorted(connection: duckdb.DuckDBPyConnection, relation: str, rows: int) -> tuple[pa.Table, bool]:
    """The rows of a relation with `__id`, ordered by `md5(__id)` as text, one chunk a column; and whether no two ids are equal.

    Args:
        connection: the engine.
        relation: SQL relation; texts of few values come as dictionaries.
        rows: how many it has at most.
    """
    reader = connection.sql(f"select *, md5_number(__id) as {HASH} from {relation}").to_arrow_reader(BATCH_ROWS)
    names, hashes = reader.schema.names[:-1], [pa.array([], reader.schema.types[-1])]
    columns = [_Numbers(rows, kind) if kind in DTYPES else _Others(kind) for kind in reader.schema.types[:-1]]
    for batch in reader:
        hashes.append(batch.column(len(names)))
        for column, values in zip(columns, batch.columns, strict=False):
            column.add(values)
    order, ids_differ = hash_order(pa.concat_arrays(hashes))
    gathered = []
    while columns:  # each is let go as soon as it is gathered
        gathered.append(columns.pop(0).gathered(order))
    return pa.table(gathered, names=names), ids_differ


def hash_order(hashes: pa.Decimal128Array) -> tuple[np.ndarray, bool]:
    """Places [N] of the rows in the order of their hash, and whether all hashes differ.

    Args:
        hashes: the engine's `md5_number`: a number whose bytes in memory are those of the hash, the first digit foremost.
    """
    first, second = _halves(hashes)
    order = np.argsort(first)
    met = np.flatnonzero(first[order[1:]] == first[order[:-1]])
    if not len(met):
        return order, True
    order = np.lexsort((second, first))
    before, after = order[met], order[met + 1]  # equal first halves lie in the same places however ties are broken
    return order, not bool((second[before] == second[after]).any())


def _halves(hashes: pa.Decimal128Array) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second 64 bits of each hash, uint64 [N] each."""
    if not len(hashes):
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    both = np.frombuffer(hashes.buffers()[1], ">u8", 2 * len(hashes), hashes.offset * HASH_BYTES).reshape(-1, 2)
    return both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)


class _Numbers:
    """A column of numbers of 8 bytes in memory of NumPy, which asks the system for large pages: half the time where memory is new."""

    def __init__(self, rows: int, kind: pa.DataType) -> None:
        self._values, self._kind, self._rows = np.empty(rows, DTYPES[kind]), kind, 0
        self._known: np.ndarray | None = None  # which values are not null, from the first null on

    def add(self, values: pa.Array) -> None:
        """The next values as they are read."""
        here = slice(self._rows, self._rows + len(values))
        self._rows = here.stop
        self._values[here] = np.frombuffer(values.buffers()[1], self._values.dtype, len(values), values.offset * 8)
        if values.null_count and self._known is None:
            self._known = np.ones(len(self._values), bool)
        if self._known is not None:
            self._known[here] = values.is_valid()

    def gathered(self, order: np.ndarray) -> pa.Array:
        """The values in an order."""
        taken, known = np.empty(len(order), self._values.dtype), None
        np.take(self._values, order, out=taken, mode="clip")  # places are within bounds; with "raise" NumPy would write into a copy first
        if self._known is not None:
            known = pa.py_buffer(np.packbits(self._known[order], bitorder="little"))
        return pa.Array.from_buffers(self._kind, len(taken), [known, pa.py_buffer(taken)])


class _Others:
    """A column of anything else; texts of few values as places in a dictionary."""

    def __init__(self, kind: pa.DataType) -> None:
        self._chunks, self._kind, self._coded = list[pa.Array](), kind, pa.types.is_string(kind)

    def add(self, values: pa.Array) -> None:
        """The next values as they are read."""
        if self._coded:
            coded = values.dictionary_encode()
            self._coded = bool(self._chunks) or len(coded.dictionary) <= DISTINCT_SHARE * len(values)
            values = coded if self._coded else values
        self._chunks.append(values)

    def gathered(self, order: np.ndarray) -> pa.Array:
        """The values in an order."""
        found = pa.chunked_array(self._chunks, self._chunks[0].type if self._chunks else self._kind)
        return (found.unify_dictionaries() if self._coded else found).combine_chunks().take(pa.array(order))
