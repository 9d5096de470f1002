"""Features of a date column (`kind: date`), as derived columns that the served model computes too.

A date becomes its days, which scaling counts from a train statistic, and its repeating parts as
points on circles, so that 23:59 lies next to 0:00 and December next to January.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from schemas.config import ColumnConfig, DataConfig, Declaration
from schemas.errors import SchemaError
from schemas.references import DAYS
from training.data.advice import in_yaml, sql_name
from training.data.engine.engine import rows
from training.data.engine.expressions import derived_sql
from training.data.table.sql_types import WORDS, family

# name of a part -> its angle in turns, of a timestamp t
TURNS = {
    "hour": "(hour({t}) + minute({t}) / 60) / 24",
    "weekday": "isodow({t}) / 7",
    "yearday": "dayofyear({t}) / 365.25",
}
TIMES_OF_DAY = ("hour",)  # always 0 where a column holds days


def with_date_parts(
    connection: duckdb.DuckDBPyConnection, relation: str, declaration: Declaration
) -> tuple[Declaration, dict[str, str]]:
    """Return the declaration with the parts of its dates as derived features.

    Args:
        connection: the engine.
        relation: the source as SQL; a date may be derived from it.
        declaration: uses the section `data`.

    Returns:
        The declaration, in which the dates themselves are ignored, and each part with the column
        that it is part of. Without a column of `kind: date`: the declaration itself, and no part.

    Raises:
        SchemaError: a column of this kind holds neither dates nor timestamps nor text, or the
            table has a column with the name of a part.
    """
    data = declaration.data
    if all(column.kind != "date" for column in data.columns.values()):
        return declaration, {}
    derived = derived_sql(connection, relation, data.derive)
    types = {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {derived}")}
    dates = [name for name in types if (c := data.column(name)) is not None and c.kind == "date"]
    parts = {name: date_parts(name, types[name]) for name in dates}
    taken = {name.lower(): name for name in types}
    for name, own in parts.items():
        if found := next((part for part in own if part.lower() in taken), None):
            raise SchemaError(
                f"column {name!r} (kind date) makes a feature {found!r}, and the table has a column"
                f" {taken[found.lower()]!r} already; rename that column, or derive the parts of the"
                " date in data.derive"
            )
    changed = data.model_copy(
        update={
            "derive": data.derive | {n: sql for own in parts.values() for n, sql in own.items()},
            "columns": _columns(data, parts),
        }
    )
    owners = {part: name for name, own in parts.items() for part in own}
    return declaration.model_copy(update={"data": changed}), owners


def date_parts(name: str, kind: str) -> dict[str, str]:
    """Return the features of a date column with their SQL expressions.

    Args:
        name: of the column.
        kind: its SQL type; a text must be in ISO form, such as 2024-05-31 or 2024-05-31 17:30:00.

    Raises:
        SchemaError: the type holds no dates.

    >>> list(date_parts("seen", "DATE"))
    ['seen.days', 'seen.weekday_sin', 'seen.weekday_cos', 'seen.yearday_sin', 'seen.yearday_cos']
    """
    found = family(kind)
    if found not in ("date", "instant", "text"):
        example = in_yaml(derive={f"{name}_date": f"make_date({sql_name(name)}, 1, 1)"})
        raise SchemaError(
            f"column {name!r} (role feature): kind date needs dates, timestamps or text in ISO"
            f" form, got {WORDS[found]}; derive a date, e.g. {example}, and give that kind: date"
        )
    moment = f"cast({sql_name(name)} as timestamp)"
    parts = {f"{name}{DAYS}": f"epoch({moment}) / 86400"}
    for part, turns in TURNS.items():
        if found == "date" and part in TIMES_OF_DAY:
            continue
        angle = f"2 * pi() * {turns.format(t=moment)}"
        parts |= {f"{name}.{part}_{of}": f"{of}({angle})" for of in ("sin", "cos")}
    return parts


def _columns(data: DataConfig, parts: Mapping[str, Mapping[str, str]]) -> dict[str, ColumnConfig]:
    """Return the declared columns with the parts where their dates stood."""
    columns: dict[str, ColumnConfig] = {}
    for key, config in data.columns.items():
        if config.kind != "date":
            columns.setdefault(key, _of_parts(config, parts))
            continue
        for name in parts:
            if data.column(name) is config and (name == key or name not in data.columns):
                part = ColumnConfig(kind="numeric", nullable=config.nullable)
                columns |= {name: ColumnConfig(role="ignore")} | dict.fromkeys(parts[name], part)
    return columns


def _of_parts(config: ColumnConfig, parts: Mapping[str, Mapping[str, str]]) -> ColumnConfig:
    """Return a time of availability with the parts of each date in place of its name."""
    if config.of is None:
        return config
    named = [tuple(parts[name]) if name in parts else (name,) for name in config.of]
    return config.model_copy(update={"of": tuple(part for each in named for part in each)})
