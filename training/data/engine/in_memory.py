"""Tables in memory: one that a step has just written is not read again by the next step.

This holds within one process, only within `holding`, and only if they fit; otherwise every step
reads the files. A table is found by the SHA-256 of its file, so that it cannot be mistaken for
other rows. The files are written and verified either way. See docs/decisions/0025.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from schemas.records import TableRef
from training.data.engine.batches import arrow_batches
from training.data.engine.engine import parquet

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
SHARE = 0.5  # of the memory that is free
COPIES = 3  # of the typed table at once: as read, in order, and divided into splits
# of a column of texts: an Arrow array takes twice as many, and this is an estimate
TEXT_BYTES = 2**30
WIDE = 300  # columns, from which the engine copies rows instead of reading them where they are …
COPIED_BYTES = 256 << 20  # … if they are few
SCAN_ROWS = 122_880  # of a batch that a thread of the engine takes: one of the engine's row groups
CODE = (  # of the split of a row: its index in `SPLITS`, larger for rows that are left out
    "__code"
)


class Rows(NamedTuple):
    """Rows in memory, with one chunk per column.

    They are a whole table, or those with a code in its column `CODE`.
    """

    table: pa.Table
    code: int | None = None


_held: ContextVar[dict[str, Rows] | None] = ContextVar("held_tables", default=None)


@contextmanager
def holding() -> Iterator[None]:
    """Hold tables within the block, and release them all at its end."""
    token = _held.set({})
    try:
        yield
    finally:
        _held.reset(token)


def hold(ref: TableRef, rows: Rows) -> None:
    """Hold the rows of a file that was just written, if tables are held at all."""
    tables = _held.get()
    if tables is not None:
        tables[ref.file.sha256] = rows


def held(ref: TableRef) -> Rows | None:
    """Return the rows of a file, if they are held."""
    return (_held.get() or {}).get(ref.file.sha256)


def let_go(ref: TableRef) -> None:
    """Release a table."""
    (_held.get() or {}).pop(ref.file.sha256, None)


def relation(connection: duckdb.DuckDBPyConnection, ref: TableRef, often: bool = False) -> str:
    """Return a table between tasks as an SQL relation: its rows in memory, or its file.

    The caller has verified it.

    Args:
        connection: the engine.
        ref: the table.
        often: True if many queries follow, for which a wide table is copied into the engine.
    """
    found = held(ref)
    if found is None:
        return parquet(ref)
    if often and found.table.num_columns >= WIDE and found.table.nbytes <= COPIED_BYTES:
        return _copied(connection, ref, found)
    name = registered(connection, f"held_{id(found.table)}", found.table)
    return (
        name
        if found.code is None
        else f"(select * exclude ({CODE}) from {name} where {CODE} = {found.code})"
    )


def _copied(connection: duckdb.DuckDBPyConnection, ref: TableRef, rows: Rows) -> str:
    """Return a table of the engine's own with the rows, in order.

    Each query over a registered table reads the types of all its columns first, which takes 30 ms
    for 3,000 columns; one over an own table takes 1.5 ms.
    """
    name = f"held_{ref.file.sha256}"
    if not connection.execute(
        f"select 1 from duckdb_tables() where table_name = '{name}'"
    ).fetchall():
        given = registered(connection, f"{name}_rows", rows.table)
        chosen = "*" if rows.code is None else f"* exclude ({CODE})"
        where = "" if rows.code is None else f" where {CODE} = {rows.code}"
        connection.execute(f"create temp table {name} as select {chosen} from {given}{where}")
        connection.unregister(f"{name}_rows")
    return name


def registered(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> str:
    """Register rows under a name, in batches that the engine's threads share; order is kept."""
    connection.register(
        name, pa.Table.from_batches(table.to_batches(max_chunksize=SCAN_ROWS), table.schema)
    )
    return name


def batches(
    ref: TableRef, max_rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield `arrow_batches` of the table's file, from memory if its rows are held."""
    found = held(ref)
    if found is None:
        yield from arrow_batches(ref.file.file, max_rows, columns)
        return
    for batch in found.table.to_batches(max_chunksize=SCAN_ROWS):
        chosen = batch if columns is None else batch.select(list(columns))
        if found.code is not None:
            chosen = chosen.filter(pc.equal(batch.column(CODE), found.code))
        yield from (chosen.slice(start, max_rows) for start in range(0, len(chosen), max_rows))


def fits(sample: pa.Table, rows: int) -> bool:
    """Return True if this many rows like those of a sample fit in memory."""
    if not len(sample):
        return True
    growth = rows / len(sample)
    texts = (column.nbytes for column in sample.columns if not pa.types.is_primitive(column.type))
    return (
        growth * max(texts, default=0) <= TEXT_BYTES
        and COPIES * growth * sample.nbytes <= SHARE * available_memory()
    )


def available_memory() -> float:
    """Return the bytes that programs can get without swapping, within the limit of a container."""
    lines = MEMINFO.read_text().splitlines() if MEMINFO.is_file() else []
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    free = (
        float(kilobytes) * 1024
        if kilobytes
        else float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    )
    limit = CGROUP.read_text().strip() if CGROUP.is_file() else "max"
    return free if limit == "max" else min(free, float(limit))
