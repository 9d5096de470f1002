"""Rows at chosen places of an order, also where the rows do not fit into memory."""

from __future__ import annotations

import duckdb
import numpy as np

from training.data.dependence.strength import Floats

BUCKETS = 1_000  # between which rows are counted before those of a few are ordered
BATCH_ROWS = 100_000
NEAR = "rows_near_chosen_places"


def chosen_places(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    by: str,
    step: int,
    length: int,
    sample: Floats | None = None,
) -> str:
    """Return the SQL of the ids of rows whose place is less than `length` beyond a multiple of
    `step`. Places count from 0 in the order of a column and the id; rows without a value have none.

    With values of a sample, the same ids are found in memory that does not grow with the rows, but
    where many rows have one value: rows are counted between quantiles of the sample, and only those
    between two that enclose a chosen place are ordered. DuckDB cannot order more than fits.

    Args:
        connection: the engine.
        relation: SQL relation with `__id` and the column.
        by: the column, a number.
        step: distance of chosen runs.
        length: of a run.
        sample: finite values of the column.
    """
    if sample is None or not len(sample):
        return (
            f"select __id from (select __id, row_number() over (order by {by}, __id) - 1 as n from"
            f" {relation} where {by} is not null) where n % {step} < {length}"
        )
    edges = np.unique(np.quantile(sample, np.arange(1, BUCKETS) / BUCKETS, method="lower"))
    counts = _counts(connection, relation, by, edges)
    first = np.cumsum(counts) - counts  # place of the first row of each bucket
    last = first + counts - 1
    # a run reaches into the bucket, or begins in it
    held = (counts > 0) & ((first % step < length) | (first // step < last // step))
    low, high = np.r_[-np.inf, edges], np.r_[edges, np.inf]
    chosen = ", ".join(
        f"(cast('{low[i]}' as double), cast('{high[i]}' as double), {first[i]})"
        for i in np.flatnonzero(held)
    )
    value = f"cast({by} as double)"
    connection.execute(
        f"create or replace temp table {NEAR} as select __id, {by} as v, b.begins from {relation}"
        f" join (values {chosen}) b(low, high, begins) on {value} >= b.low and {value} < b.high"
        f" where {by} is not null"
    )
    place = "begins + row_number() over (partition by begins order by v, __id) - 1"
    return f"select __id from (select __id, {place} as n from {NEAR}) where n % {step} < {length}"


def _counts(
    connection: duckdb.DuckDBPyConnection, relation: str, by: str, edges: Floats
) -> np.ndarray:
    """Return how many rows lie between edges: below the first, from each one on."""
    counts = np.zeros(len(edges) + 1, dtype=np.int64)
    values = connection.sql(
        f"select cast({by} as double) as v from {relation} where {by} is not null"
    )
    for batch in values.to_arrow_reader(BATCH_ROWS):
        places = np.searchsorted(edges, batch.column(0).to_numpy(zero_copy_only=False), "right")
        counts += np.bincount(places, minlength=len(counts))
    return counts
