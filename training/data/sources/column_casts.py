"""Columns of a database: their types become those of a table of rows, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.config import DataConfig
from schemas.errors import SourceError, first_few
from training.data.engine.engine import ident

LISTED = 40  # columns that a query in a message names


class Relation(NamedTuple):
    """What is read of a database: SQL of its rows, and the table's name; None of a query."""

    sql: str
    table: str | None = None
    source: str = ""


class Column(NamedTuple):
    """One column: name, type in the database, and the SQL that reads it.

    `remedy`: for a type without rows' counterpart, SQL that a query may use in place of the column.
    """

    name: str
    kind: str
    sql: str
    remedy: str = ""


def column_sql(
    columns: Sequence[Column],
    data: DataConfig,
    relation: Relation,
    where: str,
    as_text: Callable[[str], str],
) -> str:
    """Return the select list that reads the columns under their names.

    Columns without a counterpart are read as text where the declaration ignores them.

    Args:
        columns: in order.
        data: declares the roles.
        relation: what they are columns of.
        where: the database, for the message.
        as_text: returns SQL of the text of a column.

    Raises:
        SourceError: a column has a type without counterpart; with the query to declare.
    """
    refused = [c for c in columns if c.remedy and not _is_ignored(c.name, data)]
    if refused:
        raise _refusal(columns, refused, relation, where)
    return ", ".join(
        f"{as_text(ident(c.name)) if c.remedy else c.sql} as {ident(c.name)}" for c in columns
    )


def _is_ignored(name: str, data: DataConfig) -> bool:
    column = data.column(name)
    return column is not None and column.role == "ignore"


def _refusal(
    columns: Sequence[Column], refused: Sequence[Column], relation: Relation, where: str
) -> SourceError:
    named = first_few((f"{c.name!r} is {c.kind}" for c in refused), limit=8)
    if relation.table is not None and len(columns) <= LISTED:
        chosen = ", ".join(
            f"{c.remedy} as {ident(c.name)}" if c in refused else ident(c.name) for c in columns
        )
        line = f"in place of the table, declare query: select {chosen} from {relation.source}"
    else:
        casts = ", ".join(f"{c.remedy} as {ident(c.name)}" for c in refused[:8])
        line = f"in the query, write {casts}"
    return SourceError(
        f"{where}: expected numbers, texts, truth values, times or lists of them, but column"
        f" {named}; {line}, or leave the column out"
    )


def require_names(names: Iterable[str], where: str) -> None:
    """Refuse a query whose columns have no name, or one name twice.

    Raises:
        SourceError: with the names.
    """
    seen: set[str] = set()
    for name in names:
        if not name.strip() or name.lower() in seen:
            raise SourceError(
                f"{where}: expected a different name for each column of the query, got {name!r}"
                f" {'twice (or but for case)' if name.strip() else ''}; name it with `as`"
            )
        seen.add(name.lower())


def chosen_relation(
    tables: Callable[[], Mapping[str, str]], data: DataConfig, where: str
) -> Relation:
    """Return the declared query or table, or the only table.

    Args:
        tables: returns SQL of each table by its name.
        data: may declare one.
        where: the database, for the message.

    Raises:
        SourceError: there is no such table, none at all, or several and none is declared.
    """
    if data.query is not None:
        return Relation(data.query)
    found = tables()
    if not found:
        raise SourceError(f"{where}: expected tables, found none that may be read; check data.uri")
    shown = first_few(sorted(found), limit=30)
    if data.table is None:
        if len(found) > 1:
            raise SourceError(
                f"{where}: holds {len(found)} tables; name one with data.table (bulkhead init"
                f" --table): {shown}"
            )
    elif data.table not in found:
        raise SourceError(
            f"{where}: no table {data.table!r} that may be read, expected one of {shown}; check"
            " data.table"
        )
    name = next(iter(found)) if data.table is None else data.table
    return Relation(f"select * from {found[name]}", name, found[name])
