"""Labels in the source: find the rows that have one, and check that values suit the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import duckdb

from schemas.config import Declaration
from schemas.errors import counted, first_few
from schemas.records import TableSpec
from schemas.task_metrics import LOG_MEAN_LOSSES
from training.data.engine.engine import count_distinct, ident, row, rows
from training.data.table.columns import Resolved
from training.data.table.typed import ignored_sql, unlabelled_sql
from training.data.target_transform import LOWEST, outside_sql


def labelled_rows(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    relation: str,
    declaration: Declaration,
) -> tuple[str, int, dict[str, int]]:
    """Return the rows that have a label, if rows without one may be left out.

    A row whose only label has a value of task.ignore is always left out, regardless of
    data.null_labels. One of several labels with such a value is unknown; the row stays if another
    label is known.

    Returns:
        The relation of the rows that stay, how many were left out for lack of a label, and how many
        labels of each column had a value that means unknown.
    """
    conditions = ignored_sql(resolved)
    counts = row(
        connection,
        f"select count(*) filter (where {unlabelled_sql(resolved)}), {_counts(conditions.values())}"
        f" from {relation}",
    )
    ignored = dict(zip(conditions, counts[1:], strict=False))
    if resolved.spec.has_several_labels:
        dropped = counts[0] if declaration.data.null_labels == "drop" else 0
        return (
            (
                f"(select * from {relation} where not {unlabelled_sql(resolved)})"
                if dropped
                else relation
            ),
            dropped,
            ignored,
        )
    unlabelled = counts[0] - sum(ignored.values())
    if declaration.data.null_labels == "drop":
        return (
            (
                f"(select * from {relation} where not {unlabelled_sql(resolved)})"
                if counts[0]
                else relation
            ),
            unlabelled,
            ignored,
        )
    stays = (
        f"(select * from {relation} where ({conditions[resolved.spec.label]}) is not true)"
        if sum(ignored.values())
        else relation
    )
    return stays, 0, ignored


def _counts(conditions: Iterable[str]) -> str:
    return ", ".join(f"count(*) filter (where {condition})" for condition in conditions) or "0"


def label_violations(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, table: str, declaration: Declaration
) -> Iterator[str]:
    """Return one sentence for each fault in the label columns of the typed table."""
    if spec.has_several_labels:
        unknown = " and ".join(f"{ident(name)} is null" for name in spec.labels)
        without = row(connection, f"select count(*) from {table} where {unknown}")[0]
        if without:
            first = [
                r[0]
                for r in rows(
                    connection, f"select __id from {table} where {unknown} order by 1 limit 5"
                )
            ]
            yield (
                f"{counted(without, 'row', 'has', 'have')} none of the {len(spec.labels)} labels,"
                " first ids:"
                f" {first_few(first, without)}; set data.null_labels: drop, or leave them out with"
                " data.filter"
            )
    for name in spec.label_columns if spec.text is None else ():
        yield from _one_label(connection, spec, name, table, declaration)


def _one_label(
    connection: duckdb.DuckDBPyConnection,
    spec: TableSpec,
    name: str,
    table: str,
    declaration: Declaration,
) -> Iterator[str]:
    declared, label = declaration.task.label(name), ident(name)
    classes = count_distinct(connection, label, table)
    if declared.kind == "regression":
        yield from _one_value(connection, name, table, classes, declaration.label_loss(name))
        yield from _outside_transform(connection, name, table, declaration.task.transform)
        return
    found = rows(
        connection,
        f"select {label}, count(*) from {table} where {label} is not null group by 1 order by 2"
        " desc, 1 limit 6",
    )
    shown = first_few((f"{v!r} ({n} rows)" for v, n in found), classes)
    if classes < 2:
        yield (
            f"column {name!r}: expected at least two classes, got one: {shown}; check the label,"
            " data.filter and data.derive"
        )
    elif declared.kind == "binary" and classes > 2:
        yield (
            f"column {name!r}: a binary label has two values, got {classes}: {shown}; set"
            f" {_path(spec, name, 'kind')}: multiclass, or derive a condition such as {name} = …"
        )
    elif (
        declared.kind == "binary"
        and declared.positive is not None
        and declared.positive not in [v for v, _ in found]
    ):
        yield (
            f"{_path(spec, name, 'positive')}: expected one of the label's values {shown}, got"
            f" {declared.positive!r}; name one of them"
        )
    if (
        declared.kind == "multiclass"
        and spec.label_columns[name].type == "float"
        and row(connection, f"select count(*) from {table} where {label} <> floor({label})")[0]
    ):
        yield (
            f"column {name!r}: a multiclass label has no fractions, got {shown}; set"
            f" {_path(spec, name, 'kind')}: regression"
        )


def _one_value(
    connection: duckdb.DuckDBPyConnection, name: str, table: str, values: int, loss: str
) -> Iterator[str]:
    """Return a sentence for a regression label without values, or below 0 where its loss predicts
    log means.
    """
    if not values:
        yield (
            f"column {name!r}: expected values of the label, got nulls only; remove it from the"
            " labels"
        )
    if loss not in LOG_MEAN_LOSSES:
        return
    negative = f"{ident(name)} < 0"
    count = row(connection, f"select count(*) from {table} where {negative}")[0]
    if count:
        first = rows(
            connection,
            f"select __id, {ident(name)} from {table} where {negative} order by 1 limit 5",
        )
        yield (
            f"column {name!r}: loss {loss} expects labels of at least 0, got {count} below, first"
            f" ids: {first_few((f'{key} ({value:g})' for key, value in first), count)}; use loss"
            " mse, or leave those rows out with data.filter"
        )


def _outside_transform(
    connection: duckdb.DuckDBPyConnection, name: str, table: str, transform: str
) -> Iterator[str]:
    """Return a sentence for labels whose logarithm `task.transform` cannot take."""
    if transform == "none":
        return
    outside = outside_sql(transform, ident(name))
    count, low = row(
        connection, f"select count(*), min({ident(name)}) from {table} where {outside}"
    )
    if not count:
        return
    first = rows(
        connection, f"select __id, {ident(name)} from {table} where {outside} order by 1 limit 5"
    )
    remedy = (
        "use task.transform: log1p, which takes 0"
        if low == 0
        else "remove task.transform (a logarithm has no value below 0)"
    )
    yield (
        f"column {name!r}: task.transform {transform} expects labels {LOWEST[transform]}, got"
        f" {count} others, first ids: {first_few((f'{key} ({v:g})' for key, v in first), count)};"
        f" {remedy}, or leave those rows out with data.filter"
    )


def _path(spec: TableSpec, name: str, option: str) -> str:
    """Return the path of a label's option in the declaration."""
    return f"task.labels.{name}.{option}" if spec.has_several_labels else f"task.{option}"
