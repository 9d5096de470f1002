"""The train side as the parts of the fit read it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from schemas.config import Declaration
from schemas.records import TableSpec
from training.data.engine.in_memory import Rows


class TrainRows(NamedTuple):
    """What every part of the fit reads: the train file, what its columns are, and what is asked
    for; `held` are its rows where they are in memory.
    """

    connection: duckdb.DuckDBPyConnection
    path: Path
    table: str
    rows: int
    spec: TableSpec
    declaration: Declaration
    held: Rows | None = None

    def query(self, sql: str) -> list[tuple]:
        """All rows of a query."""
        return list(self.connection.execute(sql).fetchall())
