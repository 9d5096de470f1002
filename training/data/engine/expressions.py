"""Expressions of the declaration (`data.derive`, `data.filter`): pure functions of one row.

Others are refused. The engine's own parser turns the text into a tree, which may contain only the
node classes and functions listed here. So an expression cannot read files, settings or other rows,
and gives the same value in every run and place.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb

from schemas.errors import ConfigError, SchemaError, first_few, shortened
from training.data.advice import in_yaml, quoted_names
from training.data.engine.engine import ident, literal, row, rows

NODES = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "OPERATOR",
    "TYPE",
}
_ALLOWED = """
    + - * / // % ** ^ || & | << >> ~ ~~ !~~ ~~* !~~* abs ceil ceiling floor round trunc sign
    sqrt cbrt exp ln log log2 log10 pow power mod fmod
    sin cos tan asin acos atan atan2 sinh cosh tanh radians degrees pi greatest least isfinite
    isinf isnan nullif if
    concat concat_ws contains starts_with ends_with prefix suffix instr strpos position length
    len lower upper lcase ucase trim ltrim rtrim
    left right substr substring replace reverse split_part lpad rpad translate ascii unicode chr
    regexp_matches regexp_full_match regexp_extract
    regexp_replace strip_accents nfc_normalize md5 levenshtein jaccard string_split str_split
    split format printf hex
    date_part datepart date_trunc datetrunc date_diff datediff date_sub datesub date_add year
    month day hour minute second quarter week weekday
    dayofweek isodow dayofyear dayofmonth isoyear yearweek epoch epoch_ms epoch_us epoch_ns
    make_date make_time make_timestamp strptime
    try_strptime strftime to_timestamp to_years to_months to_weeks to_days to_hours to_minutes
    to_seconds to_milliseconds last_day timezone
    list_value list_extract array_extract list_element element_at list_contains array_contains
    list_sum list_avg list_min list_max array_length
    array_slice list_slice flatten
"""
FUNCTIONS = frozenset(_ALLOWED.split())
MOST_CHARACTERS = 100_000


def derived_sql(
    connection: duckdb.DuckDBPyConnection, relation: str, derive: Mapping[str, str]
) -> str:
    """Return the relation with the derived columns added in their order; each may use earlier ones.

    Raises:
        ConfigError: an expression is no pure function of the row, a column it names does not exist,
            or its own name is taken.
    """
    for name, expression in derive.items():
        known = [str(r[0]) for r in rows(connection, f"describe select * from {relation}")]
        taken = next((k for k in known if k.lower() == name.lower()), None)
        if taken is not None:
            raise ConfigError(
                f"data.derive.{name}: the source has a column {taken!r} already; choose another"
                " name"
            )
        checked = _checked(connection, expression, f"data.derive.{name}", known, relation)
        relation = f"(select *, {checked} as {ident(name)} from {relation})"
    return relation


def filtered_sql(
    connection: duckdb.DuckDBPyConnection, relation: str, condition: str | None
) -> str:
    """Return the rows of the relation for which the condition is true (neither false nor null).

    Raises:
        ConfigError: the condition is no pure function of the row that gives true or false.
    """
    if condition is None:
        return relation
    known = [str(r[0]) for r in rows(connection, f"describe select * from {relation}")]
    checked = _checked(connection, condition, "data.filter", known, relation)
    kind = str(rows(connection, f"describe select {checked} from {relation}")[0][1])
    if kind != "BOOLEAN":
        raise ConfigError(
            f"data.filter: expected a condition, got {condition!r} of type {kind}; compare it with"
            f" something, e.g. ({condition}) > 0"
        )
    return f"(select * from {relation} where {checked})"


def numbered_sql(connection: duckdb.DuckDBPyConnection, relation: str, name: str | None) -> str:
    """Return the relation with a column that counts its rows from 0, in the order of the files.

    Raises:
        ConfigError: the source has a column of that name.
    """
    if name is None:
        return relation
    known = [str(r[0]) for r in rows(connection, f"describe select * from {relation}")]
    if taken := next((k for k in known if k.lower() == name.lower()), None):
        raise ConfigError(
            f"data.row_number: the source has a column {taken!r} already; choose another name"
        )
    return f"(select *, row_number() over () - 1 as {ident(name)} from {relation})"


def failing_expression(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    derive: Mapping[str, str],
    error: duckdb.Error,
) -> SchemaError:
    """Return the error that names the derived column which fails on some row.

    It is called after a query over all of them failed.
    """
    for name, expression in derive.items():
        try:
            row(connection, f"select count(({expression}\n)) from {relation}")
        except duckdb.Error as found:
            first = str(found).split("\n", maxsplit=1)[0]
            advice = "use try_cast or try_strptime where a row may not fit (it gives null then)"
            return SchemaError(
                f"data.derive.{name}: {shortened(expression)} fails on a row: {first}; {advice}"
            )
        relation = f"(select *, ({expression}\n) as {ident(name)} from {relation})"
    return SchemaError(
        f"data.filter fails on a row: {str(error).splitlines()[0]}; use try_cast where a row may"
        " not fit"
    )


def _checked(
    connection: duckdb.DuckDBPyConnection,
    expression: str,
    key: str,
    known: list[str],
    relation: str,
) -> str:
    """Return the expression in parentheses, safe to use in a query."""
    if not expression.strip():
        raise ConfigError(f"{key}: expected an SQL expression, got {expression!r}")
    if len(expression) > MOST_CHARACTERS or "\x00" in expression:
        raise ConfigError(
            f"{key}: expected an SQL expression of at most {MOST_CHARACTERS:,} characters without"
            f" NUL, got {shortened(expression)}"
        )
    alone = literal(f"select ({expression}\n) as x")  # the line break ends a trailing comment
    tree = json.loads(row(connection, f"select json_serialize_sql({alone})")[0])
    shown = shortened(expression)
    quoted = quoted_names(expression, known) if len(expression) < MOST_CHARACTERS else None
    advice = (
        "; names that are SQL words or hold other characters need double quotes:"
        f" {in_yaml(**{key.removeprefix('data.').removeprefix('derive.'): quoted})}"
        if quoted
        else ""
    )
    if tree["error"]:
        raise ConfigError(
            f"{key}: {shown} is no SQL expression:"
            f" {shortened(tree['error_message'], plain=True)}{advice}"
        )
    for what in _foreign(tree, known):
        raise ConfigError(
            f"{key}: expected a function of the row's own columns, got {what} in {shown}{advice}"
        )
    checked = f"({expression}\n)"
    try:
        rows(connection, f"describe select {checked} from {relation}")
    except duckdb.Error as error:
        raise ConfigError(
            f"{key}: {shown} does not fit the columns:"
            f" {shortened(str(error).splitlines()[0], 500, plain=True)}{advice}"
        ) from error
    return checked


def _foreign(tree: dict[str, Any], known: list[str]) -> Iterator[str]:
    """Return the parts of the statement besides one expression over known columns."""
    node = tree["statements"][0]["node"] if len(tree["statements"]) == 1 else {}
    extras = [
        k
        for k in (
            "where_clause",
            "group_expressions",
            "group_sets",
            "having",
            "sample",
            "qualify",
            "modifiers",
        )
        if node.get(k)
    ]
    if (
        node.get("type") != "SELECT_NODE"
        or len(node["select_list"]) != 1
        or node["from_table"]["type"] != "EMPTY"
        or extras
        or node["cte_map"]["map"]
    ):
        yield "more than one expression"
        return
    for part in _nodes(node["select_list"][0]):
        kind = part["class"]
        if kind not in NODES:
            yield f"{kind.lower().replace('_', ' ')}"
        elif kind == "FUNCTION" and not _is_listed(part):
            close = difflib.get_close_matches(
                part["function_name"], sorted(FUNCTIONS), n=1, cutoff=0.75
            )
            yield f"function {part['function_name']!r}, which is not among the allowed ones" + (
                f" (like {close[0]!r})" if close else ""
            )
        elif kind == "COLUMN_REF" and not _is_known(part["column_names"], known):
            close = difflib.get_close_matches(part["column_names"][-1], known, n=1)
            yield f"unknown column {'.'.join(part['column_names'])!r}" + (
                f" (did you mean {close[0]!r}?)"
                if close
                else f" (known: {first_few(known, limit=10)})"
            )


def _is_listed(part: dict[str, Any]) -> bool:
    plain = not (
        part["schema"]
        or part["catalog"]
        or part["distinct"]
        or part["filter"]
        or part["order_bys"]["orders"]
    )
    return plain and part["function_name"].lower() in FUNCTIONS


def _is_known(names: list[str], known: list[str]) -> bool:
    return len(names) == 1 and names[0].lower() in {k.lower() for k in known}


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Return every expression node of a tree."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for inner in value.values():
            yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)
