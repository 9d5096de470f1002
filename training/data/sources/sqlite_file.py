"""Rows of an SQLite file, read-only and in one transaction.

SQLite has a type for each value, not for each column. A column is a number, a text or bytes only if
each of its values is; other columns are refused by name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import DataConfig
from schemas.errors import SourceError, counted
from training.data.engine.engine import ident
from training.data.sources.column_casts import Column, chosen_relation, column_sql, require_names
from training.data.sources.snapshots import Rows, now

BATCH_ROWS = 65_536
WAIT_SECONDS = 5.0  # for a program that writes
VIEW = "bulkhead_source"
FIGURES = 8  # of a column
ALLOWED = {  # what a query may do
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
DAY = "????-??-??"
DIGITS = DAY.replace("?", "[0-9]")
MINUTE = DIGITS + "[ T][0-9][0-9]:[0-9][0-9]"


class Found(NamedTuple):
    """Values of a column by what they are, and texts that are days, local times or instants."""

    whole: int
    real: int
    text: int
    blob: int
    truth: int
    days: int
    local: int
    instants: int

    @property
    def kinds(self) -> int:
        """Kinds of values."""
        return sum(map(bool, (self.whole or self.real, self.text, self.blob)))


@contextmanager
def sqlite_rows(path: Path, data: DataConfig) -> Iterator[Rows]:
    """Open the declared table or query of an SQLite file.

    Raises:
        SourceError: the file cannot be opened or is locked; there is no such table; the query
            fails; a column has numbers and texts.
    """
    address = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(
            sqlite3.connect(
                address, uri=True, timeout=WAIT_SECONDS, isolation_level=None,
                check_same_thread=False,
            )
        ) as connection:  # fmt: skip
            yield _rows(connection, path, data)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise _refused(path, error) from error


def _rows(connection: sqlite3.Connection, path: Path, data: DataConfig) -> Rows:
    relation = chosen_relation(lambda: _tables(connection), data, str(path))
    connection.execute(f"create temp view {VIEW} as {relation.sql}")
    declared = {str(r[1]): str(r[2]) for r in connection.execute(f"pragma table_info({VIEW})")}
    require_names(declared, str(path))
    connection.execute("pragma query_only = on")
    connection.execute("begin")  # one state of the file, from the first query on
    connection.set_authorizer(_authorize)
    figures = ", ".join(_figures(ident(name)) for name in declared)
    counts = connection.execute(f"select {figures} from {VIEW}").fetchone()
    moment = now()
    columns, types = [], []
    for i, (name, kind) in enumerate(declared.items()):
        found = Found(*(int(n or 0) for n in counts[FIGURES * i : FIGURES * (i + 1)]))
        columns.append(_column(name, found))
        types.append(_type(found, kind.upper()))
    chosen = column_sql(columns, data, relation, str(path), "cast({0} as text)".format)
    types = [
        pa.string() if column.remedy else kind for column, kind in zip(columns, types, strict=True)
    ]
    schema = pa.schema(list(zip(declared, types, strict=True)))
    cursor = connection.execute(f"select {chosen} from {VIEW}")
    return Rows(schema, _batches(cursor, schema), moment, relation.table)


def _tables(connection: sqlite3.Connection) -> dict[str, str]:
    found = connection.execute(
        "select name from sqlite_schema where type in ('table', 'view') and name not like"
        " 'sqlite\\_%' escape '\\' order by name"
    )
    return {str(r[0]): ident(str(r[0])) for r in found}


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def _figures(column: str) -> str:
    """Return the aggregates of `Found`."""
    is_text = f"typeof({column}) = 'text' and {column}"
    time = f"{is_text} glob '{MINUTE}*' and julianday({column}) is not null and {column}"
    zoned = f"({column} glob '*Z' or substr({column}, 17) glob '*[+-]*')"
    conditions = (
        *(f"typeof({column}) = '{kind}'" for kind in ("integer", "real", "text", "blob")),
        f"typeof({column}) = 'integer' and {column} in (0, 1)",
        f"{is_text} glob '{DIGITS}' and date({column}) = {column}",
        f"{time} not glob '*Z' and not {zoned}",
        f"{time} is not null and {zoned}",
    )
    return ", ".join(f"sum({condition})" for condition in conditions)


def _column(name: str, found: Found) -> Column:
    column = ident(name)
    if found.kinds < 2:
        return Column(name, "", column)
    parts = (
        (found.whole + found.real, "number"),
        (found.text, "text"),
        (found.blob, "blob"),
    )
    kinds = " and ".join(counted(count, word) for count, word in parts if count)
    number = f"case when typeof({column}) in ('integer', 'real') then {column} end"
    is_number = found.whole + found.real >= found.text
    return Column(name, kinds, column, number if is_number else f"cast({column} as text)")


def _type(found: Found, declared: str) -> pa.DataType:
    """Return the type that holds all values; texts are times where the table declares that."""
    if found.whole or found.real:
        if "BOOL" in declared and found.truth == found.whole and not found.real:
            return pa.bool_()
        return pa.float64() if found.real else pa.int64()
    if found.blob:
        return pa.binary()
    if found.text and ("DATE" in declared or "TIME" in declared):
        kinds = {"days": pa.date32(), "local": pa.timestamp("us")}
        kinds["instants"] = pa.timestamp("us", "UTC")
        for name, kind in kinds.items():
            if getattr(found, name) == found.text:
                return kind
    return pa.string()


def _batches(cursor: sqlite3.Cursor, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while values := cursor.fetchmany(BATCH_ROWS):
        columns = zip(*values, strict=True)
        arrays = [_array(column, f.type) for column, f in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_temporal(kind):
        return pc.cast(pa.array(values, pa.string()), kind)
    return pa.array(values, kind)


def _refused(path: Path, error: Exception) -> SourceError:
    """Return what SQLite says in one sentence, with what to do."""
    text = " ".join(str(error).split())[:400]
    advice = "check data.query and data.table"
    if "locked" in text or "busy" in text:
        advice = "another program writes to it: wait for its end, or read a copy"
    elif "decode" in text:
        advice = "a text is no UTF-8: read it as cast(… as blob), or correct it"
    elif "not authorized" in text or "prohibited" in text or "read-only" in text:
        advice = "a query may read this database alone, and change nothing"
    elif "malformed" in text or "not a database" in text or "unable to open" in text:
        advice = "the file is damaged, or a program has left it unfinished: copy it again"
    return SourceError(f"{path}: cannot be read: {text}; {advice}")
