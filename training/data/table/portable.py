"""Derived features as trees that the registered model computes from raw rows without an engine.

The engine binds each expression, so that its plan contains every type and every implicit cast. The
plan becomes a small tree of the operations that `training.data.serving_expressions` knows. Unknown
operations are refused when the data are prepared, so that nobody finds out after training.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import duckdb

from schemas.errors import ConfigError
from training.data.engine.engine import confine, connect, ident, literal, row
from training.data.engine.expressions import derived_sql
from training.data.serving_expressions.casts import CASTS
from training.data.serving_expressions.dates import INTERVAL_OPS, PART_OPS, parse_format, part_name
from training.data.serving_expressions.numbers import COMPARISONS, FLOAT_OPS
from training.data.serving_expressions.vectors import family

Tree = dict[str, Any]
ALIKE = "n+|b+|t+|d+|s+"
# operation -> the families of its arguments (see `vectors.family`), as a regular expression
SIGNATURES: dict[str, str] = {
    "+": "nn?|dn|nd|di|id|si|is|ii",
    "-": "nn?|dd|dn|di|si|ss|ii?",
    "*": "nn",
    **dict.fromkeys(("//", "%", "mod"), "nn"),
    **dict.fromkeys(FLOAT_OPS, "nn?"),
    "log": "nn?",
    **dict.fromkeys(("abs", "sign", "floor", "ceil", "ceiling"), "n"),
    **dict.fromkeys(("round", "trunc"), "nn?"),
    **dict.fromkeys(COMPARISONS, "nn|bb|tt|dd|ss|ii"),
    **dict.fromkeys(("is distinct from", "is not distinct from"), "nn|bb|tt|dd|ss"),
    "normalized_interval": "i",
    **dict.fromkeys(("least", "greatest", "in"), ALIKE),
    **dict.fromkeys(("is null", "is not null"), "."),
    **dict.fromkeys(("and", "or"), "b+"),
    "not": "b",
    "coalesce": ALIKE + "|i+",
    "case": "(b[nbtdsi])+[nbtdsi]",
    **dict.fromkeys(("concat", "concat_ws"), "t+"),
    **dict.fromkeys(
        (
            "||",
            "contains",
            "starts_with",
            "prefix",
            "ends_with",
            "suffix",
            "instr",
            "strpos",
            "position",
            "~~",
            "!~~",
            "~~*",
            "!~~*",
        ),
        "tt",
    ),
    **dict.fromkeys(("length", "len", "lower", "lcase", "upper", "ucase"), "t"),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), "tt?"),
    **dict.fromkeys(("left", "right"), "tn"),
    **dict.fromkeys(("substring", "substr"), "tnn?"),
    "replace": "ttt",
    "split": "ttn",
    **dict.fromkeys(("lpad", "rpad"), "tnt"),
    **dict.fromkeys(PART_OPS, "[ds]"),
    "epoch": "[dsi]",
    "last_day": "[ds]",
    "make_date": "nnn",
    "make_timestamp": "nnnnnn",
    **dict.fromkeys(INTERVAL_OPS, "n"),
    **dict.fromkeys(("date_trunc", "datetrunc"), "t[ds]"),
    **dict.fromkeys(("date_diff", "datediff"), "tdd|tss"),
    **dict.fromkeys(("strptime", "try_strptime"), "tt"),
}
OPERATORS = {
    "COMPARE_IN": "in",
    "OPERATOR_NOT": "not",
    "OPERATOR_IS_NULL": "is null",
    "OPERATOR_IS_NOT_NULL": "is not null",
    "OPERATOR_COALESCE": "coalesce",
    "CONJUNCTION_AND": "and",
    "CONJUNCTION_OR": "or",
}
TEXTUAL = {"ENUM", "UUID"}  # columns that serving sees as text
EMPTY = "bulkhead_columns"


class Unportable(ConfigError):
    """Part of an expression that serving cannot compute."""


class Source(NamedTuple):
    """Meaning of a plan's references: names by position, and the engine for literals."""

    names: list[str]
    connection: duckdb.DuckDBPyConnection


def portable(
    expressions: Mapping[str, str],
    source_types: Mapping[str, str],
    features: Collection[str] | None = None,
) -> dict[str, Tree]:
    """Return trees of derived features and of the derived columns they use, in declared order.

    Args:
        expressions: `data.derive`; each may use those before it.
        source_types: SQL type of each column of the source.
        features: derived columns that the model takes; others (label, time, keys, weight, split)
            may be any expression. Default: all.

    Returns:
        Trees as `training.data.serving_expressions` describes them, JSON-able.

    Raises:
        ConfigError: an expression is not allowed, or one that a feature needs has a part that
            serving cannot compute; names the key, the part and what is allowed there.
    """
    wanted = set(expressions if features is None else features)
    if not wanted & expressions.keys():
        return {}
    trees: dict[str, Tree] = {}
    with closing(connect(threads=1)) as connection:
        confine(connection)
        empty = (
            "(select "
            + ", ".join(f"cast(null as {kind}) as {ident(n)}" for n, kind in source_types.items())
            + " limit 0)"
        )
        connection.execute(
            f"create temp table {EMPTY} as select * from"
            f" {derived_sql(connection, empty, expressions)}"
        )
        for name, expression in reversed(list(expressions.items())):
            if name in wanted:
                trees[name] = _tree(connection, name, expression)
                wanted |= trees[name]["columns"].keys() & expressions.keys()
    return {name: trees[name] for name in expressions if name in trees}


def _tree(connection: duckdb.DuckDBPyConnection, name: str, expression: str) -> Tree:
    query = literal(f"select ({expression}\n) as x from {EMPTY}")
    plan = json.loads(row(connection, f"select json_serialize_plan({query})")[0])["plans"][0]
    table = plan["children"][0]
    source = Source(
        [
            table["names"][c["index"]]
            for c in table["column_indexes"]
            if c["index"] < len(table["names"])
        ],
        connection,
    )
    try:
        root = _node(plan["expressions"][0], source)
        if family(root["type"]) not in "nbtedsi":
            raise Unportable(f"a value of type {root['type']}")
    except Unportable as error:
        raise ConfigError(
            f"data.derive.{name}: {expression!r} has {error}, which the registered model cannot"
            f" compute from raw rows; what it can: {', '.join(supported())}; rewrite the"
            " expression, or compute the column before the source is written"
        ) from None
    return {"sql": expression, "columns": dict(sorted(_columns(root))), "root": root}


def supported() -> list[str]:
    """Return names of all that the expression of a derived feature may contain."""
    return sorted(
        {*SIGNATURES} - {"normalized_interval", "split"}
        | {
            "between",
            "nullif",
            "split_part",
            "if",
            "cast",
            "try_cast",
            "pi",
            "date_part",
            "extract",
        }
    )


def _columns(node: Tree) -> Iterator[tuple[str, str]]:
    if node["op"] == "column":
        yield node["name"], node["type"]
    for arg in node.get("args", ()):
        yield from _columns(arg)


def _node(plan: dict[str, Any], source: Source) -> Tree:
    """Convert a node of the engine's bound plan to a node of ours.

    Raises:
        Unportable: naming the part that serving cannot compute.
    """
    kind = plan["expression_class"]
    if kind == "BOUND_CONSTANT":
        return {
            "op": "constant",
            "type": _type(plan["value"]["type"]),
            "value": _value(plan["value"]),
        }
    if kind == "BOUND_REF":
        return _reference(source.names[plan["index"]], _type(plan["return_type"]))
    if kind == "BOUND_CASE":
        parts = [
            part
            for check in plan["case_checks"]
            for part in (check["when_expr"], check["then_expr"])
        ]
        return _operation("case", [*parts, plan["else_expr"]], _type(plan["return_type"]), source)
    if plan["type"] in OPERATORS:
        kind_of = _type(plan["return_type"]) if "return_type" in plan else "BOOLEAN"
        return _operation(OPERATORS[plan["type"]], plan["children"], kind_of, source)
    if kind != "BOUND_FUNCTION":
        raise Unportable(f"{plan['type'].lower().replace('_', ' ')}")
    name, target = plan["qname"]["path"][-1], _type(plan["return_type"])
    if plan["type"] == "OPERATOR_CAST":
        return _cast(
            _node(plan["children"][0], source), target, plan["function_data"]["try_cast"], source
        )
    if name == "pi":
        return {"op": "constant", "type": "DOUBLE", "value": math.pi}
    if name in ("array_extract", "list_extract") and _called(plan["children"][0]) in (
        "string_split",
        "str_split",
        "split",
    ):
        return _operation(
            "split", [*plan["children"][0]["children"], plan["children"][1]], target, source
        )  # the parts of split_part
    return _operation(name.lower(), plan["children"], target, source)


def _called(plan: dict[str, Any]) -> str:
    return str(plan["qname"]["path"][-1]) if "qname" in plan else ""


def _type(kind: dict[str, Any]) -> str:
    """Return the SQL name of a plan's type."""
    info = kind.get("type_info") or {}
    return (
        f"DECIMAL({info['width']},{info['scale']})" if kind["id"] == "DECIMAL" else str(kind["id"])
    )


def _reference(name: str, kind: str) -> Tree:
    if kind not in TEXTUAL and family(kind) not in set("nbtds"):
        raise Unportable(f"column {name!r} of type {kind}")
    return {"op": "column", "type": "ENUM" if kind in TEXTUAL else kind, "name": name}


def _value(value: dict[str, Any]) -> Any:
    """Return a constant as JSON.

    Whole numbers and decimals are written by their digits, an interval as months, days
    and microseconds.
    """
    if value["is_null"]:
        return None
    kind, found = _type(value["type"]), value["value"]
    if kind == "INTERVAL":
        return [found["months"], found["days"], found["micros"]]
    if isinstance(found, dict) and found.keys() == {"upper", "lower"}:
        return (found["upper"] << 64) + found["lower"]
    if not family(kind):
        raise Unportable(f"a constant of type {kind}")
    return repr(found) if isinstance(found, float) and not math.isfinite(found) else found


def _operation(op: str, parts: list[dict[str, Any]], kind: str, source: Source) -> Tree:
    args = [_node(part, source) for part in parts]
    if op in ("date_trunc", "datetrunc", "date_diff", "datediff", "strptime", "try_strptime"):
        _require_constant(op, args)
    called = f"{op}({', '.join(arg['type'] for arg in args)})"
    if (
        op not in SIGNATURES
        or re.fullmatch(SIGNATURES[op], "".join(family(arg["type"]) or "?" for arg in args)) is None
    ):
        raise Unportable(called)
    if op in FLOAT_OPS and any(arg["type"] not in ("FLOAT", "DOUBLE") for arg in args):
        raise Unportable(called)
    return {"op": op, "type": kind, "args": args}


def _require_constant(op: str, args: list[Tree]) -> None:
    """Require date parts and formats to be constants that serving knows.

    Each is written by its one name.
    """
    place = 1 if op.endswith("strptime") else 0
    value = args[place].get("value")
    if args[place]["op"] != "constant" or not isinstance(value, str):
        raise Unportable(f"{op} with an argument that is not one constant text")
    try:
        if place:
            parse_format(value)
        else:
            args[place] = args[place] | {"value": part_name(value)}
    except ValueError as error:
        raise Unportable(f"{op} with {error}") from None


def _cast(inner: Tree, target: str, trying: bool, source: Source) -> Tree:
    if target == "INTERVAL" and inner["op"] == "constant" and inner["type"] == "VARCHAR":
        return {"op": "constant", "type": target, "value": _interval(inner["value"], source)}
    if inner["type"] == target:
        return inner
    if inner["type"] == "NULL" and inner["op"] == "constant" and family(target):
        return {"op": "constant", "type": target, "value": None}
    if family(target) not in CASTS[family(inner["type"])] or not family(target):
        raise Unportable(f"a cast from {inner['type']} to {target}")
    if (inner["type"], target) == ("FLOAT", "VARCHAR"):
        raise Unportable(
            "a cast of single precision to text, whose digits depend on the engine (cast it to"
            " double or decimal first),"
        )
    return {"op": "try_cast" if trying else "cast", "type": target, "args": [inner]}


def _interval(text: str, source: Source) -> list[int]:
    parts = ", ".join(
        f"date_part({literal(part)}, x)"
        for part in ("year", "month", "day", "hour", "minute", "microsecond")
    )
    year, month, day, hour, minute, micros = row(
        source.connection, f"select {parts} from (select cast({literal(text)} as interval) as x)"
    )
    return [12 * year + month, day, (hour * 60 + minute) * 60_000_000 + micros]
