"""Tables of databases as sealed Parquet files: DuckDB and SQLite files, PostgreSQL servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from schemas.config import DataConfig
from schemas.database_config import is_server
from schemas.errors import SourceError
from schemas.references import Snapshot
from training.data.sources.duckdb_file import duckdb_rows
from training.data.sources.postgres_server import postgres_rows
from training.data.sources.snapshots import Rows, as_it_was, sealed_rows
from training.data.sources.sqlite_file import sqlite_rows

DATABASE_ENDINGS = (".duckdb", ".ddb", ".db", ".sqlite", ".sqlite3", ".db3")
SQLITE_MAGIC = b"SQLite format 3\x00"
DUCKDB_MAGIC, DUCKDB_PLACE = b"DUCK", 8
OPEN: dict[str, Callable[[Path, DataConfig], AbstractContextManager[Rows]]] = {
    "duckdb": duckdb_rows,
    "sqlite": sqlite_rows,
}


def database_kind(path: Path) -> Literal["duckdb", "sqlite"] | None:
    """Return the kind of a database file by its first bytes; None if it is none."""
    with path.open("rb") as file:
        start = file.read(len(SQLITE_MAGIC))
    if start == SQLITE_MAGIC:
        return "sqlite"
    if start[DUCKDB_PLACE : DUCKDB_PLACE + len(DUCKDB_MAGIC)] == DUCKDB_MAGIC:
        return "duckdb"
    return None


def read_server(uri: str, data: DataConfig) -> Snapshot:
    """Return the rows of a server's table or query as a sealed copy, as they are now.

    Raises:
        ConfigError: the driver is not installed, or the server may not be called.
        SourceError: the server, the table, the query or a column is refused.
    """
    with postgres_rows(uri, data) as rows:
        return sealed_rows(uri, data, rows)


def read_database(path: Path, data: DataConfig) -> Snapshot:
    """Return the rows of a database file's table or query as a sealed copy, as they are now.

    Raises:
        SourceError: the file, the table, the query or a column is refused.
    """
    with OPEN[database_kind(path) or "duckdb"](path, data) as rows:
        return sealed_rows(str(path), data, rows)


def recorded(data: DataConfig, sha256: str) -> DataConfig:
    """Return a declaration that reads the kept copies of this digest in place of its databases.

    It is the same declaration if the source is no database, or no such copies are kept.
    """
    uris = (data.uri,) if isinstance(data.uri, str) else data.uri
    named = [uri if is_server(uri) else str(Path(uri).resolve()) for uri in uris]
    return as_it_was(data, named, sha256)


def refuse_choice(data: DataConfig, kinds: set[str]) -> None:
    """Refuse a table, query or sheet of a source that has none.

    Args:
        data: may declare them.
        kinds: of the source: `database`, `sheet` or neither.

    Raises:
        SourceError: with the key to remove.
    """
    for name, kind in (("table", "database"), ("query", "database"), ("sheet", "sheet")):
        if getattr(data, name) is not None and kinds != {kind}:
            what = "databases" if kind == "database" else "Excel files"
            raise SourceError(
                f"data.{name} is for {what}, and data.uri names other files; remove it, or give"
                f" {'a DuckDB or SQLite file' if kind == 'database' else 'an .xlsx file'}"
            )
