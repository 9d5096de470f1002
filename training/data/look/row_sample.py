"""Rows of a table for a first look: all of them, or a sample that keeps their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

from schemas.config import DataConfig
from schemas.database_config import ONLY_TABLE, Choice
from schemas.errors import SourceError
from schemas.records import SourceRef
from training.data.draft.open_source import open_source
from training.data.draft.profile import SAMPLE
from training.data.engine.engine import ident, literal, row, rows
from training.data.engine.many_columns import plan_quickly
from training.data.sources.source import relation_sql, unreadable
from training.data.sources.text_files import csv_texts
from training.data.sources.text_types import typed_sql
from training.data.table.sql_types import family

MOST_ROWS, LEAST_ROWS = 200_000, 5_000
MOST_CELLS = 20_000_000
PARTS = 1 << 20  # of the hashes of rows: the first of them are the sample
MOST_CHARACTERS = 1_000  # of a text: longer ones are compared by their beginning


class RowSample(NamedTuple):
    """Rows in the order of the file, and what is known of the whole table.

    `types` are SQL types. `rows` counts all rows, `relation` has them.
    """

    source: SourceRef
    data: DataConfig
    types: dict[str, str]
    table: pa.Table
    rows: int
    relation: str

    @property
    def sampled(self) -> int:
        """Rows that were read."""
        return int(self.table.num_rows)


def read_rows(
    connection: duckdb.DuckDBPyConnection,
    uri: str,
    most: int | None = None,
    choice: Choice = ONLY_TABLE,
) -> RowSample:
    """Return the rows for a look at a table.

    A row of a larger table is taken by its hash. So the same rows are taken in whatever order they
    come, and equal rows are taken together.

    Args:
        connection: an open engine; afterwards it holds the rows as the table `bulkhead_sample`.
        uri: file, folder, glob or database.
        most: rows above which a sample is taken. Default: 200,000, or fewer of many columns.
        choice: table, query or sheet.

    Raises:
        SourceError: the source cannot be found or read, or has no rows.
    """
    source, data = open_source(uri, choice)
    try:
        relation, names, is_text = _relation(connection, source, data)
        plan_quickly(connection, len(names))
        total = int(row(connection, f"select count(*) from {relation}")[0])
        if not total:
            raise SourceError(f"{uri}: expected rows, got none; give another table")
        limit = most or max(LEAST_ROWS, min(MOST_ROWS, MOST_CELLS // len(names)))
        chosen = f" where {_chosen(names, limit / total)}" if total > limit else ""
        rows_sql = f"select * from {relation}{chosen}"
        if is_text:
            connection.execute(f"create temp table {SAMPLE}_texts as {rows_sql}")
            nulls = [text for text in data.csv.null_values if text]
            typed = typed_sql(
                connection,
                _with_nulls(f"{SAMPLE}_texts", names, nulls),
                names,
                (),
                data.csv.decimal,
            )
            rows_sql = f"select * from {typed}"
        connection.execute(f"create temp table {SAMPLE} as {rows_sql}")
        if is_text:
            connection.execute(f"drop table {SAMPLE}_texts")
        types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe {SAMPLE}")}
        table = connection.sql(f"select {_plain_columns(types)} from {SAMPLE}").to_arrow_table()
    except duckdb.Error as error:
        raise unreadable(source, error) from error
    return RowSample(source, data, types, table.combine_chunks(), total, relation)


def _relation(
    connection: duckdb.DuckDBPyConnection, source: SourceRef, data: DataConfig
) -> tuple[str, list[str], bool]:
    """Return all rows, the columns, and whether they are texts whose types are still to be found.

    Types of delimited text are found on the sample: to find them on every row takes longer than all
    the rest.
    """
    is_text = source.format == "csv" and not source.partitions
    relation = csv_texts(source, data) if is_text else relation_sql(source, data, connection)
    return (
        relation,
        [str(r[0]) for r in rows(connection, f"describe select * from {relation}")],
        is_text,
    )


def exact_distinct(
    connection: duckdb.DuckDBPyConnection, sample: RowSample, names: Sequence[str]
) -> dict[str, int]:
    """Return the number of different values of some columns in all rows; nulls do not count."""
    if not names:
        return {}
    counts = ", ".join(f"count(distinct {ident(n)})" for n in names)
    found = row(connection, f"select {counts} from {sample.relation}")
    return dict(zip(names, map(int, found), strict=True))


def _chosen(names: Sequence[str], fraction: float) -> str:
    return f"hash({', '.join(map(ident, names))}) % {PARTS} < {round(fraction * PARTS)}"


def _with_nulls(relation: str, names: Sequence[str], nulls: Sequence[str]) -> str:
    """Return the relation with the texts for null made null."""
    if not nulls:
        return relation
    among = ", ".join(map(literal, nulls))
    columns = ", ".join(
        f"case when {ident(n)} not in ({among}) then {ident(n)} end as {ident(n)}" for n in names
    )
    return f"(select {columns} from {relation})"


def _plain_columns(types: dict[str, str]) -> str:
    """Return a select list in which each column has values that can be compared and counted.

    Lists and other nested values become their hashes; long texts are cut.
    """
    return ", ".join(_plain_column(ident(name), kind) for name, kind in types.items())


def _plain_column(column: str, kind: str) -> str:
    group = family(kind)
    if group in ("list", "other"):
        return f"case when {column} is not null then hash({column}) end as {column}"
    if group == "text":
        return f"left(cast({column} as varchar), {MOST_CHARACTERS}) as {column}"
    return column
