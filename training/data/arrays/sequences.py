"""Documents of a split as sequences of one length, with each target token in exactly one of them.

Training gathers batches from these arrays. For the tokens of a window, see serving_text/windows.py.
Train windows do not overlap. Those of val and test begin `stride` tokens apart, so that later ones
have context. With packing `documents`, several windows share a sequence under different segment
numbers, by which the model separates them; with `windows` each has its own. A target never belongs
to another document or to padding: such positions hold -100.

N sequences of T positions, D documents, P windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.digest import settle
from schemas.errors import DataError, IntegrityError
from schemas.records import TableRef, TableSpec, TokenStats
from training.data.arrays.packing import pack
from training.data.engine.batches import arrow_batches
from training.data.serving_text.tokenizers import END, UNKNOWN, encode, framed
from training.data.serving_text.windows import Windows, cut

NO_TARGET = -100  # torch's ignore_index
BATCH_ROWS = 4096
CHUNK_POSITIONS = 4_000_000
JOINT = " + "  # between the ids of documents that share a sequence
NAMES = ("tokens", "segments", "label")


class Layout(NamedTuple):
    """Windows in the order of their positions.

    `row`, `slot` (segment number minus one) and `offset` in the row, int64 [P] each.
    """

    windows: Windows
    row: np.ndarray
    slot: np.ndarray
    offset: np.ndarray

    @property
    def num_rows(self) -> int:
        """Return the number of sequences."""
        return int(self.row[-1]) + 1


def write_sequences(
    folder: Path, table: TableRef, side: str, spec: TableSpec, tokens: TokenStats
) -> None:
    """Write the arrays and Parquet files of a split, flush them and read them back.

    They are `tokens`, `segments`, `label` (and `weight`), `ids.parquet` and `documents.parquet`.

    Args:
        folder: exists.
        table: the rows of the split.
        side: train, val or test.
        spec: names the columns.
        tokens: the vocabulary that was fitted on train, and the form of the sequences.

    Raises:
        DataError: the tokenizer refuses a text.
        IntegrityError: the table has other rows than recorded, or a written file does not hold each
            target once.
    """
    flat = folder / "flat.bin"
    documents = _tokenize(flat, table, side, spec, tokens)
    targets = documents.column("tokens").to_numpy()
    layout = lay_out(targets, tokens, tokens.context if side == "train" else tokens.stride)
    _write_arrays(folder, flat, targets, layout, tokens.context)
    flat.unlink()
    if spec.weight is not None:
        _save(
            folder / "weight.npy",
            documents.column("weight").to_numpy()[layout.windows.document].astype(np.float32),
        )
    _write_parquet(folder / "documents.parquet", documents)
    _write_parquet(folder / "ids.parquet", _ids(documents, layout))
    _check(folder, side, int(targets.sum()), tokens)


def lay_out(targets: np.ndarray, tokens: TokenStats, stride: int) -> Layout:
    """Return the position of each window of documents with this many targets [D]."""
    windows = cut(targets, tokens.context, stride)
    row = (
        pack(windows.length, tokens.context)
        if tokens.packing == "documents"
        else np.arange(len(windows.document))
    )
    order = np.argsort(row, kind="stable")
    row, windows = row[order], Windows(*(part[order] for part in windows))
    first = np.searchsorted(row, row)  # the first window of each window's row
    ends = np.cumsum(windows.length)
    begins = ends - windows.length
    return Layout(windows, row, np.arange(len(row)) - first, begins - begins[first])


def _tokenize(
    flat: Path, table: TableRef, side: str, spec: TableSpec, tokens: TokenStats
) -> pa.Table:
    """Write begin, tokens and end of each document one after the other, int32.

    Return the facts known about each document.
    """
    vocabulary = tokens.model_dump()
    columns = ["__id", "__group", "__time", tokens.name] + (
        [spec.weight] if spec.weight is not None else []
    )
    parts = []
    with flat.open("wb") as file:
        for batch in arrow_batches(table.file.file, BATCH_ROWS, columns):
            try:
                numbers, lengths = encode(batch.column(tokens.name), vocabulary)
            except ValueError as error:
                raise DataError(f"{side} side, column {tokens.name!r}: {error}") from error
            file.write(framed(numbers, lengths).tobytes())
            unknown = np.bincount(
                np.repeat(np.arange(len(batch)), lengths),
                weights=numbers == UNKNOWN,
                minlength=len(batch),
            )
            own = {
                "tokens": lengths + 1,
                "characters": pc.utf8_length(batch.column(tokens.name)).cast(pa.int64()),
                "unknown": unknown.astype(np.int64),
            }
            own |= {"weight": batch.column(spec.weight)} if spec.weight is not None else {}
            parts.append(
                pa.table({name: batch.column(name) for name in ("__id", "__group", "__time")} | own)
            )
    documents = pa.concat_tables(parts).combine_chunks() if parts else pa.table({})
    if documents.num_rows != table.rows:
        raise IntegrityError(
            f"{table.file.path}: does not hold the {table.rows} rows recorded; split again"
        )
    return documents


def _write_arrays(
    folder: Path, flat: Path, targets: np.ndarray, layout: Layout, context: int
) -> None:
    """Gather the windows into rows, a bounded number of rows at a time."""
    source = np.memmap(flat, dtype=np.int32, mode="r")
    document_start = np.cumsum(targets + 1) - (targets + 1)
    shape = (layout.num_rows, context)
    arrays = {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy", mode="w+", dtype=np.int32, shape=shape
        )
        for name in NAMES
    }
    for begin, end in _chunks(layout.num_rows, max(1, CHUNK_POSITIONS // context)):
        some = slice(*np.searchsorted(layout.row, [begin, end]).tolist())
        filled = _fill(source, document_start, layout, some, (begin, end - begin, context))
        for name, block in zip(NAMES, filled, strict=True):
            arrays[name][begin:end] = block
    for name, array in arrays.items():
        array.flush()
        settle(folder / f"{name}.npy")


def _fill(
    source: np.ndarray,
    document_start: np.ndarray,
    layout: Layout,
    some: slice,
    rows: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, segments and targets of rows (first, number, T) whose windows are `some`."""
    first, count, context = rows
    document, start, length, skip = (part[some] for part in layout.windows)
    # of each position within its window
    place = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    taken = np.repeat(document_start[document] + start, length) + place
    into = np.repeat((layout.row[some] - first) * context + layout.offset[some], length) + place
    tokens, segments = (np.zeros(count * context, dtype=np.int32) for _ in range(2))
    label = np.full(count * context, NO_TARGET, dtype=np.int32)
    tokens[into], segments[into] = source[taken], np.repeat(layout.slot[some] + 1, length)
    label[into] = np.where(place >= np.repeat(skip, length), source[taken + 1], NO_TARGET)
    return (
        tokens.reshape(count, context),
        segments.reshape(count, context),
        label.reshape(count, context),
    )


def _chunks(rows: int, size: int) -> Iterator[tuple[int, int]]:
    yield from ((begin, min(begin + size, rows)) for begin in range(0, rows, size))


def _ids(documents: pa.Table, layout: Layout) -> pa.Table:
    """Return for each sequence the ids of its documents as one text.

    Also return, by segment, the number of the document and where in it the window begins.
    """
    starts = np.searchsorted(layout.row, np.arange(layout.num_rows + 1))
    numbers, begins = (
        pa.ListArray.from_arrays(starts.astype(np.int32), part)
        for part in (layout.windows.document, layout.windows.start)
    )
    names = pa.ListArray.from_arrays(
        starts.astype(np.int32),
        documents.column("__id").combine_chunks().take(pa.array(layout.windows.document)),
    )
    rows = layout.num_rows
    ids = pc.binary_join(names, JOINT)
    return pa.table(
        {
            "__id": ids,
            "__group": pa.nulls(rows, pa.string()),
            "__time": pa.nulls(rows, pa.float64()),
            "documents": numbers,
            "starts": begins,
        }
    )


def _write_parquet(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd")
    settle(path)


def _save(path: Path, array: np.ndarray) -> None:
    np.save(path, array)
    settle(path)


def _check(folder: Path, side: str, targets: int, tokens: TokenStats) -> None:
    """Read the arrays back and check them.

    There are as many targets as the documents have, and all targets and tokens are within the
    vocabulary.
    """
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in NAMES}
    found = 0
    for begin, end in _chunks(len(arrays["label"]), max(1, CHUNK_POSITIONS // tokens.context)):
        block = {name: np.asarray(array[begin:end]) for name, array in arrays.items()}
        asked = block["label"] != NO_TARGET
        found += int(asked.sum())
        outside = (
            (block["tokens"] < 0)
            | (block["tokens"] >= tokens.size)
            | (asked & ((block["label"] < END) | (block["label"] >= tokens.size)))
        )
        if outside.any() or (asked & (block["segments"] == 0)).any():
            raise IntegrityError(
                f"{side} side: tokens outside 0 to {tokens.size - 1}, or targets in padding, after"
                " writing; check the disk"
            )
    if found != targets:
        raise IntegrityError(
            f"{side} side: expected {targets} target tokens, found {found} after writing; check the"
            " disk"
        )
