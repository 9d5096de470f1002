"""Order rows by the hash of their id within a declared memory limit.

Rows are first distributed to parts by their hash, then sorted part by part. The engine sorts
faster, and spills. But it must be able to pin its data of each run, so that it gives up at limits
of a few hundred megabytes. A part here is as small as the limit requires.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.engine.engine import ident

HASH, PLACE = "__hash", "__place"
BATCH_ROWS = 65_536
PART_SHARE = (
    0.04  # of the memory limit for the rows of one part; sorted, they are in memory three times
)
MOST_PARTS = 512  # files that are open at once


def in_hash_order(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: tuple[str, ...],
    limit: int,
    folder: Path,
    by: str = "md5(__id)",
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, ordered by a hash; equal to the engine's `order by`.

    Args:
        connection: the engine.
        table: relation; it is run twice, and once for a few rows.
        columns: to read.
        limit: bytes of `data.memory_limit`.
        folder: where parts are kept while they are needed; it exists.
        by: SQL of the hash, 32 hexadecimal digits, different for each row.
    """
    listed = ", ".join(map(ident, columns))
    total = connection.execute(f"select count(*) from {table}").fetchall()[0][0]
    first = connection.sql(f"select {listed} from {table} limit 10000").to_arrow_table()
    parts = int(
        np.clip(
            np.ceil(first.nbytes / max(1, len(first)) * total / (PART_SHARE * limit)), 1, MOST_PARTS
        )
    )
    place = (
        f"cast(cast(concat('0x', substr({by}, 1, 8)) as ubigint) * {parts} // 4294967296 as"
        " usmallint)"
    )
    reader = connection.sql(
        f"select {listed}, {by} as {HASH}, {place} as {PLACE} from {table}"
    ).to_arrow_reader(BATCH_ROWS)
    temporary = Path(tempfile.mkdtemp(prefix=".parts-", dir=folder))
    try:
        yield from _sorted(_dealt(reader, temporary, parts), columns)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _dealt(reader: pa.RecordBatchReader, folder: Path, parts: int) -> list[Path]:
    """Write a file for each part, in the order of their hashes."""
    paths = [folder / f"{number}.arrow" for number in range(parts)]
    with ExitStack() as stack:
        schema = reader.schema.remove(reader.schema.get_field_index(PLACE))
        files = [
            stack.enter_context(pa.ipc.new_stream(stack.enter_context(path.open("wb")), schema))
            for path in paths
        ]
        for batch in reader:
            place = batch.column(PLACE).to_numpy(zero_copy_only=False)
            order = np.argsort(place, kind="stable")
            rows, begins = (
                batch.select(schema.names).take(pa.array(order)),
                np.searchsorted(place[order], np.arange(parts + 1)),
            )
            for number in np.unique(place):
                files[number].write_batch(
                    rows.slice(begins[number], begins[number + 1] - begins[number])
                )
    return paths


def _sorted(paths: list[Path], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
            table = reader.read_all()
        path.unlink()
        yield from (
            table.select(list(columns))
            .take(pc.sort_indices(table[HASH]))
            .combine_chunks()
            .to_batches(max_chunksize=BATCH_ROWS)
        )
