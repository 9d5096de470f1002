"""Typed rows in memory, or in the engine if they do not fit or a memory limit is declared."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from schemas.config import Declaration
from schemas.records import SourceRef
from training.data.engine.engine import ident
from training.data.engine.in_memory import fits, registered
from training.data.engine.sorted_rows import Column, Numbers, hash_sorted
from training.data.sources.plain_parquet import plain_columns
from training.data.table.columns import Resolved
from training.data.table.sql_types import family
from training.data.table.typed import typed_sql

TYPED = "typed_rows"
SAMPLE_ROWS = 10_000  # used to estimate the memory of a row; fewer of many columns
LEAST_SAMPLE, SAMPLE_VALUES = 100, 1_000_000


def read_typed(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    labelled: str,
    rows: int,
    declaration: Declaration,
    whole: SourceRef | None,
) -> tuple[pa.Table | None, bool | None]:
    """Make the relation `TYPED`: of rows in memory, or of the engine.

    `whole`: the source, if the relation has all of its rows in its order. Rows in memory are
    returned in `ORDER`, with a flag that says whether their ids differ.
    """
    few = max(LEAST_SAMPLE, min(SAMPLE_ROWS, SAMPLE_VALUES // len(resolved.types)))
    sample = connection.sql(
        f"select * from {typed_sql(resolved, f'(select * from {labelled} limit {few})')}"
    ).to_arrow_table()
    if declaration.data.memory_bytes is not None or not fits(sample, rows):
        connection.execute(
            f"create temp table {TYPED} as select * from {typed_sql(resolved, labelled, True)}"
        )
        return None, None
    typed = typed_sql(resolved, labelled, True)
    if not resolved.spec.id:
        table, ids_differ = hash_sorted(connection, typed, rows)
    else:  # the key is the id: do not compute it twice
        plain = _plain(whole, resolved, declaration, rows) if whole else {}
        witness = max(
            (n for n, column in plain.items() if isinstance(column, Numbers)),
            key=lambda name: len(sample[name].unique()),
            default=None,
        )
        plain = plain if witness else {}
        read = [n for n in sample.column_names if n != "__key" and n not in plain]
        chosen = ", ".join(map(ident, [*read, "__source_row", *([witness] if witness else [])]))
        table, ids_differ = hash_sorted(connection, f"(select {chosen} from {typed})", rows, plain)
        table = table.append_column("__key", table["__id"])
    registered(connection, TYPED, table)
    return table, ids_differ


def _plain(
    source: SourceRef, resolved: Resolved, declaration: Declaration, rows: int
) -> dict[str, Column]:
    """Return the features that are in the source as in the typed table, read without the engine."""
    spec, kinds = resolved.spec, resolved.types
    if any(column.written is not None for column in declaration.data.columns.values()):
        return {}
    given = set(kinds) - resolved.computed
    return plain_columns(
        source,
        [n for n in spec.numeric if n in given and family(kinds[n]) in ("int", "float")],
        [n for n in spec.categorical if n in given and family(kinds[n]) == "text"],
        rows,
    )
