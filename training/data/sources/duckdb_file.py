"""Rows of a DuckDB file, read-only and without access to any other file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from schemas.config import DataConfig
from schemas.errors import SourceError
from training.data.engine.engine import confine, engine_for, ident, literal, row, rows
from training.data.sources.column_casts import Column, chosen_relation, column_sql, require_names
from training.data.sources.snapshots import Rows, now

BATCH_ROWS = 65_536
SOURCE = "bulkhead_database"
PLAIN = re.compile(
    r"(U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|BOOLEAN|VARCHAR|DATE|BLOB"
    r"|TIMESTAMP(_NS| WITH TIME ZONE)?)(\[\d*\])*"
)
TEXTS = re.compile(r'(UUID|JSON|BIT|"NULL"|ENUM\(.*\))((?:\[\d*\])*)', re.DOTALL)
WIDER = {  # type → SQL that reads it
    "HUGEINT": "cast({0} as decimal(38, 0))",  # of sums; Parquet has no whole numbers of 128 bits
    "UHUGEINT": "cast({0} as decimal(38, 0))",
    "TIMESTAMP_S": "cast({0} as timestamp)",
    "TIMESTAMP_MS": "cast({0} as timestamp)",
}
DURATIONS = ("INTERVAL", "TIME", "TIME WITH TIME ZONE", "TIME_NS")


@contextmanager
def duckdb_rows(path: Path, data: DataConfig) -> Iterator[Rows]:
    """Open the declared table or query of a DuckDB file.

    Raises:
        SourceError: the file cannot be opened, e.g. because a program writes to it; there is no
            such table; the query fails, or reads another file.
    """
    with engine_for(data) as connection:
        try:
            connection.execute(f"attach {literal(str(path))} as {SOURCE} (type duckdb, read_only)")
            connection.execute(f"use {SOURCE}")
            confine(connection)
            moment = now()
            relation = chosen_relation(lambda: _tables(connection), data, str(path))
            types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe {relation.sql}")}
            require_names(types, str(path))
            columns = [_column(name, kind) for name, kind in types.items()]
            chosen = column_sql(columns, data, relation, str(path), "cast({0} as varchar)".format)
            query = f"select {chosen} from ({relation.sql}\n) as source"
            reader = connection.sql(query).to_arrow_reader(BATCH_ROWS)
            yield Rows(reader.schema, reader, moment, relation.table)
        except duckdb.OutOfMemoryException:
            raise  # engine_for says what to do
        except duckdb.Error as error:
            raise _refused(path, error) from error


def _tables(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    names = rows(
        connection,
        "select schema_name, table_name from duckdb_tables() where not internal and database_name ="
        f" {literal(SOURCE)} union all select schema_name, view_name from duckdb_views() where not"
        f" internal and database_name = {literal(SOURCE)} order by 1, 2",
    )
    default = row(connection, "select current_schema()")[0]
    return {
        str(table) if schema == default else f"{schema}.{table}": f"{ident(schema)}.{ident(table)}"
        for schema, table in names
    }


def _column(name: str, kind: str) -> Column:
    column = ident(name)
    if PLAIN.fullmatch(kind):
        return Column(name, kind, column)
    if kind in WIDER:
        return Column(name, kind, WIDER[kind].format(column))
    if found := TEXTS.fullmatch(kind):
        return Column(name, kind, f"cast({column} as varchar{found[2]})")
    if kind in DURATIONS:
        return Column(name, kind, column, f"epoch({column})")
    inner = re.match(r'STRUCT\("?([^" ]+)', kind)
    remedy = f"{column}.{ident(inner[1])}" if inner else f"cast({column} as varchar)"
    return Column(name, kind.partition("(")[0], column, remedy)


def _refused(path: Path, error: duckdb.Error) -> SourceError:
    """Return what DuckDB says in one sentence, with what to do."""
    text = " ".join(str(error).split())
    first = re.split(r"\s*(?:LINE \d+:|See also|Did you mean|Candidate bindings)", text)[0][:400]
    advice = "check data.query"
    if "lock on file" in text or "is being used by another" in text:
        advice = "another program has it open for writing: close it there, or read a copy"
    elif "file system operations are disabled" in text or "disabled by configuration" in text:
        advice = "a query or view may read this database alone; put the rows into a table of it"
    elif isinstance(error, duckdb.IOException | duckdb.SerializationException):
        advice = "the file is damaged or of another version; copy it, or write it again"
    elif isinstance(error, duckdb.ConversionException):
        advice = "a value has no such type: correct the cast in the query or view"
    return SourceError(f"{path}: cannot be read: {first}; {advice}")
