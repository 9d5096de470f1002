"""The data engine: a confined DuckDB connection, the quoting of SQL, canonical row text, and atomic
Parquet files.

SQL is plain text in a subset that DuckDB and Spark share; every name and value in it passes `ident`
or `literal`.
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
THREAD_BYTES = 100_000_000  # that a thread of the engine needs to sort and to group without failing
SCALAR_BYTES = 8  # of a number; of a text about as many
# of rows that wait for who reads them, at most: with a few megabytes all threads but one stand
# still until their row group has its turn
READ_AHEAD = "256MB"
# row groups that are held, looked at and encoded together, as long as they stay below
# ROW_GROUP_BYTES
GROUPS_AT_ONCE = 4
ROWS_IN_MEMORY = 4  # as many more of rows that are in memory anyway
Tables = Iterator[pa.Table]
_open: WeakSet[duckdb.DuckDBPyConnection] = WeakSet()


def connect(
    memory_limit: str | None = None, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """An in-memory engine that loads no extension, sees no Python variable, and spills to a folder
    of its own.

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
        connection.execute(f"set streaming_buffer_size = '{READ_AHEAD}'")
    return connection


def interrupt_queries() -> None:
    """Break off what the engines of this process do just now; called from another thread, for a
    stop.
    """
    for connection in list(_open):
        with suppress(duckdb.Error):  # it is closed already
            connection.interrupt()


@contextmanager
def chosen_engine(data: DataConfig) -> Iterator[Any]:
    """The engine that the declaration names: what `engine_for` gives, or a Spark session that takes
    the same SQL.

    Raises:
        ConfigError: Spark is declared and not installed, finds no Java, cannot be reached, or its
            executors do not share our folders.
        DataError: a job of Spark failed, or `data.memory_limit` does not suffice.
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
    """The embedded engine within `data.memory_limit`, of which a part is left to what stands next
    to it: batches, hashes of keys, rows on their way into files.

    Raises:
        DataError: the limit does not suffice for these rows.
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
    """Leave the connection only these files (and its spill folder); nothing can be opened
    up again.
    """
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
    """A value as an SQL literal; floats stay doubles (a bare 0.1 would be a decimal), infinity and
    NaN are refused.

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

    Not by `isnan`: DuckDB 2.0 answers it from a Parquet file's minimum and maximum, which leave NaN
    out when pyarrow wrote them.
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


def fill(connection: Any, table: str, queries: Iterable[str]) -> None:
    """Make a temporary table of the rows of several queries, run one after the other: each may take
    all the memory that there is.

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
    """Into how many parts rows are cut so that each takes no more than a limit, which is none where
    it is None.
    """
    return 1 if limit is None else max(1, -(-num_rows * bytes_a_row // limit))


def part_sql(value: str, part: int, parts: int) -> str:
    """SQL condition: a value is of one part, from 0, of so many by its hash; of a single part every
    value is, also null.
    """
    return f"{part_number_sql(value, parts)} = {part}" if parts > 1 else "true"


def part_number_sql(value: str, parts: int) -> str:
    """SQL of the part, from 0, of so many that a value is of by its hash."""
    return f"hash({value}) % {parts}" if parts > 1 else "0"


def count_distinct(connection: duckdb.DuckDBPyConnection, value: str, relation: str) -> int:
    """How many different values an expression has over a relation, nulls left out; by grouping,
    which spills to disk as `count(distinct …)` does not.

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
    """SQL for a text of the row that two rows share only if they are equal: each value with its
    length, null apart.

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
    """SQL for the 128-bit hash of `row_text_sql`, as 32 hexadecimal digits."""
    return f"md5({row_text_sql(columns)})"


def write_parquet(
    connection: duckdb.DuckDBPyConnection,
    query: str | Iterator[pa.RecordBatch] | pa.Table,
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    schema: pa.Schema | None = None,
    through: Callable[[Tables], Tables] | None = None,
) -> TableRef:
    """Stream a query to a Parquet file, whole or not at all; equal rows in equal order give equal
    bytes.

    Args:
        connection: the engine; another result that is still open on it is closed.
        query: give it an `order by` that decides every tie, or the bytes depend on the engine; or
            rows that are in order already, a whole table among them.
        path: the file; its folder is created.
        metadata: key-value texts for the Parquet schema, e.g. `{"bulkhead.side": "train"}`.
        schema: Arrow types of the columns where the engine has none of the kind (its fixed-size
            arrays end at 100,000 elements); needed where rows are given.
        through: a generator that sees every row on its way; what it raises leaves no file.
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
            # these are cast and looked at while those before them are encoded; of a stream the
            # engine's threads read on
            if isinstance(reader, pa.Table):
                reader, size, write = (
                    reader.to_batches(),
                    size * ROWS_IN_MEMORY,
                    stack.enter_context(beside(writer.write)),
                )
            # here, because what looks at rows knows no dictionaries of texts
            tables = (table.cast(types) for table in even_tables(reader, size))
            for table in through(tables) if through else tables:
                write(table)
    return TableRef(file=file_ref(path), rows=writer.rows)


class TableWriter:
    """A Parquet file in row groups of a fixed size: equal rows in equal order give equal bytes,
    whatever the tables they come in.

    Categories get a dictionary; numbers and keys, which seldom repeat, would only pay for looking
    for one. Nothing is compressed or has checksums of its own: files live as long as a step's
    result and carry a SHA-256, and these cost a third of the time.
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
        # else looked at 1,024 by 1,024 for the end of a page
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
        """Write what is left, and the end of the file; after an error neither, since the file will
        not be kept.
        """
        with self._file:
            if kind is None:
                if held := sum(map(len, self._waiting)):
                    self._put(held)
                self._writer.close()

    def _put(self, count: int) -> None:
        table = pa.concat_tables(self._waiting)
        # batches that the writer never sees together would each begin a page of their own
        self._writer.write_table(
            table.slice(0, count).cast(self.schema).combine_chunks(), row_group_size=self._size
        )
        self._waiting = [table.slice(count)]


def _numbers(schema: pa.Schema) -> list[str]:
    """Columns whose smallest and largest values are cheap to find, and spare a scan to who asks for
    them.
    """
    return [f.name for f in schema if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]


def even_tables(reader: Iterable[pa.RecordBatch], size: int) -> Tables:
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


def group_rows(schema: pa.Schema | None) -> int:
    """Rows of a row group: a fixed number, fewer where many columns or fixed-size lists make rows
    wide.
    """
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // _row_bytes(schema)))


def rows_at_once(schema: pa.Schema) -> int:
    """Rows of a few row groups: the fewer calls, the less is paid for each."""
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
