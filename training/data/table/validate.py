"""Validate a source: write one typed Parquet file in its own order, or name the wrong rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from schemas.config import Declaration
from schemas.errors import DataError, SchemaError, counted, first_few
from schemas.records import FileRef, SourceRef, TableSpec, ValidatedTable
from schemas.tables import arrow_schema
from training.data.engine.engine import confine, engine_for, ident, row, rows, write_parquet
from training.data.engine.expressions import (
    derived_sql,
    failing_expression,
    filtered_sql,
    numbered_sql,
)
from training.data.engine.hash_order import in_hash_order
from training.data.engine.in_memory import Rows, hold
from training.data.engine.in_memory import relation as relation_of
from training.data.engine.many_columns import plan_quickly
from training.data.sources.source import (
    relation_sql,
    spelling_notes,
    unreadable,
    verify_source,
)
from training.data.sources.written_numbers import category_notes
from training.data.table.columns import Resolved, resolve
from training.data.table.date_parts import with_date_parts
from training.data.table.invalid_molecules import invalid_molecules
from training.data.table.label_values import label_violations, labelled_rows
from training.data.table.picture_rows import remove_pictures, with_pictures
from training.data.table.portable import portable
from training.data.table.raw_rows import keep_raw_rows
from training.data.table.series import (
    require_series,
    window_specs,
    with_label_ahead,
    write_histories,
)
from training.data.table.typed import grouping_names, validated_columns
from training.data.table.typed_rows import TYPED, read_typed
from training.data.table.violations import (
    keeping_limits,
    repeated_values,
    source_violations,
    tensor_violations,
    value_violations,
)

STAGED = "staged_rows"
# of ids, which are unique: the table does not depend on the source's order or its number of files
ORDER = "md5(__id)"


def validate(source: SourceRef, declaration: Declaration, out_dir: Path) -> ValidatedTable:
    """Write the typed table, whose rows all keep the declaration, to `out_dir/validated.parquet`.

    Args:
        source: from `fingerprint`; its files must still have the bytes they had then.
        declaration: uses the sections `data`, `task`, `split` and `checks.constant_features`.
        out_dir: where the table is written; created if absent. Nothing is left there if an
            error is raised.

    Returns:
        The table (columns see `TableSpec`), what its columns are, and how many rows the filter and
        null labels left out.

    Raises:
        SourceError: a file changed or cannot be read.
        ConfigError: an expression of `data.derive` or `data.filter` is not allowed, or that of a
            feature cannot be served.
        SchemaError: columns, types, nulls, ranges, values, ids or labels are not as declared.
    """
    verify_source(source)
    try:
        made = _validated(source, declaration, Path(out_dir))
    except BaseException:
        remove_pictures(Path(out_dir))
        raise
    with engine_for(declaration.data) as connection:
        computed, is_csv = declaration.data.derive, source.format == "csv"
        is_spark = declaration.data.engine == "spark"
        given = [n for n in made.spec.categorical if n not in computed and not is_spark]
        notes = category_notes(
            connection, relation_of(connection, made.table), made.spec.categorical, given, is_csv
        )
        told = spelling_notes(source, declaration.data, connection)
    return made.model_copy(update={"notes": (*made.notes, *told, *notes)})


def _validated(source: SourceRef, declaration: Declaration, out_dir: Path) -> ValidatedTable:
    if declaration.data.engine == "spark":
        from training.data.table.spark_validate import (
            validate_on_spark,  # imports this module's steps
        )

        return validate_on_spark(source, declaration, out_dir)
    with engine_for(declaration.data) as connection:
        base = relation_sql(source, declaration.data, connection)
        source_types = column_types(connection, base)
        plan_quickly(connection, len(source_types))
        confine(connection, [f.path for f in source.files])
        declaration, parts = with_date_parts(connection, base, declaration)
        derived = derived_sql(connection, base, declaration.data.derive)
        derived = numbered_sql(connection, derived, declaration.data.row_number)
        relation = filtered_sql(connection, derived, declaration.data.filter)
        resolved = resolve(column_types(connection, relation), declaration)
        try:
            if source.format == "csv":  # parsed only once more, not for every query
                connection.execute(f"create temp table {STAGED} as select * from {derived}")
                derived, relation = (
                    STAGED,
                    filtered_sql(connection, STAGED, declaration.data.filter),
                )
            if declaration.data.windows or declaration.data.ahead is not None:
                relation, resolved, declaration = _as_series(
                    connection, relation, resolved, declaration
                )
            resolved = served(resolved, source_types, source, declaration, parts)
            return _write(connection, derived, relation, source, resolved, declaration, out_dir)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            raise cause(connection, source, base, declaration, error) from error


def _as_series(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    resolved: Resolved,
    declaration: Declaration,
) -> tuple[str, Resolved, Declaration]:
    """Return the rows, their columns and the declaration with a label ahead and with windows."""
    require_series(connection, relation, resolved, declaration.data)
    windows = window_specs(connection, relation, resolved.spec, declaration.data)
    relation, declaration = with_label_ahead(connection, relation, resolved, declaration)
    resolved = resolve(column_types(connection, relation), declaration)
    spec = resolved.spec.model_copy(update={"windows": windows})
    return relation, resolved._replace(spec=spec), declaration


def column_types(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """Return the columns of a relation with their SQL types."""
    return {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {relation}")}


def served(
    resolved: Resolved,
    source_types: dict[str, str],
    source: SourceRef,
    declaration: Declaration,
    dates: dict[str, str],
) -> Resolved:
    """Return the spec with what the registered model must know to take the source's rows.

    `dates`: from `with_date_parts`.
    """
    read = [name for window in resolved.spec.windows.values() for name in window.types]
    features = tuple(dict.fromkeys((*resolved.spec.features, *read)))
    trees = portable(declaration.data.derive, source_types, features)
    null_texts = declaration.data.csv.null_values if source.format == "csv" else ()
    return resolved._replace(
        spec=resolved.spec.model_copy(
            update={"derived": trees, "null_texts": null_texts, "dates": dates}
        )
    )


def _write(
    connection: duckdb.DuckDBPyConnection,
    derived: str,
    relation: str,
    source: SourceRef,
    resolved: Resolved,
    declaration: Declaration,
    out_dir: Path,
) -> ValidatedTable:
    total = row(connection, f"select count(*) from {derived}")[0]
    kept = row(connection, f"select count(*) from {relation}")[0]
    refuse(source_violations(connection, resolved, relation))
    labelled, unlabelled, ignored = labelled_rows(connection, resolved, relation, declaration)
    left = row(connection, f"select count(*) from {labelled}")[0]
    refuse(no_rows(left, total - kept, unlabelled, sum(ignored.values())))
    resolved, told = with_pictures(connection, resolved, labelled, source, Path(out_dir))
    is_whole = left == total and not (declaration.data.windows or declaration.data.ahead)
    in_order, ids_differ = read_typed(
        connection, resolved, labelled, left, declaration, source if is_whole else None
    )
    notes = _refuse_typed(connection, resolved, declaration, ids_differ)
    raw_rows = keep_raw_rows(connection, resolved.spec, TYPED, ORDER, out_dir / "raw_rows.parquet")
    limits, schema = keeping_limits(connection, resolved, TYPED), arrow_schema(resolved.spec)
    typed = (
        _in_order(connection, resolved.spec, declaration, out_dir)
        if in_order is None
        else in_order.select(schema.names)
    )
    table = write_parquet(
        connection, typed, Path(out_dir) / "validated.parquet", schema=schema, through=limits
    )
    # to the engine, lists of a fixed size are another type than in a file
    if isinstance(typed, pa.Table) and not resolved.spec.tensor:
        hold(table, Rows(typed))
    left_out = {
        "filtered_rows": total - kept,
        "unlabelled_rows": unlabelled,
        "ignored_labels": ignored,
    }
    return ValidatedTable(
        table=table,
        spec=resolved.spec,
        raw_rows=raw_rows,
        group_columns=_group_columns(connection, resolved, declaration, out_dir),
        row_places=_row_places(connection, in_order, declaration, out_dir),
        histories=write_histories(connection, relation, resolved, out_dir),
        notes=(*told, *notes),
        **left_out,
    )


def _in_order(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, declaration: Declaration, out_dir: Path
) -> str | Iterator[pa.RecordBatch]:
    """Return the typed rows in `ORDER`, sorted by the engine or, under a memory limit, in parts."""
    names, limit = validated_columns(spec), declaration.data.memory_bytes
    if limit is None:
        return f"select {', '.join(map(ident, names))} from {TYPED} order by {ORDER}"
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    return in_hash_order(connection, TYPED, names, limit, Path(out_dir))


def _refuse_typed(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    declaration: Declaration,
    ids_differ: bool | None,
) -> tuple[str, ...]:
    """Refuse faults of the table that no single value shows; return notes on what is accepted.

    Limits of values are checked while the file is written, and are named with them.
    """
    found = [
        *tensor_violations(connection, resolved, TYPED),
        *repeated_values(connection, resolved, TYPED, bool(ids_differ)),
    ]
    empty = (
        []
        if found
        else [
            *label_violations(connection, resolved.spec, TYPED, declaration),
            *empty_features(connection, resolved.spec, declaration),
        ]
    )
    if found or empty:
        refuse([*value_violations(connection, resolved, TYPED), *found])
        refuse(empty)
    no_molecules, notes = invalid_molecules(connection, resolved.spec, TYPED, declaration)
    refuse(no_molecules)
    return tuple(notes)


def _group_columns(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    declaration: Declaration,
    out_dir: Path,
) -> FileRef | None:
    """Return `__id` and the columns that group rows, in the order of the table."""
    if not resolved.grouping:
        return None
    names = {"__id": "__id"} | grouping_names(resolved)
    chosen, limit = (
        (
            f"select {', '.join(f'{stored} as {ident(name)}' for name, stored in names.items())}"
            f" from {TYPED}"
        ),
        declaration.data.memory_bytes,
    )
    path, schema = (
        Path(out_dir) / "group_columns.parquet",
        connection.sql(f"{chosen} limit 0").to_arrow_table().schema,
    )
    in_order = (
        f"{chosen} order by {ORDER}"
        if limit is None
        else in_hash_order(connection, f"({chosen})", tuple(names), limit, Path(out_dir))
    )
    return write_parquet(connection, in_order, path, schema=schema).file


def _row_places(
    connection: duckdb.DuckDBPyConnection,
    in_order: pa.Table | None,
    declaration: Declaration,
    out_dir: Path,
) -> FileRef:
    """Return each row's place in the source, in the order of the table."""
    limit, path = declaration.data.memory_bytes, Path(out_dir) / "row_places.parquet"
    schema = pa.schema([pa.field("__source_row", pa.int64())])
    given: pa.Table | str | Iterator[pa.RecordBatch]
    if in_order is not None:
        given = in_order.select(["__source_row"])
    elif limit is None:
        given = f"select __source_row from {TYPED} order by {ORDER}"
    else:
        given = in_hash_order(connection, TYPED, ("__source_row",), limit, Path(out_dir))
    return write_parquet(connection, given, path, schema=schema).file


def cause(
    connection: duckdb.DuckDBPyConnection,
    source: SourceRef,
    base: str,
    declaration: Declaration,
    error: duckdb.Error,
) -> DataError:
    """Return the error's cause: an unreadable source, or an expression that failed on a row."""
    try:
        names = [str(r[0]) for r in rows(connection, f"describe select * from {base}")]
        rows(connection, f"select {', '.join(f'count({ident(n)})' for n in names)} from {base}")
    except duckdb.Error as found:
        return unreadable(source, found)
    if declaration.data.derive or declaration.data.filter:
        return failing_expression(connection, base, declaration.data.derive, error)
    return SchemaError(f"the rows cannot be cast to the declared types: {error}")


def refuse(findings: list[str]) -> None:
    """Raise `SchemaError` with all findings, if there are any."""
    if findings:
        raise SchemaError("\n  ".join(findings))


def no_rows(rows_left: int, filtered: int, unlabelled: int, ignored: int) -> list[str]:
    """Return the finding that no row is left, and why."""
    if rows_left:
        return []
    by_ignore = f", task.ignore {ignored}" if ignored else ""
    return [
        f"expected rows, got none: data.filter left out {filtered}, null labels"
        f" {unlabelled}{by_ignore}; check data.filter, data.null_labels and the source"
    ]


def empty_features(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, declaration: Declaration
) -> Iterator[str]:
    """Return the finding that features are null in every row, unless they are to be dropped."""
    if declaration.checks.constant_features != "fail":
        return
    names = [*spec.numeric, *spec.categorical]
    counts = (
        row(connection, f"select {', '.join(f'count({ident(n)})' for n in names)} from {TYPED}")
        if names
        else ()
    )
    empty = [n for n, count in zip(names, counts, strict=True) if not count]
    if empty:
        shown = first_few(map(repr, empty), len(empty), limit=10)
        yield (
            f"{counted(len(empty), 'feature')} {'is' if len(empty) == 1 else 'are'} null in every"
            f" row: {shown}; set `name: ignore` in data.columns, or checks.constant_features: drop"
        )
