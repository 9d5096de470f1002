"""Cut points in time, declared or at a share of the rows, and the split of a row between them."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb

from schemas.config import Fractions, TimeCuts
from schemas.errors import SplitError
from schemas.records import TableSpec
from training.data.engine.engine import count_distinct, literal, row, rows


def time_side_sql(cuts: dict[str, float], embargo: float, has_label_time: bool = False) -> str:
    """Return SQL for a row's split by its time.

    Train is before the val cut; val is [val cut + embargo, test cut); test is from test cut +
    embargo on; other rows are 'embargo'. If the time of each label is known, rows before a cut
    whose label came at or after it are 'label_interval': a model trained at the cut does not have
    these labels yet, and they carry information about the time after it.
    """
    val, test = cuts["val"], cuts["test"]
    late = (
        f"when __time < {literal(val)} and __label_time >= {literal(val)} or __time <"
        f" {literal(test)} and __label_time >= {literal(test)} then 'label_interval' "
    )
    return (
        f"case {late if has_label_time else ''}"
        + f"when __time < {literal(val)} then 'train' when __time < {literal(val + embargo)} then"
        f" 'embargo' when __time < {literal(test)} then 'val' when __time <"
        f" {literal(test + embargo)} then 'embargo' else 'test' end"
    )


def share_cuts(
    connection: duckdb.DuckDBPyConnection, table: str, fractions: Fractions
) -> dict[str, float]:
    """Return the times at which val and test begin, so that shares of rows come closest.

    A time is never in two splits.

    Raises:
        SplitError: fewer than three different times.
    """
    total, times = (
        row(connection, f"select count(*) from {table}")[0],
        count_distinct(connection, "__time", table),
    )
    if times < 3:
        raise SplitError(
            f"split.fractions: expected at least 3 different times to cut between, got {times}; use"
            " another strategy, or a finer time column"
        )
    before = (
        f"(select __time, sum(count(*)) over (order by __time) - count(*) as before from {table}"
        " group by __time)"
    )
    last = row(connection, f"select max(__time) from {table}")[0]
    nearest = (
        "select __time from {0} where before > 0 and {1} order by abs(before - {2}), __time limit 1"
    )
    val = rows(
        connection,
        nearest.format(
            before, f"__time < {literal(float(last))}", literal(fractions.train * total)
        ),
    )[0][0]
    test = rows(
        connection,
        nearest.format(
            before,
            f"__time > {literal(float(val))}",
            literal((fractions.train + fractions.val) * total),
        ),
    )[0][0]
    return {"val": float(val), "test": float(test)}


def declared_cuts(cuts: TimeCuts, spec: TableSpec) -> dict[str, float]:
    """Return declared cut points in the units of `__time`.

    Raises:
        SplitError: a cut does not fit the time column, or they are out of order.
    """
    found = {"val": _moment("val", cuts.val, spec), "test": _moment("test", cuts.test, spec)}
    if found["val"] >= found["test"]:
        raise SplitError(
            f"split.cuts: expected val before test, got {cuts.val!r} and {cuts.test!r}; swap them"
        )
    return found


def _moment(side: str, value: str | float, spec: TableSpec) -> float:
    where = f"split.cuts.{side}"
    if spec.time_is_timestamp:
        if not isinstance(value, str):
            raise SplitError(
                f"{where}: column {spec.time!r} holds timestamps, got the number {value!r}; give an"
                " ISO date such as 2024-01-31"
            )
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise SplitError(
                f"{where}: expected an ISO date or time such as 2024-01-31 or 2024-01-31T12:00, got"
                f" {value!r}"
            ) from error
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, str):
        raise SplitError(
            f"{where}: column {spec.time!r} holds numbers, got the text {value!r}; give a number"
        )
    return float(value)


def time_text(value: float | None, spec: TableSpec) -> str | float | None:
    """Format a value of `__time` for people: ISO in UTC for timestamps, else the number itself."""
    if value is None or not spec.time_is_timestamp:
        return value
    return datetime.fromtimestamp(value, UTC).isoformat()
