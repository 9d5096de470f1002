"""Train rows, as every part of the fit reads them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import AutoModel, Declaration
from schemas.records import TableSpec, TrainTable
from training.data.engine.in_memory import Rows, held

# of a train file that is read whole: each column's own queries take longer than its few rows
SMALL_BYTES = 64 << 20
SMALL_SHARE = 0.04  # of the memory limit


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


def rows_in_memory(train: TrainTable, spec: TableSpec, declaration: Declaration) -> Rows | None:
    """Return the rows of a train table that is held, or whose file is small; else None.

    A file on Spark's side is left to Spark.
    """
    if (found := held(train)) is not None or declaration.data.engine == "spark":
        return found
    limit = declaration.data.memory_bytes
    most = SMALL_BYTES if limit is None else min(SMALL_BYTES, int(limit * SMALL_SHARE))
    if Path(train.file.path).stat().st_size > most:
        return None
    names = [*spec.numeric, *spec.categorical]
    file = pq.ParquetFile(train.file.path, read_dictionary=list(spec.categorical))
    with file:
        types = {field.name: field.type for field in file.schema_arrow}
        if any(types[name] != pa.float64() for name in spec.numeric):
            return None
        return Rows(file.read(names).combine_chunks())
