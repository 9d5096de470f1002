"""Validation on Spark: executors type their rows with the SQL of the embedded engine.

A row's types, keys, derived columns and rules depend on that row alone. So each executor runs the
embedded engine over one row group after another of the source, and finds exactly what one process
would find. No second dialect can differ in the text of a float or in unicode. Repeated ids,
classes, counts and the order of the table need all rows: Spark computes these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.digest import replacing
from schemas.errors import ConfigError, SchemaError, SourceError
from schemas.records import FileRef, SourceRef, ValidatedTable
from schemas.tables import arrow_schema
from training.data.engine.engine import (
    chosen_engine,
    confine,
    connect,
    ident,
    literal,
    row,
    rows,
    write_parquet,
)
from training.data.engine.expressions import derived_sql, filtered_sql
from training.data.sources.source import relation_sql, usable
from training.data.table.columns import Resolved, resolve
from training.data.table.date_parts import with_date_parts
from training.data.table.label_values import label_violations, labelled_rows
from training.data.table.raw_rows import NUM_ROWS, keep_raw_rows
from training.data.table.typed import raw_names, typed_sql, validated_columns
from training.data.table.typed_rows import TYPED
from training.data.table.validate import (
    ORDER,
    cause,
    column_types,
    empty_features,
    no_rows,
    refuse,
    served,
)
from training.data.table.violations import (
    TextNumbers,
    broken_pairs,
    broken_source_rules,
    broken_values,
    number_like,
    repeated_values,
    source_rules,
    text_numbers,
)

GIVEN = "given_rows"
ERRORS: dict[str, type[Exception]] = {"SchemaError": SchemaError, "SourceError": SourceError}


class Plan(NamedTuple):
    """Input of an executor: row groups by file, source types, column meaning and output paths."""

    groups: list[tuple[str, int]]
    types: dict[str, str]
    source: SourceRef
    resolved: Resolved
    declaration: Declaration
    folder: str


class Told(NamedTuple):
    """Summary of all row groups: counts, broken rules, and how far texts are numbers."""

    total: int
    kept: int
    typed: int
    unlabelled: int
    ignored: dict[str, int]
    offending: int
    broken: set[tuple[str, str]]
    numbers: dict[str, TextNumbers]


def validate_on_spark(source: SourceRef, declaration: Declaration, out_dir: Path) -> ValidatedTable:
    """Run `validate` on the executors of `data.spark`: same table byte for byte, or same error.

    Args:
        source: Parquet files that the executors see under the same paths.
        declaration: as of `validate`.
        out_dir: where the table is written.

    Raises:
        ConfigError: the source is not Parquet, or Spark cannot be used.
        SourceError, SchemaError: as of `validate`.
    """
    if source.format != "parquet":
        raise ConfigError(
            f"data.engine: spark reads Parquet only, got {source.format}; write the source as"
            " Parquet, or use data.engine: duckdb"
        )
    with chosen_engine(declaration.data) as spark:
        plan = _plan(source, declaration, spark.scratch)
        told = _merged(
            _checked(spark.on_executors(len(plan.groups), _worker(plan))),
            tuple(plan.resolved.configs),
        )
        _refuse_source(plan, told)
        spark.execute(f"create view {TYPED} as select * from {_parts(plan, 'typed')}")
        return _write(spark, plan, told, out_dir)


def _plan(source: SourceRef, declaration: Declaration, folder: Path) -> Plan:
    """Return everything that follows from the files' footers and the declaration alone."""
    with closing(connect()) as connection:
        base = relation_sql(source, declaration.data, connection)
        confine(connection, [f.path for f in source.files])
        types = column_types(connection, base)
        declaration, parts = with_date_parts(connection, base, declaration)
        relation = filtered_sql(
            connection,
            derived_sql(connection, base, declaration.data.derive),
            declaration.data.filter,
        )
        resolved = served(
            resolve(column_types(connection, relation), declaration),
            types,
            source,
            declaration,
            parts,
        )
    groups = [
        (f.path, group)
        for f in source.files
        for group in range(pq.read_metadata(f.path).num_row_groups)
    ]
    return Plan(groups, types, source, resolved, declaration, str(folder))


def _worker(plan: Plan) -> Callable[[int], dict[str, Any]]:
    def work(number: int) -> dict[str, Any]:
        """Type the rows of one row group."""
        return type_group(plan, number)

    return work


def type_group(plan: Plan, number: int) -> dict[str, Any]:
    """Type the rows of one row group into separate files; return a summary that JSON can hold."""
    path, group = plan.groups[number]
    if not Path(path).is_file():
        return {
            "error": "SourceError",
            "message": (
                f"{path}: an executor does not see the source; put it on a folder that driver and"
                " executors share"
            ),
        }
    with closing(connect(threads=1)) as connection, pq.ParquetFile(path) as file:
        connection.register("arrow_rows", file.read_row_group(group))
        own, keys = (
            {name.lower() for name in file.schema_arrow.names},
            plan.source.partitions.get(path, {}),
        )
        values = {
            n: ident(n) if n.lower() in own or n not in keys else literal(keys[n])
            for n in plan.types
        }
        columns = ", ".join(
            f"cast({values[n]} as {kind}) as {ident(n)}" for n, kind in plan.types.items()
        )
        connection.execute(f"create temp table {GIVEN} as select {columns} from arrow_rows")
        base = usable(GIVEN, plan.types)
        try:
            return _typed(connection, plan, base, number)
        except duckdb.Error as error:
            found = cause(connection, plan.source, base, plan.declaration, error)
            return {"error": type(found).__name__, "message": str(found)}


def _typed(
    connection: duckdb.DuckDBPyConnection, plan: Plan, base: str, number: int
) -> dict[str, Any]:
    data, resolved = plan.declaration.data, plan.resolved
    derived = derived_sql(connection, base, data.derive)
    relation = filtered_sql(connection, derived, data.filter)
    told: dict[str, Any] = {
        "total": _count(connection, derived),
        "kept": _count(connection, relation),
    }
    told["numbers"] = text_numbers(connection, resolved, relation, whole=False)
    breaks = " or ".join(f"({rule.condition})" for rule in source_rules(resolved)) or "false"
    offenders = connection.sql(f"select * from {relation} where {breaks}").to_arrow_table()
    if len(offenders):
        _put(offenders, plan, "offenders", number)
        return {**told, "offending": len(offenders)}
    labelled, told["unlabelled"], told["ignored"] = labelled_rows(
        connection, resolved, relation, plan.declaration
    )
    connection.execute(
        f"create temp table {TYPED} as select * from {typed_sql(resolved, labelled)}"
    )
    told["typed"], told["broken"] = (
        _count(connection, TYPED),
        sorted(broken_pairs(connection, resolved, TYPED)),
    )
    raw = list(raw_names(resolved.spec).values())
    _put(
        connection.sql(f"select * {_without(raw)} from {TYPED}").to_arrow_table(),
        plan,
        "typed",
        number,
    )
    if raw:
        _put(
            connection.sql(
                f"select __id, {', '.join(map(ident, raw))} from {TYPED}"
            ).to_arrow_table(),
            plan,
            "raw",
            number,
        )
    return told


def _put(table: pa.Table, plan: Plan, kind: str, number: int) -> None:
    """Write a part as a whole or not at all.

    Spark may start a task twice and kill it in the middle.
    """
    with replacing(f"{plan.folder}/{kind}-{number:06d}.parquet") as file:
        pq.write_table(table, file, compression="zstd")


def _without(names: Sequence[str]) -> str:
    return f"exclude ({', '.join(map(ident, names))})" if names else ""


def _count(connection: duckdb.DuckDBPyConnection, relation: str) -> int:
    return int(row(connection, f"select count(*) from {relation}")[0])


def _checked(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the reports of the row groups; raise if one could not be read or computed."""
    failed = next((f for f in found if "error" in f), None)
    if failed is not None:
        raise ERRORS.get(failed["error"], SchemaError)(failed["message"])
    return found


def _merged(found: list[dict[str, Any]], names: tuple[str, ...]) -> Told:
    def total(key: str) -> int:
        """Return the sum of one count over all row groups."""
        return sum(f.get(key, 0) for f in found)

    ignored: dict[str, int] = {}
    for name in names:
        counts = [f["ignored"][name] for f in found if name in f.get("ignored", {})]
        ignored |= {name: sum(counts)} if counts else {}
    columns = {name for f in found for name in f["numbers"]}
    numbers = {
        name: _merged_numbers([TextNumbers(*f["numbers"][name]) for f in found])
        for name in sorted(columns)
    }
    broken = {(column, rule) for f in found for column, rule in f.get("broken", ())}
    return Told(
        total("total"),
        total("kept"),
        total("typed"),
        total("unlabelled"),
        ignored,
        total("offending"),
        broken,
        numbers,
    )


def _merged_numbers(parts: list[TextNumbers]) -> TextNumbers:
    different, texts = (
        sorted({n for p in parts for n in p.different}),
        sorted({t for p in parts for t in p.texts}),
    )
    return TextNumbers(
        sum(p.values for p in parts), sum(p.numbers for p in parts), different, texts
    )


def _refuse_source(plan: Plan, told: Told) -> None:
    """Refuse rows that cannot be typed.

    The executors wrote them to separate files, so that the error can show value and id.
    """
    findings: list[str] = []
    if told.offending:
        with closing(connect()) as connection:
            findings += broken_source_rules(connection, plan.resolved, _parts(plan, "offenders"))
    refuse([*findings, *number_like(told.numbers)])
    refuse(no_rows(told.typed, told.total - told.kept, told.unlabelled, sum(told.ignored.values())))


def _parts(plan: Plan, kind: str) -> str:
    """Return the files of one kind that executors wrote, as a relation of either engine."""
    files = ", ".join(
        literal(str(path)) for path in sorted(Path(plan.folder).glob(f"{kind}-*.parquet"))
    )
    return f"read_parquet([{files}], hive_partitioning = false)"


def _write(spark: Any, plan: Plan, told: Told, out_dir: Path) -> ValidatedTable:
    spec, resolved, declaration = plan.resolved.spec, plan.resolved, plan.declaration
    refuse(
        [
            *broken_values(spark, resolved, TYPED, told.broken),
            *repeated_values(spark, resolved, TYPED),
        ]
    )
    refuse(
        [
            *label_violations(spark, spec, TYPED, declaration),
            *empty_features(spark, spec, declaration),
        ]
    )
    raw_rows = _raw_rows(spark, plan, out_dir / "raw_rows.parquet")
    columns = ", ".join(map(ident, validated_columns(spec)))
    table = write_parquet(
        spark,
        f"select {columns} from {TYPED} order by {ORDER}",
        out_dir / "validated.parquet",
        schema=arrow_schema(spec),
    )
    left_out: Mapping[str, Any] = {
        "filtered_rows": told.total - told.kept,
        "unlabelled_rows": told.unlabelled,
        "ignored_labels": told.ignored,
    }
    return ValidatedTable(table=table, spec=spec, raw_rows=raw_rows, **left_out)


def _raw_rows(spark: Any, plan: Plan, path: Path) -> FileRef | None:
    """Run `keep_raw_rows` on the rows that Spark found to be first.

    They are read from the files that the executors wrote.
    """
    names = raw_names(plan.resolved.spec)
    if not plan.resolved.spec.derived:
        return None
    first = [
        r[0] for r in rows(spark, f"select __id from {TYPED} order by {ORDER} limit {NUM_ROWS}")
    ]
    with closing(connect()) as connection:
        connection.register("first_ids", pa.table({"__id": first}))
        typed, raw = (
            f"(select * from {_parts(plan, kind)} where __id in (select __id from first_ids))"
            for kind in ("typed", "raw")
        )
        columns = "".join(f", r.{ident(stored)}" for stored in names.values())
        connection.execute(
            f"create temp table sample as select t.*{columns} from {typed} t join {raw} r on r.__id"
            " = t.__id"
        )
        return keep_raw_rows(connection, plan.resolved.spec, "sample", ORDER, path)
