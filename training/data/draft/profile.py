"""Figures of a table's columns, from which a first declaration is guessed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import combinations, islice
from typing import Any, NamedTuple, TypeVar

import duckdb

from schemas.config import DataConfig
from schemas.database_config import ONLY_TABLE, Choice
from schemas.records import SourceRef
from training.data.draft.number_columns import with_spellings
from training.data.draft.number_figures import number_figures
from training.data.draft.open_source import open_source
from training.data.engine.engine import ident, literal, row, rows
from training.data.engine.many_columns import WIDE, plan_quickly
from training.data.sources.source import relation_sql, unreadable, usable
from training.data.sources.text_files import csv_texts
from training.data.sources.text_types import typed_sql
from training.data.table.sql_types import Family, family, is_whole

SAMPLE_ROWS = 200_000
SAMPLE, TEXTS = "bulkhead_sample", "bulkhead_file"
DATES = (
    *("%m/%d/%y", "%d/%m/%y", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d"),
    *("%Y%m%d", "%d-%b-%Y", "%d-%m-%Y", "%Y-%m-%d", "%Y.%m.%d", "%d %b %Y", "%d %B %Y"),
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
)
CLOCKS = (
    " %H:%M",
    " %H:%M:%S",
    "T%H%M%S",
    "T%H:%M:%S",
    " %I:%M %p",
    " %I:%M:%S %p",
    " %H:%M:%S.%f",
)
DATE_FORMATS = (*DATES, *(day + clock for clock in CLOCKS for day in DATES))
CODES = 20  # different numbers of a label that may be codes of classes
FEW_ROWS = 20_000
AT_ONCE = 100  # columns of one query
LEAST_STEPS = 10  # different values of a column that follows the label: fewer may do so by chance
Item = TypeVar("Item")
FIGURES = ("present", "distinct", "low", "high", "shortest", "longest", "whole")
SIDES = {"train", "val", "valid", "validation", "test"}


class Profile(NamedTuple):
    """One column in the sample.

    It has type, non-null rows, distinct values, share of nulls, extremes of numbers, and list
    sizes. `is_whole` is True for whole numbers of any type: a null among them makes them decimal
    ones in many files.
    """

    name: str
    type: str
    family: Family
    present: int
    distinct: int
    null_share: float
    low: float = math.nan
    high: float = math.nan
    shortest: int = 0
    longest: int = 0
    is_whole: bool = False

    @property
    def is_number(self) -> bool:
        """Return True for whole or decimal numbers."""
        return self.family in ("int", "float")


def read_table(
    connection: duckdb.DuckDBPyConnection, uri: str, choice: Choice = ONLY_TABLE
) -> tuple[DataConfig, list[Profile], int, str]:
    """Load a sample of the table into the engine and describe its columns.

    Delimited text is parsed once, and kept in the engine as text.

    Args:
        connection: an open engine; afterwards it holds the table `bulkhead_sample` of at most
            200,000 rows.
        uri: file, folder, glob or database.
        choice: table, query or sheet.

    Returns:
        The detected reading options (delimiter, texts for null, spellings of numbers), the columns
        in order, the number of rows, and all rows as a relation.

    Raises:
        SourceError: the source cannot be found or read.
    """
    source, data = open_source(uri, choice)

    def read(options: DataConfig) -> str:
        if source.format == "csv" and not source.partitions:
            return _staged(connection, source, options)
        return relation_sql(source, options, connection)

    data, relation = with_spellings(connection, source, data, read)
    return data, *describe_sample(connection, relation), relation


def _staged(connection: duckdb.DuckDBPyConnection, source: SourceRef, data: DataConfig) -> str:
    """Return the rows of delimited text, typed as `relation_sql` types them."""
    try:
        connection.execute(
            f"create temp table if not exists {TEXTS} as select * from {csv_texts(source, data)}"
        )
    except duckdb.Error as error:
        raise unreadable(source, error) from error
    names = [str(r[0]) for r in rows(connection, f"describe {TEXTS}")]
    plan_quickly(connection, len(names))
    nulls = ", ".join(literal(text) for text in data.csv.null_values if text)
    if nulls:
        columns = ", ".join(
            f"case when {ident(n)} not in ({nulls}) then {ident(n)} end as {ident(n)}"
            for n in names
        )
        texts = f"(select {columns} from {TEXTS})"
    else:
        texts = TEXTS
    relation = typed_sql(connection, texts, names, decimal=data.csv.decimal)
    types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {relation}")}
    return usable(relation, types)


def describe_sample(
    connection: duckdb.DuckDBPyConnection, relation: str
) -> tuple[list[Profile], int]:
    """Load a sample of a relation into the engine as `bulkhead_sample`, and describe its columns.

    Also return the number of all its rows.
    """
    total = int(row(connection, f"select count(*) from {relation}")[0])
    chosen = (
        ""  # the whole table, in the order of the file
        if total <= SAMPLE_ROWS
        else f" using sample reservoir({SAMPLE_ROWS} rows) repeatable (0)"
    )
    connection.execute(f"create temp table {SAMPLE} as select * from {relation}{chosen}")
    types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe {SAMPLE}")}
    return _profiles(connection, types), total


def profile_of(connection: duckdb.DuckDBPyConnection, name: str, kind: str) -> Profile:
    """Return the figures of one column of the sample."""
    return _profiles(connection, {name: kind})[0]


def _profiles(connection: duckdb.DuckDBPyConnection, types: dict[str, str]) -> list[Profile]:
    """Return the figures of columns of the sample, many at a time."""
    total = int(row(connection, f"select count(*) from {SAMPLE}")[0])
    few = total <= FEW_ROWS
    found = {}
    if few and len(types) >= WIDE:
        for name, (present, distinct, low, high, whole) in number_figures(
            connection, SAMPLE, types
        ):
            known = (present, distinct, low, high, None, None, whole)
            found[name] = _profile(name, types[name], total, known)
    others = [(name, kind) for name, kind in types.items() if name not in found]
    for part in batched(others, AT_ONCE):
        figures = [figure for name, kind in part for figure in _figures(name, kind, few)]
        values = row(connection, f"select {', '.join(figures)} from {SAMPLE}")
        for place, (name, kind) in enumerate(part):
            at = len(FIGURES) * place
            found[name] = _profile(name, kind, total, values[at : at + len(FIGURES)])
    return [found[name] for name in types]


def _profile(name: str, kind: str, total: int, figures: Sequence[Any]) -> Profile:
    """Return the profile of a column of `total` rows from its `FIGURES`."""
    present, distinct, low, high, shortest, longest, whole = figures
    nulls = 1 - present / max(total, 1)
    ends = (math.nan if low is None else low, math.nan if high is None else high)
    sizes = (shortest or 0, longest or 0)
    return Profile(
        *(name, kind, _group(kind), present, distinct, nulls, *ends, *sizes), is_whole=bool(whole)
    )


def _group(kind: str) -> Family:
    return "int" if is_whole(kind) else family(kind)


def _figures(name: str, kind: str, few: bool) -> list[str]:
    """Return the aggregates of `FIGURES` in SQL.

    Lists count the different values of `few` rows five times faster than hash tables do.
    """
    column, group = ident(name), _group(kind)
    ends, sizes = ["null", "null"], ["null", "null"]
    whole = "true" if group == "int" else "false"
    if group in ("int", "float"):
        ends = [f"cast(min({column}) as double)", f"cast(max({column}) as double)"]
    if group == "float":
        number = f"cast({column} as double)"
        whole = f"bool_and(isfinite({number}) and {number} = trunc({number}))"
    if group == "list":
        sizes = [f"min(len({column}))", f"max(len({column}))"]
    distinct = (
        f"coalesce(len(list_distinct(list({column}))), 0)" if few else f"count(distinct {column})"
    )
    return [f"count({column})", distinct, *ends, *sizes, whole]


def batched(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Yield the items in tuples of at most so many."""
    left = iter(items)
    while part := tuple(islice(left, size)):
        yield part


def split_values(connection: duckdb.DuckDBPyConnection, column: Profile) -> set[str]:
    """Return the column's values if all of them name a split, else nothing."""
    if column.family != "text" or not 2 <= column.distinct <= len(SIDES):
        return set()
    values = {
        str(r[0])
        for r in rows(
            connection,
            f"select distinct {ident(column.name)} from {SAMPLE} where {ident(column.name)} is not"
            " null",
        )
    }
    return values if values <= SIDES else set()


def date_format(connection: duckdb.DuckDBPyConnection, column: Profile) -> tuple[str, bool] | None:
    """Return the format in which every text of the column is a date.

    Also return whether another format fits.
    """
    if column.family != "text" or not column.present:
        return None
    example = str(row(connection, f"select any_value({ident(column.name)}) from {SAMPLE}")[0])
    has_date = sum(c.isdigit() for c in example) >= 3 and len(example) <= 40
    candidates = [f for f in DATE_FORMATS if _fits(example, f)] if has_date else []
    if not candidates:
        return None
    counts = row(
        connection,
        "select "
        + ", ".join(f"count(try_strptime({ident(column.name)}, {literal(f)}))" for f in candidates)
        + f" from {SAMPLE}",
    )
    found = [f for f, count in zip(candidates, counts, strict=True) if count == column.present]
    return (found[0], len(found) > 1) if found else None


def _fits(text: str, form: str) -> bool:
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def like_label(
    connection: duckdb.DuckDBPyConnection, label: Profile, columns: Sequence[Profile]
) -> dict[str, str]:
    """Return columns that give the label away, with the reason.

    Each is a copy, a code or a near copy of the label, or one of its two parts.
    """
    found: dict[str, str] = {}
    for column in columns:
        if reason := _copy(connection, label, column):
            found[column.name] = reason
    found = _close(connection, label, columns) | found
    numbers = [c for c in columns if c.is_number and c.name not in found][:40]
    pairs = list(combinations(numbers, 2)) if label.is_number and label.distinct > 2 else []
    if pairs:
        parts = [f"bool_and({_double(a)} + {_double(b)} = {_double(label)})" for a, b in pairs]
        for (a, b), holds in zip(
            pairs, row(connection, f"select {', '.join(parts)} from {SAMPLE}"), strict=True
        ):
            if holds:
                found |= dict.fromkeys(
                    (a.name, b.name), f"{plain(a.name)} + {plain(b.name)} is the label in every row"
                )
    return found


def _copy(connection: duckdb.DuckDBPyConnection, label: Profile, column: Profile) -> str | None:
    """Return a column that gives the label exactly.

    Numbers that follow a label of many numbers, each step up with a step up (or down), are the
    label on another scale. Otherwise each value of the column has one value of the label. This says
    something only if values repeat: numbers that are all different prove nothing.
    """
    if column.distinct < 2 or column.family == "list":
        return None
    many = label.is_number and label.distinct > CODES
    if many and column.is_number:
        if min(column.distinct, label.distinct) >= LEAST_STEPS and _follows(
            connection, label, column
        ):
            return "it rises or falls with the label in every row: the label on another scale"
        return None
    if column.distinct > (label.distinct if many else 2 * label.distinct):
        return None
    count, pairs = row(
        connection,
        f"select count(*), count(distinct ({ident(column.name)}, {ident(label.name)})) from"
        f" {SAMPLE} where {_both(label, column)}",
    )
    repeats = count >= 2 * column.distinct
    return (
        "each of its values has one value of the label: the label under another name"
        if repeats and pairs == column.distinct
        else None
    )


def _follows(connection: duckdb.DuckDBPyConnection, label: Profile, column: Profile) -> bool:
    """Return True if each value of the column has one value of the label, in the same order.

    A larger value always has a larger label, or always a smaller one.
    """
    values = (
        f"select {ident(column.name)} as c, min({ident(label.name)}) as l, max({ident(label.name)})"
        f" as m from {SAMPLE} where {_both(label, column)} group by 1"
    )
    steps = f"select l, m, lag(l) over (order by c) as before from ({values})"
    same, up, down, count = row(
        connection,
        "select bool_and(l = m), bool_and(l > before), bool_and(l < before), count(*) from"
        f" ({steps})",
    )
    return count >= LEAST_STEPS and bool(same and (up or down))


def _close(
    connection: duckdb.DuckDBPyConnection, label: Profile, columns: Sequence[Profile]
) -> dict[str, str]:
    """Return numbers that follow a numeric label nearly in a line, with the correlation."""
    numbers = [c for c in columns if c.is_number] if label.is_number else []
    found = {}
    for part in batched(numbers, AT_ONCE):
        parts = ", ".join(f"corr({_double(c)}, {_double(label)})" for c in part)
        for column, relation in zip(
            part, row(connection, f"select {parts} from {SAMPLE}"), strict=True
        ):
            if relation is not None and math.isfinite(relation) and abs(relation) >= 0.99:
                found[column.name] = f"correlation {relation:.3f} with the label: known before it?"
    return found


def _both(label: Profile, column: Profile) -> str:
    return f"{ident(label.name)} is not null and {ident(column.name)} is not null"


def _double(column: Profile) -> str:
    return f"cast({ident(column.name)} as double)"


def plain(text: str) -> str:
    r"""Return a name for a comment: one line, printable.

    >>> plain("a\nb")
    'a b'
    """
    return "".join(c if c.isprintable() else " " for c in text)
