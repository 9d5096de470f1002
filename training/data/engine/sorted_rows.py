"""Rows in the order of the hash of their id, sorted in memory.

It takes one read, one sort of the hashes, and one gather per column. The engine's own sort carries
all columns through its runs, which takes twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.engine.threads import at_once, beside

HASH = "__hash"
HASH_BYTES = 16
BATCH_ROWS = 65_536
DISTINCT_SHARE = (
    0.25  # of a first batch's texts; up to this share they are kept as dictionary indices
)
WIDTHS = (8, 16, 32)  # bytes that short texts are padded to
DTYPES = {pa.float64(): np.float64, pa.int64(): np.int64}


def hash_sorted(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    rows: int,
    plain: Mapping[str, Column] = MappingProxyType({}),
) -> tuple[pa.Table, bool]:
    """Return rows with `__id`, ordered by `md5(__id)` as text, and whether all ids differ.

    Columns have one chunk each.

    Args:
        connection: the engine.
        relation: SQL relation; texts of few values come as dictionaries.
        rows: its largest number of rows.
        plain: further columns of the same rows, read without the engine. Columns that the relation
            has too must be float64, and are compared value by value.

    Raises:
        RuntimeError: they differ, so that the rows would be mixed up.
    """
    reader = connection.sql(
        f"select *, md5_number(__id) as {HASH} from {relation}"
    ).to_arrow_reader(BATCH_ROWS)
    columns: dict[str, Column] = {
        field.name: Numbers(rows, field.type) if field.type in DTYPES else Texts(field.type, rows)
        for field in reader.schema
        if field.name != HASH and field.name not in plain
    }
    hashes = _filled(reader, columns, plain)
    columns |= plain
    order, ids_differ = hash_order(pa.concat_arrays(hashes))
    hashes.clear()
    # memory of numbers that were gathered already: new memory costs more than the numbers
    rooms = list[np.ndarray]()
    waiting = dict(columns)
    names = list(columns)
    columns.clear()
    # each is released as soon as it is gathered
    gathered = at_once(lambda name: waiting.pop(name).gathered(order, rooms), names)
    return pa.table(gathered, names=names), ids_differ


def _filled(
    reader: pa.RecordBatchReader, columns: Mapping[str, Column], plain: Mapping[str, Column]
) -> list[pa.Array]:
    """Fill the columns, compare those of `plain` that are read too, and return the hashes."""
    hashes, count = [pa.array([], reader.schema.field(HASH).type)], 0
    witnesses = [name for name in plain if name in reader.schema.names]

    def add(batch: pa.RecordBatch) -> None:
        """Add one batch to the columns."""
        nonlocal count
        hashes.append(batch.column(HASH))
        for name, column in columns.items():
            column.add(batch.column(name))
        for name in witnesses:
            if not plain[name].holds(count, batch.column(name)):
                raise RuntimeError(
                    f"the engine and Arrow read the rows of the source differently: {name!r}"
                    f" differs after row {count}"
                )
        count += len(batch)

    with beside(add) as add_beside:
        for batch in reader:
            add_beside(batch)
    if any(column.rows != count for column in plain.values()):
        raise RuntimeError(f"the engine read {count} rows of the source, Arrow another number")
    return hashes


def hash_order(hashes: pa.Decimal128Array) -> tuple[np.ndarray, bool]:
    """Return indices [N] of the rows in the order of their hash, and whether all hashes differ.

    Args:
        hashes: the engine's `md5_number`: a number whose bytes in memory are those of the hash, the
            first digit first.
    """
    halves = _halves(hashes)
    packed, bits = halves[:, 0].astype(np.uint64), max(1, (len(hashes) - 1).bit_length())
    # as many of the first digits as leave room for the row's index: sorting numbers takes a tenth
    # of an indirect sort
    packed >>= np.uint64(bits)
    packed <<= np.uint64(bits)
    packed |= np.arange(len(packed), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << bits) - 1)).view(np.int64)
    packed >>= np.uint64(bits)
    met = np.flatnonzero(packed[1:] == packed[:-1])
    if not len(met):
        return order, True
    # rows with the same digits are adjacent: only the order among them is open
    places = np.union1d(met, met + 1)
    alike = halves[order[places]].astype(np.uint64)
    settled = np.lexsort((alike[:, 1], alike[:, 0]))
    order[places] = order[places][settled]
    return order, not bool((alike[settled][1:] == alike[settled][:-1]).all(axis=1).any())


def _halves(hashes: pa.Decimal128Array) -> np.ndarray:
    """Return the first and the second 64 bits of each hash [N, 2], the first digit first."""
    if not len(hashes):
        return np.empty((0, 2), ">u8")
    return np.frombuffer(
        hashes.buffers()[1], ">u8", 2 * len(hashes), hashes.offset * HASH_BYTES
    ).reshape(-1, 2)


class Numbers:
    """Column of 8-byte numbers in NumPy memory.

    NumPy asks the system for large pages, which halves the time for new memory.
    """

    def __init__(self, rows: int, kind: pa.DataType) -> None:
        self._values, self._kind, self.rows = np.empty(rows, DTYPES[kind]), kind, 0
        self._known: np.ndarray | None = None  # non-null mask, from the first null on

    def add(self, values: pa.Array) -> None:
        """Add the next values as they are read, of the column's own type."""
        here = self._next(values)
        self._values[here] = np.frombuffer(
            values.buffers()[1], self._values.dtype, len(values), values.offset * 8
        )
        if values.null_count:
            self._mark(here, values.is_valid().to_numpy(zero_copy_only=False))

    def add_plain(self, values: pa.Array) -> None:
        """Add the next values, of any type of number, as float64: NaN is null, -0.0 is 0.0."""
        here, kind = self._next(values), values.type.to_pandas_dtype()
        given = np.frombuffer(values.buffers()[1], kind, len(values), values.offset * kind().nbytes)
        taken = self._values[here]
        np.add(given, 0.0, out=taken, dtype=np.float64)
        if values.null_count:
            taken[~values.is_valid().to_numpy(zero_copy_only=False)] = np.nan
        nulls = np.isnan(taken)
        if nulls.any():
            self._mark(here, ~nulls)

    def holds(self, start: int, values: pa.Array) -> bool:
        """Return True if the column has these values, of its own type, from a row on."""
        here = slice(start, start + len(values))
        known = values.is_valid().to_numpy(zero_copy_only=False)
        mine = np.ones(len(values), bool) if self._known is None else self._known[here]
        if here.stop > self.rows or not np.array_equal(known, mine):
            return False
        given = np.frombuffer(
            values.buffers()[1], self._values.dtype, len(values), values.offset * 8
        )
        return bool(np.array_equal(given[known], self._values[here][known]))

    def _next(self, values: pa.Array) -> slice:
        """Return the places of the next values."""
        here = slice(self.rows, self.rows + len(values))
        self.rows = here.stop
        return here

    def _mark(self, here: slice, known: np.ndarray) -> None:
        """Note which values are not null."""
        if self._known is None:
            self._known = np.ones(len(self._values), bool)
        self._known[here] = known

    def gathered(self, order: np.ndarray, rooms: list[np.ndarray]) -> pa.Array:
        """Return the values in an order, in memory from another column.

        The column's own memory is left to the next.
        """
        taken, known = (
            (rooms.pop() if rooms else np.empty(len(self._values), np.int64)).view(
                self._values.dtype
            )[: len(order)],
            None,
        )
        # indices are within bounds; with "raise" NumPy would write into a copy first
        np.take(self._values, order, out=taken, mode="clip")
        if self._known is not None:
            known = pa.py_buffer(np.packbits(self._known[order], bitorder="little"))
        rooms.append(self._values.view(np.int64))
        return pa.Array.from_buffers(self._kind, len(taken), [known, pa.py_buffer(taken)])


class Texts:
    """Column of any other type.

    Texts with few values are dictionary indices, short ones are padded to one width.
    """

    def __init__(self, kind: pa.DataType, rows: int) -> None:
        self._chunks, self._kind, self._most, self.rows = list[pa.Array](), kind, rows, 0
        self._coded = pa.types.is_string(kind)
        self._padded: _Padded | None = None

    def add(self, values: pa.Array) -> None:
        """Add the next values as they are read."""
        self.rows += len(values)
        if self._padded is not None:
            if self._padded.add(values):
                return
            # earlier ones stay as they are
            self._chunks, self._padded = (self._padded.texts(), None)
        elif not self._chunks and pa.types.is_string(self._kind) and not few_texts(values):
            self._coded, padded = False, _Padded(self._most)
            if padded.add(values):
                self._padded = padded
                return
        self._chunks.append(values.dictionary_encode() if self._coded else values)

    @property
    def is_padded(self) -> bool:
        """Return True if its values are short texts, padded to one width."""
        return self._padded is not None

    def holds(self, start: int, values: pa.Array) -> bool:
        """Return False: texts are not compared."""
        return False

    def gathered(self, order: np.ndarray, rooms: list[np.ndarray]) -> pa.Array:
        """Return the values in an order, once."""
        if self._padded is not None:
            return pa.chunked_array(self._padded.texts(order), self._kind).combine_chunks()
        chunks, self._chunks = self._chunks, []  # released here, whoever still has the column
        found = pa.chunked_array(chunks, chunks[0].type if chunks else self._kind)
        return (
            (found.unify_dictionaries() if self._coded else found)
            .combine_chunks()
            .take(pa.array(order))
        )


Column = Numbers | Texts


def few_texts(values: pa.Array) -> bool:
    """Return True if texts have so few values that they are kept as dictionary indices."""
    return len(values.unique()) <= DISTINCT_SHARE * len(values)


class _Padded:
    """Texts of up to 32 bytes, each padded with NUL to one width.

    Fixed widths are gathered four times as fast as texts.
    """

    def __init__(self, rows: int) -> None:
        self._values, self._rows = np.empty((rows, 0), np.uint8), 0

    def add(self, values: pa.Array) -> bool:
        """Take the next texts; return False without taking any if one does not fit.

        A text does not fit if it is null, too long, or contains NUL.
        """
        longest = pc.max(pc.binary_length(values)).as_py() or 0
        width = next((w for w in WIDTHS if max(longest, self._values.shape[1]) <= w), None)
        if width is None or values.null_count or not _bytes_of(values).all():
            return False
        if width > self._values.shape[1]:
            narrow, self._values = (
                self._values[: self._rows],
                np.zeros((len(self._values), width), np.uint8),
            )
            self._values[: self._rows, : narrow.shape[1]] = narrow
        padded = pc.ascii_rpad(values, width, "\0")  # works byte by byte, with any content
        self._values[self._rows : self._rows + len(values)] = _bytes_of(padded).reshape(-1, width)
        self._rows += len(values)
        return True

    def texts(self, order: np.ndarray | None = None) -> list[pa.Array]:
        """Return the texts block by block, in an order if one is given."""
        width, places = self._values.shape[1], np.arange(self._rows) if order is None else order
        rows, ends = (
            self._values.view(f"V{width}").reshape(-1),
            np.arange(BATCH_ROWS + 1, dtype=np.int32) * width,
        )
        found = []
        for start in range(0, len(places), BATCH_ROWS):
            # indices are within bounds
            block = rows.take(places[start : start + BATCH_ROWS], mode="clip")
            text = pa.StringArray.from_buffers(len(block), pa.py_buffer(ends), pa.py_buffer(block))
            found.append(pc.ascii_rtrim(text, "\0"))
        return found


def _bytes_of(values: pa.StringArray) -> np.ndarray:
    """Return the bytes of all texts, one after the other."""
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return np.frombuffer(values.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
