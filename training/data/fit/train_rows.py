"""Train rows, as every part of the fit reads them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from schemas.config import Declaration
from schemas.records import TableSpec
from training.data.engine.in_memory import Rows


class ModelNeeds(NamedTuple):
    """What the declared model asks the fit for, beyond the section `normalize`.

    `bins`: number of quantile bins of each numeric column, None for none. `clamp`: the range of a
    regression label, to which predictions are clamped.
    """

    bins: int | None
    clamp: bool


def model_needs(declaration: Declaration) -> ModelNeeds:
    """Return the needs of a model; a kind without the keys `bins` and `clamp` has none."""
    model = declaration.model
    return ModelNeeds(getattr(model, "bins", None), getattr(model, "clamp", False))


class TrainRows(NamedTuple):
    """Train file, meaning of its columns and declaration, read by every part of the fit.

    `held` contains the rows if they are in memory.
    """

    connection: duckdb.DuckDBPyConnection
    path: Path
    table: str
    rows: int
    spec: TableSpec
    declaration: Declaration
    held: Rows | None = None

    def query(self, sql: str) -> list[tuple]:
        """Return all rows of a query."""
        return list(self.connection.execute(sql).fetchall())
