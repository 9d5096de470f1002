"""Rows in table order with their split, if it follows from the row: no join, no second sort."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import SPLITS, SplitName
from schemas.records import ValidatedTable
from schemas.tables import arrow_schema
from training.data.engine.batches import arrow_batches
from training.data.engine.engine import even_tables, group_rows, ident, literal
from training.data.engine.in_memory import CODE, registered

PLACE, PLACED = "__place", "placed_rows"


def in_file_order(
    connection: duckdb.DuckDBPyConnection, validated: ValidatedTable, side_sql: str
) -> Iterator[pa.RecordBatch]:
    """Return the validated rows in file order, with their split's index in `SPLITS` as `CODE`."""
    numbered = (
        f"read_parquet({literal(validated.table.file.path)}, hive_partitioning = false,"
        " file_row_number = true)"
    )
    size = group_rows(arrow_schema(validated.spec))
    codes = even_tables(
        connection.sql(
            f"select file_row_number, {code_sql(side_sql)} as {ident(CODE)} from {numbered}"
        ).to_arrow_reader(size),
        size,
    )
    for number, (batch, sides) in enumerate(
        zip(arrow_batches(validated.table.file.file, size), codes, strict=True)
    ):
        _require_order(sides["file_row_number"], number * size, len(batch))
        yield batch.append_column(CODE, sides[CODE].combine_chunks())


def with_sides(connection: duckdb.DuckDBPyConnection, table: pa.Table, side_sql: str) -> pa.Table:
    """Return rows in memory with their split, or the reason for none, as `__side`.

    The index of the split in `SPLITS` is `CODE`.

    Args:
        connection: the engine.
        table: the rows, with one chunk per column.
        side_sql: SQL of the split over the columns of a row.
    """
    placed = registered(
        connection, PLACED, table.append_column(PLACE, pa.array(np.arange(len(table))))
    )
    found = connection.sql(f"select {PLACE}, {side_sql} as __side from {placed}").to_arrow_table()
    _require_order(found[PLACE], 0, len(table))
    side = found["__side"].combine_chunks()
    code = pc.fill_null(pc.index_in(side, pa.array(SPLITS, side.type)), len(SPLITS)).cast(
        pa.uint8()
    )
    return table.append_column("__side", side).append_column(CODE, code)


def row_groups(table: pa.Table, schema: pa.Schema) -> Iterator[tuple[SplitName, pa.Table]]:
    """Yield the row groups of every split, those of one split in the order of the table.

    Each is gathered once: rows of another number would be joined and divided again, in new memory.
    """
    rows, code, size = table.select(schema.names), table[CODE].to_numpy(), group_rows(schema)
    begins: list[tuple[int, int, SplitName, np.ndarray]] = []
    for place, side in enumerate(SPLITS):
        mask = code == place
        first = np.flatnonzero(mask)[::size]
        ends = [*first[1:].tolist(), len(code)]
        begins += [(a, b, side, mask) for a, b in zip(first.tolist(), ends, strict=False)]
    for begin, end, side, mask in sorted(begins, key=lambda group: group[0]):
        yield side, rows.slice(begin, end - begin).filter(pa.array(mask[begin:end]))


def code_sql(side_sql: str) -> str:
    """Return SQL for the index of a split in `SPLITS`; larger values for rows that are left out."""
    return (
        f"cast(case {side_sql} "
        + " ".join(f"when {literal(side)} then {place}" for place, side in enumerate(SPLITS))
        + f" else {len(SPLITS)} end as utinyint)"
    )


def _require_order(places: pa.ChunkedArray, first: int, count: int) -> None:
    if not np.array_equal(places, np.arange(first, first + count)):
        raise RuntimeError(
            "the engine read the rows of the validated table in another order than theirs"
        )
