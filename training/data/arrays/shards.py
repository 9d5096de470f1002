"""Materialised arrays: each split as contiguous `.npy` files, shared by ranks in the page cache.

Rows keep the order of the split's files (the hash of the id), so that the arrays do not depend on
the engine. Everything is written into a temporary folder, checked from the written files, and only
then renamed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import digest
from schemas.config import DataConfig, Declaration, SplitName
from schemas.errors import DataError, IntegrityError
from schemas.records import (
    ArraysRef,
    FileRef,
    SplitArrays,
    SplitTables,
    Statistics,
    TableRef,
    TableSpec,
    TensorStats,
    ValidatedTable,
    digest_of,
)
from schemas.scratch import scratch_folder
from training.data.arrays.apply import CategoryCodes, encode_label, encode_labels, transform_columns
from training.data.arrays.bag_array import encode_bag
from training.data.arrays.block_checks import check_block
from training.data.arrays.new_nulls import refuse_new_nulls
from training.data.arrays.sequences import write_sequences
from training.data.arrays.window_arrays import read_windows, steps_of, write_windows
from training.data.engine.engine import TableWriter, chosen_engine
from training.data.engine.in_memory import batches
from training.data.engine.threads import at_once, beside, one_by_one
from training.data.fit.tensors import rows_per_batch, tensor_array

SIDES: tuple[SplitName, ...] = ("train", "val", "test")
BATCH_ROWS = 16_384  # a column of so many stays in the processor's cache during the work
Maker = Callable[[pa.RecordBatch], np.ndarray]
# folder of the arrays, split, its name, meaning of its columns, fitted statistics or vocabulary
Writer = Callable[[Path, TableRef, str, TableSpec, Statistics], None]
# array name → dtype, shape of a row, function that makes it from a batch
Layout = dict[str, tuple[str, tuple[int, ...], Maker]]


def materialise(
    split: SplitTables,
    validated: ValidatedTable,
    statistics: Statistics,
    declaration: Declaration,
    out_dir: Path,
) -> ArraysRef:
    """Write the three splits as arrays, as a whole or not at all, with a digest over every file.

    Each split is streamed in batches; memory does not grow with the rows. An existing `out_dir` is
    replaced.

    Args:
        split: the tables that the split wrote.
        validated: holds the columns' meaning.
        statistics: fitted on exactly `split.train`.
        declaration: decides whether the label is a class or a value.
        out_dir: folder of the arrays; its parent is created.

    Raises:
        IntegrityError: the statistics belong to another train table, or a written file differs from
            its table.
        DataError: nulls where train has none, classes that train lacks, values that are not finite.
    """
    if statistics.train_sha256 != split.train.file.sha256:
        raise IntegrityError(
            "the statistics were fitted on another train table than the one to be materialised; fit"
            " again on split.train"
        )
    if not _fit_for(statistics, declaration):
        raise IntegrityError(
            f"the statistics do not fit task {declaration.task.kind!r}; fit again with this"
            " declaration"
        )
    target = Path(out_dir).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent, target.name) as scratch:
        temporary = scratch / "new"
        temporary.mkdir(mode=0o755)
        with _writer(declaration) as write:
            several = (
                at_once
                if declaration.data.engine == "duckdb" and declaration.data.memory_bytes is None
                else one_by_one
            )
            several(
                lambda side: _write_side(
                    temporary / side,
                    split.side(side),
                    side,
                    validated.spec,
                    statistics,
                    declaration.data,
                    write,
                ),
                SIDES,
            )
        digest.write_atomic(temporary / "statistics.json", statistics.model_dump_json(indent=1))
        _publish(temporary, target)
    sides = {side: _side_ref(target / side, split.side(side).rows) for side in SIDES}
    statistics_file = digest.file_ref(target / "statistics.json")
    parts = {
        f"{side}/{name}": ref.sha256
        for side, arrays in sides.items()
        for name, ref in _files(arrays).items()
    }
    return ArraysRef(
        directory=str(target),
        **sides,
        statistics=statistics_file,
        sha256=digest_of({**parts, "statistics": statistics_file.sha256}),
    )


def materialise_rows(
    table: TableRef, spec: TableSpec, statistics: Statistics, out_dir: Path
) -> SplitArrays:
    """Write rows as arrays with statistics fitted earlier on other rows, for scoring only.

    Args:
        table: rows as the split writes them.
        spec: what its columns are.
        statistics: of the model that scores them.
        out_dir: folder of the arrays, which must not exist.

    Raises:
        DataError: nulls where train had none, classes that train lacked, values that are not
            finite.
    """
    _write_side(Path(out_dir).absolute(), table, "scored", spec, statistics)
    return _side_ref(Path(out_dir).absolute(), table.rows)


def load_arrays(side: SplitArrays, verify: bool = True) -> dict[str, np.ndarray]:
    """Load a split's arrays, memory-mapped and read-only: name → array with `side.rows` rows.

    Args:
        side: the reference.
        verify: compare every file's SHA-256 with the recorded one; False if another process of this
            machine does.

    Raises:
        IntegrityError: a file is gone, truncated, altered (when verified), or has other rows than
            recorded.
    """
    arrays = {}
    for name, ref in side.arrays.items():
        path = digest.verify(ref) if verify else ref.file
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            if name in side.windows:
                arrays[name] = read_windows(side.windows[name], arrays[name], verify)
        except (OSError, ValueError) as error:
            raise IntegrityError(
                f"{path}: cannot be read as an array ({error}); prepare the data again"
            ) from error
        if len(arrays[name]) != side.rows:
            raise IntegrityError(
                f"{path}: expected {side.rows} rows, found {len(arrays[name])}; prepare the data"
                " again"
            )
    return arrays


def _fit_for(statistics: Statistics, declaration: Declaration) -> bool:
    """Return True if the statistics hold a vocabulary, or the declared kind or number of labels."""
    task = declaration.task
    if statistics.tokens is not None or task.kind == "causal_lm":
        return statistics.tokens is not None and task.kind == "causal_lm"
    if task.has_several or statistics.labels:
        return (
            task.has_several
            and all(label.kind == task.label(label.name).kind for label in statistics.labels)
            and bool(statistics.labels)
        )
    return bool(statistics.classes) != (task.kind in ("regression", "causal_lm"))


@contextmanager
def _writer(declaration: Declaration) -> Iterator[Writer]:
    """Return the writer of a split's arrays: this process, or the executors of `data.spark`."""
    if declaration.data.engine == "duckdb":
        yield _write_arrays
        return
    with chosen_engine(declaration.data) as spark:
        yield lambda folder, table, side, spec, statistics: _write_on(
            spark, folder, table, side, spec, statistics
        )


def _write_side(
    folder: Path,
    table: TableRef,
    side: str,
    spec: TableSpec,
    statistics: Statistics,
    data: DataConfig | None = None,
    write: Writer | None = None,
) -> None:
    """Write all files of one split, flushed to disk and checked."""
    digest.verify(table.file)
    if table.rows < 1:
        raise DataError(f"the {side} side has no rows; change split.fractions or data.filter")
    folder.mkdir()
    if statistics.tokens is not None:
        write_sequences(folder, table, side, spec, statistics.tokens)
        digest.fsync_folder(folder)
        return
    refuse_new_nulls(table, side, statistics, data)
    with beside(partial(_write_ids, table=table, spec=spec)) as write_ids:
        write_ids(folder / "ids.parquet")
        (write or _write_arrays)(folder, table, side, spec, statistics)
    for stats in (s for s in statistics.tensor if s.window):
        path = _paths(folder, [stats.key])[stats.key]
        np.save(path, write_windows(folder, path.stem, table.histories[stats.name], stats))
        digest.settle(path)
    _check_side(folder, side, table.rows, statistics)
    digest.fsync_folder(folder)


def _layout(spec: TableSpec, statistics: Statistics) -> Layout:
    """Return array name → dtype, shape of a row, and the function that makes it from a batch."""
    layout: Layout = {}
    if statistics.numeric:
        names = [s.name for s in statistics.numeric]
        layout["numeric"] = (
            "float32",
            (statistics.num_numeric,),
            lambda batch: transform_columns([_numbers(batch, n) for n in names], statistics),
        )
    if statistics.categorical:
        layout["categorical"] = ("int64", (len(statistics.categorical),), CategoryCodes(statistics))
    for stats in statistics.tensor:
        if not stats.window:
            layout[stats.key] = (stats.dtype, stats.shape, _tensor_maker(stats))
    for bag in statistics.bags:
        layout[bag.key] = ("int32", (bag.length,), partial(encode_bag, bag))
    if statistics.labels:
        layout["label"] = (
            "float32",
            (len(statistics.labels),),
            lambda batch: encode_labels(batch, statistics),
        )
    else:
        layout["label"] = (
            "int64" if statistics.classes else "float32",
            (),
            lambda batch: encode_label(batch.column(spec.label), statistics),
        )
    if spec.weight is not None:
        weight = spec.weight
        layout["weight"] = ("float32", (), lambda batch: _numbers(batch, weight).astype(np.float32))
    return layout


def _tensor_maker(s: TensorStats) -> Maker:
    return lambda batch: tensor_array(batch.column(s.name), s.name, s.shape, s.dtype)


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """Return a numeric column as float64 [N], null as NaN."""
    return np.asarray(batch.column(name).cast(pa.float64(), safe=False).to_numpy(False))


def _write_arrays(
    folder: Path, table: TableRef, side: str, spec: TableSpec, statistics: Statistics
) -> None:
    """Write all arrays of a split in one pass over its rows, streamed into files and flushed."""
    layout, rows = _layout(spec, statistics), 0
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(open(path, "wb"))
            for name, path in _paths(folder, layout).items()
        }
        for name, (dtype, shape, _) in layout.items():
            header = {
                "descr": np.dtype(dtype).str,
                "fortran_order": False,
                "shape": (table.rows, *shape),
            }
            np.lib.format.write_array_header_1_0(files[name], header)

        def put(made: dict[str, np.ndarray]) -> None:
            """Append the arrays of one batch to their files."""
            for name, array in made.items():
                files[name].write(array.data)

        write = stack.enter_context(beside(put))  # while the next ones are made
        for batch in batches(
            table,
            min(BATCH_ROWS, *(rows_per_batch(shape, dtype) for dtype, shape, _ in layout.values())),
            _columns(spec, statistics),
        ):
            rows += len(batch)
            write(
                {
                    name: np.ascontiguousarray(_made(make, batch, side), dtype=dtype)
                    for name, (dtype, _, make) in layout.items()
                }
            )
    for path in _paths(folder, layout).values():
        digest.settle(path)
    if rows != table.rows:
        raise IntegrityError(
            f"{table.file.path}: does not hold the {table.rows} rows recorded; split again"
        )


def _columns(spec: TableSpec, statistics: Statistics) -> list[str]:
    """Return the columns of a split that its arrays are made from."""
    features = [c for c in spec.features if c not in statistics.dropped]
    return [*features, *spec.label_columns] + ([spec.weight] if spec.weight is not None else [])


def _paths(folder: Path, layout: Iterable[str]) -> dict[str, Path]:
    """Return the files of the arrays.

    Names are quoted, because a column may hold `/` or `..` in its name.
    """
    return {name: folder / f"{quote(name, safe='')}.npy" for name in layout}


def _empty_arrays(folder: Path, rows: int, layout: Layout) -> dict[str, np.memmap]:
    """Create array files of their full size."""
    paths = _paths(folder, layout)
    return {
        name: np.lib.format.open_memmap(
            paths[name], mode="w+", dtype=np.dtype(dtype), shape=(rows, *shape)
        )
        for name, (dtype, shape, _) in layout.items()
    }


def _write_on(
    spark: Any, folder: Path, table: TableRef, side: str, spec: TableSpec, statistics: Statistics
) -> None:
    """Run `_write_arrays` on executors.

    Each row group of the split is one task, and its rows have their position in the files.
    """
    layout = _layout(spec, statistics)
    for array in _empty_arrays(folder, table.rows, layout).values():
        array.flush()
    footer = pq.read_metadata(table.file.file)
    counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    starts = [0, *np.cumsum(counts).tolist()]
    if starts[-1] != table.rows:
        raise IntegrityError(
            f"{table.file.path}: does not hold the {table.rows} rows recorded; split again"
        )

    def work(number: int) -> dict[str, str]:
        """Write one row group."""
        return {"error": write_group(folder, table, side, spec, statistics, number, starts[number])}

    if failed := [told["error"] for told in spark.on_executors(len(counts), work) if told["error"]]:
        raise DataError(failed[0])
    for path in _paths(folder, layout).values():
        digest.settle(path)


def write_group(
    folder: Path,
    table: TableRef,
    side: str,
    spec: TableSpec,
    statistics: Statistics,
    number: int,
    start: int,
) -> str:
    """Write the arrays of a row group into existing files; return the fault of a row, or "".

    The rows go to their positions by `pwrite`, because pages of a memory map that two hosts share
    on a network folder would overwrite each other.

    Args:
        folder: of the split's arrays.
        table: the split.
        side: its name, for messages.
        spec: what its columns are.
        statistics: fitted on train.
        number: of the row group.
        start: position of its first row.
    """
    layout = _layout(spec, statistics)
    rows = min(rows_per_batch(shape, dtype) for dtype, shape, _ in layout.values())
    with pq.ParquetFile(table.file.file) as file, ExitStack() as stack:
        outs = {
            name: stack.enter_context(open(path, "r+b"))
            for name, path in _paths(folder, layout).items()
        }
        maps = {name: np.load(path, mmap_mode="r") for name, path in _paths(folder, layout).items()}
        for batch in file.iter_batches(
            batch_size=rows, row_groups=[number], columns=_columns(spec, statistics)
        ):
            for name, (dtype, _, make) in layout.items():
                try:
                    made = np.ascontiguousarray(_made(make, batch, side), dtype=dtype)
                except DataError as error:
                    return str(error)
                _write_at(outs[name], made, maps[name].offset + start * maps[name].strides[0])
            start += len(batch)
        for out in outs.values():
            os.fsync(out.fileno())
    return ""


def _write_at(file: BinaryIO, values: np.ndarray, offset: int) -> None:
    data = values.reshape(-1).view(np.uint8).data
    while data:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


def _made(make: Maker, batch: pa.RecordBatch, side: str) -> np.ndarray:
    """Return the result of the function, with the split named in its errors."""
    try:
        return make(batch)
    except DataError as error:
        raise DataError(f"{side} side: {error}") from error


def _write_ids(target: Path, table: TableRef, spec: TableSpec) -> None:
    """Write `__id`, `__group`, `__time` and `label` of the rows in the order of the arrays.

    Labels are as given; several are named `label_<name>`.
    """
    labels = (
        {f"label_{name}": name for name in spec.labels}
        if spec.has_several_labels
        else {"label": spec.label}
    )
    names = {"__id": "__id", "__group": "__group", "__time": "__time", **labels}
    given = pq.read_schema(table.file.file)
    kinds = [(stored, given.field(name).type) for stored, name in labels.items()]
    schema = pa.schema(
        [("__id", pa.string()), ("__group", pa.string()), ("__time", pa.float64()), *kinds]
    )
    with TableWriter(target, schema) as writer:
        for batch in batches(table, BATCH_ROWS, [c for c in names.values() if c in given.names]):
            columns = {
                n: batch.column(c) if c in given.names else pa.nulls(len(batch))
                for n, c in names.items()
            }
            writer.write(pa.table([columns[f.name].cast(f.type) for f in schema], schema=schema))
    digest.settle(target)


def _check_side(folder: Path, side: str, rows: int, statistics: Statistics) -> None:
    """Read the written files back; check rows, finite values and label range."""
    for path in sorted(folder.glob("*.npy")):
        array = np.load(path, mmap_mode="r")
        if len(array) != rows:
            raise IntegrityError(
                f"{path.name} of the {side} side: expected {rows} rows, found {len(array)} after"
                " writing; check the disk"
            )
        for start in range(0, rows, BATCH_ROWS):
            check_block(array[start : start + BATCH_ROWS], unquote(path.stem), side, statistics)
    if pq.read_metadata(folder / "ids.parquet").num_rows != rows:
        raise IntegrityError(
            f"ids.parquet of the {side} side: expected {rows} rows after writing; check the disk"
        )


def _publish(temporary: Path, target: Path) -> None:
    """Move the finished folder into place; remove the old folder only afterwards."""
    digest.fsync_folder(temporary)
    old = temporary.with_name("old")
    if target.exists():
        target.replace(old)
    temporary.replace(target)
    digest.fsync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _files(arrays: SplitArrays) -> dict[str, FileRef]:
    """Return every file of a split by name."""
    return {
        **arrays.arrays,
        **{f"windows/{name}": ref for name, ref in arrays.windows.items()},
        "ids": arrays.ids,
        **({"documents": arrays.documents} if arrays.documents else {}),
    }


def _side_ref(folder: Path, rows: int) -> SplitArrays:
    """Return a reference to the files of a split.

    Its rows are those of the table, or the number of sequences made from its documents.
    """
    paths = sorted(folder.glob("*.npy"))
    arrays = dict(
        zip([unquote(p.stem) for p in paths], at_once(digest.file_ref, paths), strict=True)
    )
    documents = folder / "documents.parquet"
    if not documents.exists():
        ids, windows = digest.file_ref(folder / "ids.parquet"), steps_of(folder, arrays)
        return SplitArrays(rows=rows, arrays=arrays, ids=ids, windows=windows)
    sequences = len(np.load(folder / "tokens.npy", mmap_mode="r", allow_pickle=False))
    return SplitArrays(
        rows=sequences,
        arrays=arrays,
        ids=digest.file_ref(folder / "ids.parquet"),
        documents=digest.file_ref(documents),
    )
