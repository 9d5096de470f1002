"""Source rows before training, to check that derived features served from them match the table."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

from schemas.errors import ConfigError
from schemas.records import FileRef, TableSpec
from training.data.engine.engine import ident, write_parquet
from training.data.serving_expressions import derive
from training.data.table.typed import raw_names

NUM_ROWS = 2048  # of all splits; enough that each has some
CLOSE = 1e-9


def keep_raw_rows(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, typed: str, order: str, path: Path
) -> FileRef | None:
    """Write `__id` and the source columns of derived features for the first rows in an order.

    Serving must agree with the engine on these rows first.

    Args:
        connection: the engine.
        spec: its `derived` are the trees that serving will have.
        typed: relation with the columns of `training.data.table.typed.typed_sql`.
        order: SQL of an order without ties.
        path: the Parquet file.

    Returns:
        The file; None, without a file, if no feature is derived.

    Raises:
        ConfigError: serving computes something else than the engine did; names the column, both
            values and the row.
    """
    if not spec.derived:
        return None
    features = [name for name in spec.features if name in spec.derived]
    raw = ", ".join(
        ["__id", *(f"{ident(stored)} as {ident(name)}" for name, stored in raw_names(spec).items())]
    )
    kept = f"select {raw} from {typed} order by {order} limit {NUM_ROWS}"
    table = (
        connection.sql(
            f"select {', '.join(map(ident, features))} from {typed} order by {order} limit"
            f" {NUM_ROWS}"
        )
        .to_arrow_table()
        .to_pandas()
    )
    require_agreement(connection.sql(kept).to_arrow_table().to_pandas(), table, spec)
    return write_parquet(connection, kept, path).file


def require_agreement(raw: pd.DataFrame, table: pd.DataFrame, spec: TableSpec) -> None:
    """Check that serving computes the table's values from the raw rows.

    Args:
        raw: `__id` and raw columns [N].
        table: the derived features of the same rows as the typed table has them.
        spec: names the trees and the kinds of the features.

    Raises:
        ConfigError: naming column, values, row and how many of the rows.
    """
    try:
        found = derive(raw, spec.derived, list(table.columns))
    except ValueError as error:
        raise ConfigError(
            f"data.derive: serving refuses rows that the engine takes: {error}; rewrite the"
            " expression"
        ) from error
    for name in table.columns:
        differ = ~_equal(found[name], table[name], name in spec.numeric)
        if differ.any():
            at = int(differ.argmax())
            raise ConfigError(
                f"data.derive.{name}: serving computes {found[name].iloc[at]!r}, the engine"
                f" {table[name].iloc[at]!r}, in row {raw['__id'].iloc[at]!r} and"
                f" {int(differ.sum()) - 1} more of {len(raw)}; rewrite the expression"
                f" {spec.derived[name]['sql']!r}, or compute the column before the source is"
                " written"
            )


def _equal(found: pd.Series, wanted: pd.Series, numeric: bool) -> np.ndarray:
    """Compare values, bool [N]; numbers are equal to a billionth.

    Numbers may be given as numbers or, in a category, as text.
    """
    if numeric or found.dtype.kind == "f":
        ours, theirs = (
            np.asarray(pd.to_numeric(values), dtype=np.float64) for values in (found, wanted)
        )
        return np.asarray(np.isclose(ours, theirs, rtol=CLOSE, atol=0, equal_nan=True))
    texts = found.map(
        lambda value: str(value).lower() if isinstance(value, bool | np.bool_) else str(value),
        na_action="ignore",
    )
    return np.asarray(
        (texts.to_numpy(dtype=object) == wanted.to_numpy(dtype=object))
        | (found.isna() & wanted.isna()),
        dtype=bool,
    )
