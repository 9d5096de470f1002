"""Folds in time: blocks between timestamps, with purging around them and an embargo.

A row has time `t` and its label is known at `e >= t`; all in the units of `__time`, never in rows.
All rows of a timestamp lie in the same split, so it is never in train and test at once. T times, K
folds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import duckdb
import numpy as np

from schemas.errors import SplitError
from training.data.engine.engine import literal, row

END = "__label_end"


class TimeFold(NamedTuple):
    """Times at which a fold's test block begins and ends and its validation begins.

    The end is exclusive; None means no end.
    """

    begin: float
    end: float | None
    val: float


def nearest_cuts(
    times: np.ndarray, counts: np.ndarray, blocks: int, least_first: int = 1
) -> list[float]:
    """Return the times at which the second and later blocks begin; blocks have similar row counts.

    Args:
        times: distinct, ascending [T].
        counts: rows at each time [T].
        blocks: number of blocks; each contains at least one time.
        least_first: least number of times in the first block.

    >>> nearest_cuts(np.array([1.0, 2.0, 3.0, 9.0]), np.array([1, 1, 1, 3]), 3)
    [3.0, 9.0]
    """
    before = np.cumsum(counts) - counts  # rows earlier than each time
    found: list[int] = []
    for number in range(1, blocks):
        target = counts.sum() * number / blocks
        least, most = (found[-1] + 1 if found else least_first), len(times) - (blocks - number)
        found.append(least + int(np.abs(before[least : most + 1] - target).argmin()))
    return [float(times[i]) for i in found]


def time_folds(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    kind: str,
    folds: int,
    val: float,
    limits: dict[str, float | None],
) -> list[TimeFold]:
    """Return each fold's blocks, decided on the rows of a table with `__time` and `__label_end`.

    Args:
        connection: the engine.
        table: the rows.
        kind: walk_forward, group_walk_forward or purged.
        folds: number of folds.
        val: share of a fold's train rows, the latest ones, that become validation.
        limits: embargo and window in units of time.

    Raises:
        SplitError: fewer times than blocks, or nothing is left to train on before or around a
            block.
    """
    # one time to train on, one to validate on
    blocks, least_first = (folds, 1) if kind == "purged" else (folds + 1, 2)
    times, counts = _times(connection, table)
    if len(times) < blocks - 1 + least_first:
        raise SplitError(
            f"cv.folds: {folds} folds of kind {kind!r} need at least {blocks - 1 + least_first}"
            f" different times, got {len(times)}; lower cv.folds"
        )
    cuts = nearest_cuts(times, counts, blocks, least_first)
    begins = [float(times[0]), *cuts] if kind == "purged" else cuts
    found = []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], None], strict=True)):
        bare = TimeFold(begin, end, begin)
        left = (
            f"(select * from {table} where {_beside_sql(connection, table, kind, bare, limits)} ="
            " 'train')"
        )
        at, rows_at = _times(connection, left)
        if len(at) < 2:
            raise SplitError(
                f"fold {number + 1} of {folds} ({kind}): expected at least two different times to"
                f" train and validate on, got {len(at)}; lower cv.folds, or shorten cv.embargo,"
                " cv.horizon or widen cv.window"
            )
        earlier = np.cumsum(rows_at) - rows_at
        place = 1 + int(np.abs(earlier[1:] - (1 - val) * rows_at.sum()).argmin())
        found.append(bare._replace(val=float(at[place])))
    return found


def time_fold_sql(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    kind: str,
    fold: TimeFold,
    limits: dict[str, float | None],
) -> str:
    """Return SQL for a row's split in a fold, or for the reason why it has none.

    Reasons: purged, embargo, window or later.
    """
    gap = literal(float(limits["embargo"] or 0.0) if kind != "purged" else 0.0)
    val = literal(fold.val)
    carved = (
        f"case when __time >= {val} then 'val' when {END} >= {val} then 'purged' when __time +"
        f" {gap} > {val} then 'embargo' else 'train' end"
    )
    beside = _beside_sql(connection, table, kind, fold, limits)
    return f"case when {beside} = 'train' then {carved} else {beside} end"


def _beside_sql(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    kind: str,
    fold: TimeFold,
    limits: dict[str, float | None],
) -> str:
    """Return SQL for the split before validation rows are taken out."""
    begin, gap = literal(fold.begin), literal(float(limits["embargo"] or 0.0))
    inside = f"__time >= {begin}" + (
        f" and __time < {literal(fold.end)}" if fold.end is not None else ""
    )
    if kind == "purged":
        last = row(connection, f"select max({END}) from {table} where {inside}")[0]
        known = literal(float(last))
        return (
            f"case when {inside} then 'test' when __time < {begin} then case when {END} >= {begin}"
            f" then 'purged' else 'train' end when __time <= {known} then 'purged' when __time <="
            f" {known} + {gap} then 'embargo' else 'train' end"
        )
    window = limits["window"]
    short = (
        f"when __time < {begin} - {gap} - {literal(float(window))} then 'window' "
        if window is not None
        else ""
    )
    return (
        f"case when {inside} then 'test' when __time >= {begin} then 'later' when {END} >= {begin}"
        f" then 'purged' when __time + {gap} > {begin} then 'embargo' {short}else 'train' end"
    )


def _times(connection: duckdb.DuckDBPyConnection, table: str) -> tuple[np.ndarray, Any]:
    """Return distinct times in order, and the number of rows at each."""
    found = connection.sql(
        f"select __time, count(*) as n from {table} group by 1 order by 1"
    ).to_arrow_table()
    return found["__time"].to_numpy(), found["n"].to_numpy()
