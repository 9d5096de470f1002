"""Data engine: a confined DuckDB connection, SQL quoting, canonical row text and Parquet files.

Parquet files are written atomically. SQL is plain text in a subset that DuckDB and Spark share;
every name and value in it passes `ident` or `literal`.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import DataConfig
from schemas.digest import file_ref, replacing_path
from schemas.errors import DataError
from schemas.records import TableRef
from training.data.engine.threads import beside

ROW_GROUP_ROWS = 65_536
# wide rows (tensors, many columns) make smaller row groups, so that memory stays bounded
ROW_GROUP_BYTES = 64 << 20
ENGINE_SHARE = 0.7  # of data.memory_limit
THREAD_BYTES = 100_000_000  # needed by a thread of the engine to sort and to group without failing
SCALAR_BYTES = 8  # of a number; a text takes about as many
# most rows that wait for their reader: with a few megabytes all threads but one wait until their
# row group is read
READ_AHEAD = "256MB"
# row groups that are held, checked and encoded together while they stay below ROW_GROUP_BYTES
GROUPS_AT_ONCE = 4
ROWS_IN_MEMORY = 4  # as many more of rows that are in memory anyway
Tables = Iterator[pa.Table]
_open: WeakSet[duckdb.DuckDBPyConnection] = WeakSet()


def connect(
    memory_limit: str | None = None, threads: int | None = None, read_ahead: str = READ_AHEAD
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory engine without extensions or Python variables; it spills to its own folder.

    Args:
        memory_limit: such as "2GB"; beyond it, the engine spills to disk. Default: 80 % of RAM.
        threads: CPU threads; results do not depend on it. Default: all cores.
        read_ahead: the most rows that wait for their reader, where there is no memory limit.
    """
    config: dict[str, Any] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "preserve_insertion_order": "true",
        "temp_directory": str(
            Path(tempfile.gettempdir()) / f"bulkhead-spill-{os.getpid()}-{os.urandom(4).hex()}"
        ),
    }
    if memory_limit is not None:
        config["memory_limit"] = memory_limit
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(":memory:", config=config)
    _open.add(connection)
    connection.execute("set enable_progress_bar = false; set TimeZone = 'UTC'")
    if memory_limit is None:
        connection.execute(f"set streaming_buffer_size = '{read_ahead}'")
    return connection


def interrupt_queries() -> None:
    """Interrupt the running queries of this process; called from another thread, to stop."""
    for connection in list(_open):
        with suppress(duckdb.Error):  # it is closed already
            connection.interrupt()


@contextmanager
def chosen_engine(data: DataConfig) -> Iterator[Any]:
    """Open the declared engine: that of `engine_for`, or a Spark session that takes the same SQL.

    Raises:
        ConfigError: Spark is declared and not installed, finds no Java, cannot be reached, or its
            executors do not share our folders.
        DataError: a job of Spark failed, or `data.memory_limit` is too small.
    """
    if data.engine == "duckdb":
        with engine_for(data) as connection:
            yield connection
        return
    from training.data.engine.spark_engine import opened_spark  # pyspark is an extra

    with opened_spark(data.spark) as session:
        yield session


@contextmanager
def engine_for(data: DataConfig) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the embedded engine within `data.memory_limit`.

    Part of the limit is left for other memory: batches, hashes of keys, rows on their way into
    files.

    Raises:
        DataError: the limit is too small for these rows.
    """
    limit = data.memory_bytes
    share = None if limit is None else int(limit * ENGINE_SHARE)
    threads = None if share is None else max(1, min(os.cpu_count() or 1, share // THREAD_BYTES))
    with closing(connect(None if share is None else f"{share // 1024}KiB", threads)) as connection:
        try:
            yield connection
        except duckdb.OutOfMemoryException as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"data.memory_limit {data.memory_limit or '(not declared)'} does not suffice:"
                f" {reason}; raise it, or declare fewer columns"
            ) from error


def confine(connection: duckdb.DuckDBPyConnection, readable: Iterable[str | Path] = ()) -> None:
    """Restrict the connection to these files (and its spill folder), without a way back."""
    paths = ", ".join(literal(str(p)) for p in readable)
    connection.execute(f"set allowed_paths = [{paths}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def ident(name: str) -> str:
    """Return a name as an SQL identifier.

    >>> ident('say "hi" twice')
    '"say ""hi"" twice"'
    """
    if "\x00" in name:
        raise ValueError(f"expected a column name without NUL characters, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | bool | int | float | None) -> str:
    """Return a value as an SQL literal; refuse infinity and NaN.

    Floats stay doubles (a bare 0.1 would be a decimal).

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
    """Return SQL of a float with NaN made null.

    It avoids `isnan`: DuckDB 2.0 answers it from a Parquet file's minimum and maximum, which leave
    NaN out if pyarrow wrote them.
    """
    return f"case when isfinite({number}) or isinf({number}) then {number} end"


def parquet(ref: TableRef) -> str:
    """Return a table between tasks as an SQL relation."""
    return f"read_parquet({literal(ref.file.path)}, hive_partitioning = false)"


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    """Return all rows of a query; for results that fit a message or a summary, never for tables."""
    return list(connection.execute(sql).fetchall())


def row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    """Return the only row of a query."""
    found = rows(connection, sql)
    if len(found) != 1:
        raise RuntimeError(f"expected one row, got {len(found)}: {sql}")
    return found[0]


def fill(connection: Any, table: str, queries: Iterable[str]) -> None:
    """Make a temporary table of the rows of several queries, run one after the other.

    Each may take all the memory that there is.

    Args:
        connection: the engine; Spark takes a single query.
        table: its name; an earlier one is replaced.
        queries: at least one, with the same columns.
    """
    for number, query in enumerate(queries):
        connection.execute(
            f"insert into {table} {query}"
            if number
            else f"create or replace temp table {table} as {query}"
        )


def num_parts(num_rows: int, limit: int | None, bytes_a_row: int) -> int:
    """Return the number of parts so that each takes no more than a limit; None is no limit."""
    return 1 if limit is None else max(1, -(-num_rows * bytes_a_row // limit))


def part_sql(value: str, part: int, parts: int) -> str:
    """Return an SQL condition: the hash of a value is in one part, from 0, out of several.

    For a single part it is true for every value, also null.
    """
    return f"{part_number_sql(value, parts)} = {part}" if parts > 1 else "true"


def part_number_sql(value: str, parts: int) -> str:
    """Return SQL of the part, from 0, out of several that the hash of a value is in."""
    return f"hash({value}) % {parts}" if parts > 1 else "0"


def count_distinct(connection: duckdb.DuckDBPyConnection, value: str, relation: str) -> int:
    """Return the number of distinct non-null values of an expression over a relation.

    It groups, which spills to disk; `count(distinct …)` does not.

    Args:
        connection: the engine.
        value: SQL of the expression.
        relation: SQL relation.
    """
    return int(
        row(
            connection,
            f"select count(*) from (select {value} as v from {relation} group by 1) as d where v is"
            " not null",
        )[0]
    )


def row_text_sql(columns: Sequence[str]) -> str:
    """Return SQL for a text of the row that two rows share only if they are equal.

    Each value comes with its length; null is distinct.

    Column order does not count. Floats must be doubles without -0.0, as in the validated table.

    >>> row_text_sql(["b", "a"]).count("coalesce")
    2
    """
    parts = [
        f"coalesce(concat(length(cast({ident(c)} as varchar)), ':') || cast({ident(c)} as varchar),"
        " '-')"
        for c in sorted(columns)
    ]
    return f"concat({', '.join(parts)})" if parts else "''"


def row_md5_sql(columns: Sequence[str]) -> str:
    """Return SQL for the 128-bit hash of `row_text_sql`, as 32 hexadecimal digits."""
    return f"md5({row_text_sql(columns)})"


def write_parquet(
    connection: duckdb.DuckDBPyConnection,
    query: str | Iterator[pa.RecordBatch] | pa.Table,
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    schema: pa.Schema | None = None,
    through: Callable[[Tables], Tables] | None = None,
) -> TableRef:
    """Stream a query to a Parquet file as a whole or not at all; equal rows give equal bytes.

    Equal rows must come in equal order.

    Args:
        connection: the engine; another result that is still open on it is closed.
        query: SQL with an `order by` without ties, or the bytes depend on the engine; or rows that
            are in order already, such as a whole table.
        path: the file; its folder is created.
        metadata: key-value texts for the Parquet schema, e.g. `{"bulkhead.side": "train"}`.
        schema: Arrow types of columns that the engine lacks (its fixed-size arrays end at 100,000
            elements); required if rows are given.
        through: a generator that sees every row on its way; no file is left if it raises.
    """
    with replacing_path(path) as file:
        reader: Any = (
            connection.sql(query).to_arrow_reader(group_rows(schema))
            if isinstance(query, str)
            else query
        )
        types = reader.schema if schema is None else schema
        with TableWriter(file, types, metadata) as writer, ExitStack() as stack:
            size = rows_at_once(types)
            write: Callable[[pa.Table], None] = writer.write
            # these are cast and checked while those before them are encoded; for a stream the
            # engine's threads read on
            if isinstance(reader, pa.Table):
                reader, size, write = (
                    reader.to_batches(),
                    size * ROWS_IN_MEMORY,
                    stack.enter_context(beside(writer.write)),
                )
            # here, because the checks of rows know no dictionaries of texts
            tables = (table.cast(types) for table in even_tables(reader, size))
            for table in through(tables) if through else tables:
                write(table)
    return TableRef(file=file_ref(path), rows=writer.rows)


class TableWriter:
    """Parquet file in row groups of a fixed size.

    Equal rows in equal order give equal bytes, regardless of the tables they come in. Categories
    get a dictionary; for numbers and keys, which seldom repeat, the search for one would not pay
    off. Nothing is compressed or has its own checksums: files live as long as a step's result and
    carry a SHA-256, and these cost a third of the time.
    """

    def __init__(
        self, file: Path, schema: pa.Schema, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.schema, self.rows = schema.with_metadata(dict(metadata or {})), 0
        self._size, self._waiting = group_rows(schema), list[pa.Table]()
        coded = [
            f.name
            for f in schema
            if not (
                f.name.startswith("__")
                or pa.types.is_floating(f.type)
                or pa.types.is_nested(f.type)
            )
        ]
        # else the end of a page is checked every 1,024 rows
        at_once = None if any(pa.types.is_nested(f.type) for f in schema) else self._size
        # not Python's own: each of its many small writes would wait for the interpreter that
        # another thread has
        self._file = pa.OSFile(str(file), "wb")
        self._writer = pq.ParquetWriter(
            self._file,
            self.schema,
            compression="none",
            use_dictionary=coded or False,
            write_statistics=_numbers(schema) or False,
            write_batch_size=at_once,
        )

    def write(self, table: pa.Table) -> None:
        """Add rows; they are cast to the file's types."""
        self._waiting.append(table)
        self.rows += len(table)
        held = sum(map(len, self._waiting))
        if held >= self._size:
            self._put(held - held % self._size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the remaining rows and the end of the file.

        After an error write neither, since the file will not be kept.
        """
        with self._file:
            if kind is None:
                if held := sum(map(len, self._waiting)):
                    self._put(held)
                self._writer.close()

    def _put(self, count: int) -> None:
        table = pa.concat_tables(self._waiting)
        # batches that the writer never sees together would each begin a separate page
        self._writer.write_table(
            table.slice(0, count).cast(self.schema).combine_chunks(), row_group_size=self._size
        )
        self._waiting = [table.slice(count)]


def _numbers(schema: pa.Schema) -> list[str]:
    """Return columns whose extremes are cheap to find and save readers a scan."""
    return [f.name for f in schema if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]


def even_tables(reader: Iterable[pa.RecordBatch], size: int) -> Tables:
    """Yield tables of a fixed number of rows: the engine's own batches depend on its threads."""
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


def group_rows(schema: pa.Schema | None) -> int:
    """Return the rows of a row group: fewer for many columns or fixed-size lists."""
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // _row_bytes(schema)))


def rows_at_once(schema: pa.Schema) -> int:
    """Return the rows of a few row groups: fewer calls cost less."""
    size = group_rows(schema)
    return size * max(1, min(GROUPS_AT_ONCE, ROW_GROUP_BYTES // (size * _row_bytes(schema))))


def _row_bytes(schema: pa.Schema | None) -> int:
    kinds = [f.type for f in schema or []]
    return (
        sum(
            (
                k.list_size * (k.value_type.bit_width // 8)
                if pa.types.is_fixed_size_list(k)
                else SCALAR_BYTES
            )
            for k in kinds
        )
        or 1
    )
