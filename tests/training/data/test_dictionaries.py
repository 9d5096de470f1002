"""Texts that lie in memory as places in a dictionary are written to the bytes of the texts themselves."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.dictionaries import with_dictionaries
from training.data.engine import ROW_GROUP_ROWS, TableWriter

SCHEMA = pa.schema([("__id", pa.string()), ("x", pa.float64()), ("n", pa.int64()), ("c", pa.string()), ("t", pa.string())])


def _written(table: pa.Table, piece: int, schema: pa.Schema = SCHEMA) -> bytes:
    file = io.BytesIO()
    writer = TableWriter(file, schema, {"bulkhead.side": "train"})
    for start in range(0, len(table), piece):
        writer.write(table.slice(start, piece))
    writer.close()
    return file.getvalue()


def _by_pyarrow(table: pa.Table) -> bytes:
    """The file as pyarrow writes it of texts."""
    file = io.BytesIO()
    given = table.cast(SCHEMA.with_metadata({"bulkhead.side": "train"})).combine_chunks()
    options = {"compression": "none", "use_dictionary": ["n", "c", "t"], "write_statistics": ["x", "n"], "write_batch_size": ROW_GROUP_ROWS}
    with pq.ParquetWriter(file, given.schema, **options) as writer:
        if len(given):
            writer.write_table(given, row_group_size=ROW_GROUP_ROWS)
    return file.getvalue()


@pytest.mark.req("D5")
@pytest.mark.parametrize("rows", [0, 1, 9, ROW_GROUP_ROWS, ROW_GROUP_ROWS + 1, 2 * ROW_GROUP_ROWS + 9])
@pytest.mark.parametrize("distinct", [1, 2, 300, 40_000])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_a_file_of_dictionaries_has_the_bytes_of_one_of_texts(rows: int, distinct: int, nulls: float) -> None:
    rng = np.random.default_rng(rows)
    texts = pa.array(["", *(f"wért {'-' * 20} {i}" for i in range(1, distinct))])
    places = pa.array(rng.integers(0, distinct, rows), pa.int32(), mask=rng.random(rows) < nulls)
    coded = pa.DictionaryArray.from_arrays(places, texts)
    ids, numbers = pa.array([f"{i}" for i in range(rows)], pa.string()), [pa.array(rng.normal(size=rows)), pa.array(rng.integers(0, 3, rows))]
    table = pa.table([ids, *numbers, coded, pa.array([f"{i % 7}" for i in range(rows)], pa.string())], names=SCHEMA.names)
    assert _written(table, 50_000) == _written(table.cast(SCHEMA), 70_000) == _by_pyarrow(table)
    kept = with_dictionaries(SCHEMA, table).field("c").type
    assert pa.types.is_dictionary(kept) == (distinct < 40_000)
    assert table.cast(SCHEMA).equals(pq.read_table(io.BytesIO(_written(table, 50_000))).replace_schema_metadata())
