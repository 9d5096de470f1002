"""Rows as series: a label that lies ahead, and the past that windows hold.

A series is what the columns `data.series` tell apart, in the order of the column of role time. It
has one row for each moment, so that its order does not depend on the order of the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb

from schemas.config import ColumnConfig, DataConfig, Declaration
from schemas.errors import SchemaError, counted, first_few
from schemas.references import FileRef, TableSpec, WindowSpec
from training.data.engine.engine import ident, literal, row, rows, write_parquet
from training.data.table.columns import Resolved
from training.data.table.sql_types import WORDS, family
from training.data.table.time_units import in_time_units
from training.data.table.typed import key_sql, number_sql, time_sql

PRESENT = "__label_of_the_row"  # the label's value at the moment of the row, where it lies ahead
DIGITS = 6  # moments are compared to a millionth of the time's unit


def known_at(label: str) -> str:
    """Return the name of the column that says when a label ahead is known."""
    return f"{label} is known"


def require_series(
    connection: duckdb.DuckDBPyConnection, relation: str, resolved: Resolved, data: DataConfig
) -> None:
    """Check that the columns of series exist, and have one row for each moment.

    Raises:
        SchemaError: a column is missing, rows have no id or no series, or several have one moment.
    """
    spec, types = resolved.spec, _types(connection, relation)
    strangers = [name for name in data.series_columns if name not in types]
    if strangers:
        raise SchemaError(
            f"data.series: the source has no column {strangers[0]!r}; name columns of the table"
        )
    if not spec.id:
        raise SchemaError(
            "data.windows and ahead need a column of role id, to find a row in its series; count"
            " the rows with data.row_number: row, and declare row: id"
        )
    names = ", ".join(map(ident, data.series_columns))
    if names:
        without = " or ".join(f"{ident(name)} is null" for name in data.series_columns)
        count = row(connection, f"select count(*) from {relation} where {without}")[0]
        if count:
            raise SchemaError(
                f"data.series: {counted(count, 'row')} with a null in {names}, which are no series;"
                " leave them out with data.filter"
            )
    moment = f"round({time_sql(str(spec.time), resolved)}, {DIGITS})"
    of = f"{names}, " if names else ""
    found = (
        f"select {of}{ident(str(spec.time))} as t, count(*) as n from {relation} where"
        f" {ident(str(spec.time))} is not null group by {of}{moment}, t having n > 1"
    )
    total = row(connection, f"select count(*) from ({found})")[0]
    if total:
        shown = rows(connection, f"{found} order by all limit 5")
        first = first_few((" ".join(map(str, values[:-1])) for values in shown), total)
        raise SchemaError(
            f"a series has one row for each moment, and {counted(total, 'moment')} have several"
            f" (first: {first}), so that their order is unknown; join such rows, leave them out"
            " with data.filter, or name more columns in data.series"
        )


def with_label_ahead(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    resolved: Resolved,
    declaration: Declaration,
) -> tuple[str, Declaration]:
    """Return rows whose label is its column's value so long ahead, and when that is known.

    The declaration then has a column of role label_time, by which a split by time leaves out rows
    whose label lies behind a cut.

    Args:
        connection: the engine.
        relation: the filtered rows.
        resolved: what their columns are.
        declaration: uses the section `data`.
    """
    if declaration.data.ahead is None:
        return relation, declaration
    label, length = declaration.data.ahead
    spec, time = resolved.spec, str(resolved.spec.time)
    ahead = in_time_units(length, spec, f"data.columns.{label}.ahead")
    moment, later = time_sql(time, resolved), f"{time_sql(time, resolved)} + {literal(ahead)}"
    at = (
        f"make_timestamp(cast(round(({later}) * 1e6) as bigint))"
        if spec.time_is_timestamp
        else f"({later})"
    )
    keys = [ident(name) for name in declaration.data.series_columns]
    own = [f"__k{i}" for i in range(len(keys))]
    same = " and ".join(f"a.{name} = b.{name}" for name in [*own, "__m"])
    listed = "".join(f"{key} as {name}, " for key, name in zip(keys, own, strict=True))
    place = f"round({later}, {DIGITS}) as __m, {at} as __at, row_number() over () as __place"
    now = f"(select {listed}{place}, * from {relation})"
    then = (
        f"(select {listed}round({moment}, {DIGITS}) as __m, {ident(label)} as __v from {relation})"
    )
    hidden = ", ".join([*own, "__m", "__at", "__place", ident(label)])
    # in the order of the source, which a join does not keep
    shifted = (
        f"(select a.* exclude ({hidden}), b.__v as {ident(label)}, a.{ident(label)} as"
        f" {ident(PRESENT)}, a.__at as {ident(known_at(label))} from {now} a left join {then} b on"
        f" {same} order by a.__place)"
    )
    known = ColumnConfig(role="label_time", unit=resolved.configs[time].unit)
    columns = {PRESENT: ColumnConfig(role="ignore"), known_at(label): known}
    data = declaration.data.model_copy(update={"columns": columns | declaration.data.columns})
    return shifted, declaration.model_copy(update={"data": data})


def window_specs(
    connection: duckdb.DuckDBPyConnection, relation: str, spec: TableSpec, data: DataConfig
) -> dict[str, WindowSpec]:
    """Return what each declared window holds.

    Raises:
        SchemaError: a channel is missing or holds no numbers, or a length has no unit.
    """
    types, found = _types(connection, relation), {}
    for name, window in data.windows.items():
        for channel in window.columns:
            where = f"data.windows.{name}: column {channel!r}"
            if channel not in types:
                raise SchemaError(f"{where} is none of the source; name columns of the table")
            if family(types[channel]) not in ("int", "float", "bool"):
                raise SchemaError(
                    f"{where} holds {WORDS[family(types[channel])]}, and a window holds numbers;"
                    " derive a number from it"
                )
        step = (
            None
            if window.step is None
            else in_time_units(window.step, spec, f"data.windows.{name}.step")
        )
        read = dict.fromkeys((*data.series_columns, str(spec.time), *window.columns))
        found[name] = WindowSpec(
            channels=window.columns,
            series=data.series_columns,
            length=window.length,
            step=step,
            lag=window.lag,
            types={column: types[column] for column in read},
        )
    return found


def write_histories(
    connection: duckdb.DuckDBPyConnection, relation: str, resolved: Resolved, out_dir: Path
) -> dict[str, FileRef]:
    """Write for each window the rows of all series, also those without a label.

    The files are ordered by series and time; see `ValidatedTable.histories`.
    """
    spec = resolved.spec
    types = _types(connection, relation) if spec.windows else {}
    found = {}
    for number, (name, window) in enumerate(spec.windows.items()):
        parts = {
            "__id": key_sql(spec.id),
            "__series": key_sql(window.series) if window.series else "''",
            "__time": time_sql(str(spec.time), resolved),
        } | {channel: _channel_sql(channel, types, resolved) for channel in window.channels}
        listed = ", ".join(f"{sql} as {ident(column)}" for column, sql in parts.items())
        query = f"select {listed} from {relation} order by __series, __time"
        path = Path(out_dir) / f"history_{number}.parquet"
        found[name] = write_parquet(connection, query, path).file
    return found


def _channel_sql(channel: str, types: Mapping[str, str], resolved: Resolved) -> str:
    """Return the value of a column at the moment of the row, float64."""
    is_ahead = channel == resolved.spec.label and PRESENT in types
    source = PRESENT if is_ahead else channel
    # the copy of a derived label may hold NaN, as the label may
    computed = resolved.computed | {PRESENT}
    return number_sql(source, types[source], resolved._replace(computed=computed))


def _types(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    return {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {relation}")}
