"""Rows of a PostgreSQL server, in Arrow batches from one read-only snapshot.

The driver (ADBC) streams the rows by COPY, a batch at a time, so memory does not depend on the
number of rows. The password comes from libpq's own environment (PGPASSWORD, PGPASSFILE) and is
in no address, message or record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import DataConfig
from schemas.confinement import require_host
from schemas.database_config import require_server
from schemas.errors import ConfigError, SourceError
from training.data.engine.engine import ident
from training.data.sources.column_casts import Column, chosen_relation, column_sql, require_names
from training.data.sources.snapshots import Rows, shown_moment

# a server that is gone without a word is noticed within a minute
CONNECTION = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    "application_name": "bulkhead",
}
SESSION = (
    "set transaction isolation level repeatable read, read only",
    "set local timezone = 'UTC'",
    # an unchanged table is read in the same order again
    "set local synchronize_seqscans = off",
    "set local max_parallel_workers_per_gather = 0",
)
TABLES = """select n.nspname, c.relname, pg_table_is_visible(c.oid) from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and not c.relispartition
and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
order by 1, 2"""
PLAIN = ("bool", "int2", "int4", "int8", "float4", "float8", "text", "varchar", "name", "char",
         "date", "timestamp", "timestamptz", "bytea")  # fmt: skip
TEXTS = ("bpchar", "uuid", "json", "jsonb", "xml", "inet", "cidr", "macaddr", "macaddr8", "bit",
         "varbit", "citext", "ltree")  # fmt: skip
REMEDIES = {
    "interval": "extract(epoch from {0})",
    "time": "extract(epoch from {0})",
    "timetz": "extract(epoch from {0})",
    "money": "{0}::numeric",
    "point": "({0})[0]",
}
EXACT = 2.0**53  # from which whole numbers differ that are one double
# before the first day that PostgreSQL knows (4713 BC) the driver has what is infinite
FIRST_DAY = -2_440_600
MICROSECONDS = 86_400_000_000  # of a day


@contextmanager
def postgres_rows(uri: str, data: DataConfig) -> Iterator[Rows]:
    """Open the declared table or query of a PostgreSQL database, at one moment.

    Raises:
        ConfigError: the driver is not installed, or the address may not be used.
        SourceError: the server cannot be reached or refuses, the connection is lost, there is no
            such table, the query fails, or a value has no counterpart.
    """
    require_host(require_server(uri), "data.uri")
    if find_spec("adbc_driver_postgresql") is None:
        raise ConfigError(
            f"{uri}: PostgreSQL needs the extra of that name: pip install 'bulkhead[postgres]'"
        )
    from adbc_driver_postgresql import dbapi

    try:
        with dbapi.connect(_address(uri)) as connection, connection.cursor() as cursor:
            yield _rows(cursor, uri, data)
    except (dbapi.Error, pa.ArrowException, OSError) as error:
        raise _refused(uri, error) from error


def _address(uri: str) -> str:
    parts = urlsplit(uri)
    parameters = CONNECTION | dict(parse_qsl(parts.query))
    return urlunsplit(parts._replace(scheme="postgresql", query=urlencode(parameters)))


def _rows(cursor: Any, uri: str, data: DataConfig) -> Rows:
    copying = "adbc.postgresql.use_copy"
    cursor.adbc_statement.set_options(**{copying: "false"})  # COPY takes no settings
    for setting in SESSION:
        cursor.execute(setting)
    cursor.adbc_statement.set_options(**{copying: "true"})
    cursor.execute("select now()")  # from here on, all rows are those of this moment
    moment = shown_moment(cursor.fetchone()[0])
    relation = chosen_relation(lambda: _tables(cursor), data, uri)
    cursor.execute(f"select * from ({relation.sql}\n) as source limit 0")
    fields = cursor.fetch_arrow_table().schema
    require_names(fields.names, uri)
    columns = [_column(field) for field in fields]
    chosen = column_sql(columns, data, relation, uri, "{0}::text".format)
    cursor.execute(f"select {chosen} from ({relation.sql}\n) as source")
    reader = cursor.fetch_record_batch()
    schema = pa.schema([pa.field(f.name, f.type) for f in reader.schema])
    numbers = [c.name for c in columns if c.sql.endswith("::float8")]
    return Rows(schema, _checked(reader, schema, numbers, uri), moment, relation.table)


def _tables(cursor: Any) -> dict[str, str]:
    cursor.execute(TABLES)
    return {
        table if visible else f"{schema}.{table}": f"{ident(schema)}.{ident(table)}"
        for schema, table, visible in cursor.fetchall()
    }


def _column(field: pa.Field) -> Column:
    name, column = field.name, ident(field.name)
    said = field.metadata or {}
    kind = said.get(b"POSTGRESQL:type", b"").decode() or str(field.type)
    if kind == "numeric":
        return Column(name, kind, f"{column}::{_number(said)}")
    if kind in TEXTS:
        return Column(name, kind, f"{column}::text")
    if kind in PLAIN or (not kind.startswith("_") and pa.types.is_string(field.type)):
        return Column(name, kind, column)  # an enum is a string of another name
    if kind == "oid":
        return Column(name, kind, f"{column}::bigint")
    if kind.startswith("_"):
        return _list(name, kind.removeprefix("_"), field.type)
    shown = "a range or a type of an extension" if kind.startswith("unnamed") else kind
    return Column(name, shown, column, REMEDIES.get(kind, "{0}::text").format(column))


def _number(said: dict[bytes, bytes]) -> str:
    """Return the type of a numeric column: whole where its declaration is, and fits."""
    modifier = int(said.get(b"POSTGRESQL:typmod", b"-1"))
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    return "bigint" if modifier >= 4 and scale == 0 and precision <= 18 else "float8"


def _list(name: str, kind: str, found: pa.DataType) -> Column:
    column, shown = ident(name), f"{kind}[]"
    if kind == "numeric":
        return Column(name, shown, f"{column}::float8[]")
    if kind in TEXTS:
        return Column(name, shown, f"{column}::text[]")
    if kind in PLAIN or (pa.types.is_list(found) and pa.types.is_string(found.value_type)):
        return Column(name, shown, column)
    return Column(name, shown, column, f"{column}::text[]")


def _checked(
    reader: pa.RecordBatchReader, schema: pa.Schema, numbers: list[str], uri: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches; refuse numbers that a double does not tell apart, and infinite times."""
    times = [f.name for f in schema if pa.types.is_timestamp(f.type) or pa.types.is_date(f.type)]
    for batch in reader:
        for name in numbers:
            if schema.field(name).type != pa.float64():
                continue  # of a list
            ends = pc.min_max(batch[name]).as_py()
            large = [v for v in ends.values() if v is not None and EXACT <= abs(v) < float("inf")]
            if large:
                raise SourceError(
                    f"{uri}: column {name!r} is numeric with values such as {large[0]:.0f}, which"
                    f" are not told apart as numbers; write {ident(name)}::text in data.query where"
                    f" it is a key, or {ident(name)}::float8 where it is a quantity"
                )
        for name in times:
            _refuse_infinite(batch[name], name, uri)
        yield batch.cast(schema) if batch.schema != schema else batch


def _refuse_infinite(times: pa.Array, name: str, uri: str) -> None:
    is_day = pa.types.is_date32(times.type)
    first = pc.min(times.view(pa.int32() if is_day else pa.int64())).as_py()
    if first is not None and first < FIRST_DAY * (1 if is_day else MICROSECONDS):
        column = ident(name)
        raise SourceError(
            f"{uri}: column {name!r} has infinite times; write case when isfinite({column}) then"
            f" {column} end as {column} in data.query"
        )


def _refused(uri: str, error: Exception) -> SourceError:
    """Return what the server or the driver says in one sentence, with what to do."""
    text = re.sub(r"Query was:.*|SQLSTATE: \w+|^\w+: ", "", str(error), flags=re.DOTALL)
    said = re.split(r"\nLINE \d+:|\nIs the server|\n\tIs the server", text)[0]
    shown = re.sub(
        r"\[\w+\]:?|Execution error|Failed to \w+( query)?:|could not begin COPY:|ERROR: ", "", said
    )
    shown = " ".join(shown.split()).rstrip(".")[:400]
    state = getattr(error, "sqlstate", None) or ""
    advice = "check data.query"
    if re.search("authentication|no password|password", text):
        advice = (
            "set PGPASSWORD in the environment (or a line of ~/.pgpass), and check the user in"
            " data.uri"
        )
    elif re.search("does not exist", text) and "database" in text and not state:
        advice = "check the database in data.uri"
    elif _is_lost(text, state):
        advice = (
            "the connection was lost and nothing was kept; check the server and the network, and"
            " run again"
        )
    elif re.search("Failed to connect|could not translate|timeout expired", text):
        advice = "check host and port in data.uri, and that the server takes connections"
    elif state == "42501":
        advice = "grant select to the user, or name another"
    elif state.startswith("22"):
        advice = "a value has no such type: correct the cast in the query or view"
    return SourceError(f"{uri}: cannot be read: {shown}; {advice}")


def _is_lost(text: str, state: str) -> bool:
    lost = (
        "closed the connection|terminating connection|connection (was )?lost|no connection|SSL SYS"
    )
    return bool(re.search(lost, text, re.IGNORECASE)) or state.startswith(("57P", "08"))
