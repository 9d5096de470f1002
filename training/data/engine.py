"""The data engine: a confined DuckDB connection, the quoting of SQL, canonical row text, and atomic Parquet files.

SQL is plain text in a subset that DuckDB and Spark share; every name and value in it passes `ident` or `literal`.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import DataConfig
from schemas.digest import file_ref, replacing
from schemas.records import TableRef

ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 64 << 20  # wide rows (tensors) make smaller row groups, so that memory stays bounded


def connect(memory_limit: str | None = None, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory engine that loads no extension, sees no Python variable, and spills to a folder of its own.

    Args:
        memory_limit: such as "2GB"; past it the engine spills to disk. Default: 80 % of RAM.
        threads: CPU threads; results do not depend on it. Default: all cores.
    """
    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "preserve_insertion_order": "true",
        "temp_directory": str(Path(tempfile.gettempdir()) / f"bulkhead-spill-{os.getpid()}-{os.urandom(4).hex()}"),
    }
    if memory_limit is not None:
        config["memory_limit"] = memory_limit
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("set enable_progress_bar = false; set TimeZone = 'UTC'")
    return connection


@contextmanager
def chosen_engine(data: DataConfig) -> Iterator[Any]:
    """The engine that the declaration names: what `connect` gives, or a Spark session that takes the same SQL.

    Raises:
        ConfigError: Spark is declared and not installed, finds no Java, cannot be reached, or its executors do not share our folders.
        DataError: a job of Spark failed.
    """
    if data.engine == "duckdb":
        with closing(connect()) as connection:
            yield connection
        return
    from training.data.spark_engine import opened_spark  # pyspark is an extra

    with opened_spark(data.spark) as session:
        yield session


def confine(connection: duckdb.DuckDBPyConnection, readable: Iterable[str | Path] = ()) -> None:
    """Leave the connection only these files (and its spill folder); nothing can be opened up again."""
    paths = ", ".join(literal(str(p)) for p in readable)
    connection.execute(f"set allowed_paths = [{paths}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def ident(name: str) -> str:
    """A name as an SQL identifier.

    >>> ident('say "hi" twice')
    '"say ""hi"" twice"'
    """
    if "\x00" in name:
        raise ValueError(f"expected a column name without NUL characters, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | bool | int | float | None) -> str:
    """A value as an SQL literal; floats stay doubles (a bare 0.1 would be a decimal), infinity and NaN are refused.

    >>> literal("it's"), literal(0.1), literal(3), literal(None), literal(True)
    ("'it''s'", "cast('0.1' as double)", '3', 'null', 'true')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value!r}")
        return f"cast('{value!r}' as double)"
    if "\x00" in value:
        raise ValueError(f"expected text without NUL characters, got {value!r}")
    return "'" + value.replace("'", "''") + "'"


def without_nan(number: str) -> str:
    """SQL of a float with NaN made null.

    Not by `isnan`: DuckDB 2.0 answers it from a Parquet file's minimum and maximum, which leave NaN out when pyarrow wrote them.
    """
    return f"case when isfinite({number}) or isinf({number}) then {number} end"


def parquet(ref: TableRef) -> str:
    """A table between tasks as an SQL relation."""
    return f"read_parquet({literal(ref.file.path)}, hive_partitioning = false)"


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a query; for results that fit a message or a summary, never for tables."""
    return list(connection.execute(sql).fetchall())


def row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    """The only row of a query."""
    found = rows(connection, sql)
    if len(found) != 1:
        raise RuntimeError(f"expected one row, got {len(found)}: {sql}")
    return found[0]


def row_text_sql(columns: Sequence[str]) -> str:
    """SQL for a text of the row that two rows share only if they are equal: each value with its length, null apart.

    Column order does not count. Floats must be doubles without -0.0, as in the validated table.

    >>> row_text_sql(["b", "a"]).count("coalesce")
    2
    """
    parts = [f"coalesce(concat(length(cast({ident(c)} as varchar)), ':') || cast({ident(c)} as varchar), '-')" for c in sorted(columns)]
    return f"concat({', '.join(parts)})" if parts else "''"


def row_md5_sql(columns: Sequence[str]) -> str:
    """SQL for the 128-bit hash of `row_text_sql`, as 32 hexadecimal digits."""
    return f"md5({row_text_sql(columns)})"


def write_parquet(
    connection: duckdb.DuckDBPyConnection, query: str, path: str | Path, metadata: Mapping[str, str] | None = None, schema: pa.Schema | None = None
) -> TableRef:
    """Stream a query to a Parquet file, whole or not at all; equal rows in equal order give equal bytes.

    Args:
        connection: the engine; another result that is still open on it is closed.
        query: give it an `order by` that decides every tie, or the bytes depend on the engine.
        path: the file; its folder is created.
        metadata: key-value texts for the Parquet schema, e.g. `{"bulkhead.side": "train"}`.
        schema: Arrow types of the columns where the engine has none of the kind (its fixed-size arrays end at 100,000 elements).
    """
    with replacing(path) as file:
        relation = connection.sql(query)
        count = _stream(relation.to_arrow_reader(_group_rows(schema)), file, schema, dict(metadata or {}))
    return TableRef(file=file_ref(path), rows=count)


def _stream(reader: pa.RecordBatchReader, file: Any, schema: pa.Schema | None, metadata: dict[str, str]) -> int:
    schema = (schema or reader.schema).with_metadata(metadata)
    count = 0
    with closing(pq.ParquetWriter(file, schema, compression="zstd", compression_level=1, write_page_checksum=True)) as writer:
        for table in _row_groups(reader, _group_rows(schema)):
            writer.write_table(table.cast(schema), row_group_size=max(1, len(table)))
            count += len(table)
    return count


def _row_groups(reader: pa.RecordBatchReader, size: int) -> Iterator[pa.Table]:
    """Tables of a fixed number of rows: the engine's own batches depend on its threads."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in reader:
        waiting.append(batch)
        held += len(batch)
        while held >= size:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, size)
            rest = table.slice(size)
            waiting, held = rest.to_batches(), len(rest)
    if held:
        yield pa.Table.from_batches(waiting)


def _group_rows(schema: pa.Schema | None) -> int:
    """Rows of a row group: a fixed number, fewer where fixed-size lists make rows wide."""
    kinds = [f.type for f in schema or [] if pa.types.is_fixed_size_list(f.type)]
    wide: int = sum(kind.list_size * (kind.value_type.bit_width // 8) for kind in kinds)
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // max(1, wide)))
