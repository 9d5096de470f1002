"""Train rows, as every part of the fit reads them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb

from schemas.config import AutoModel, Declaration
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
    """Return the needs of a model; a kind without the keys `bins` and `clamp` has none.

    Those of several candidates are joined, with the largest number of bins.
    """
    model = declaration.model
    each = model.candidates if isinstance(model, AutoModel) else (model,)
    bins = [found for one in each if (found := getattr(one, "bins", None)) is not None]
    return ModelNeeds(max(bins, default=None), any(getattr(one, "clamp", False) for one in each))


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
