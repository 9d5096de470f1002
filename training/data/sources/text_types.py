"""Types of text columns, decided on every value of every file without samples or guessed formats.

A column is a number, a truth value, a date or a timestamp only if each of its values is; otherwise
it stays text. Codes with leading zeros stay text (007 is not 7), and only ISO dates are dates
(1/2/11 has two readings).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb

from training.data.engine.engine import ident, literal, row, rows

INTEGER = r"\s*[+-]?(0|[1-9]\d{0,17})\s*"
DIGITS = r"\s*[+-]?(0|[1-9]\d*)\s*"
NUMBER = (
    r"\s*[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*|"
    r"\s*[+-]?([nN][aA][nN]|[iI][nN][fF]([iI][nN][iI][tT][yY])?)\s*"
)
WIDE = 300  # columns, from which their values are tested below each other
TRUTH = r"[tT]rue|[fF]alse|TRUE|FALSE"
DATE = r"\d{4}-\d{2}-\d{2}"
LOCAL = DATE + r"[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
INSTANT = LOCAL + r"(Z|[+-]\d{2}(:?\d{2})?)"
CASTS = {  # type -> SQL that converts the text to it
    "BIGINT": "cast({0} as bigint)",
    "DOUBLE": "cast({0} as double)",
    "BOOLEAN": "cast({0} as boolean)",
    "DATE": "cast({0} as date)",
    "TIMESTAMP": "cast({0} as timestamp)",
    "INSTANT": "timezone('UTC', cast({0} as timestamptz))",
    "VARCHAR": "{0}",
}
FORMS = {"BOOLEAN": TRUTH, "DATE": DATE, "TIMESTAMP": LOCAL, "INSTANT": INSTANT}


def typed_sql(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    names: Sequence[str],
    kept: Sequence[str] = (),
    decimal: str = ".",
) -> str:
    """Return a relation of text columns, each cast to the type that all its values have.

    Args:
        connection: the engine; the relation is read twice.
        relation: SQL of a relation whose columns are all text.
        names: its columns, in order.
        kept: further columns, which stay as they are.
        decimal: the mark before the decimals of a number: "." or ",".
    """
    types = text_types(connection, relation, names, decimal) if names else {}
    columns = [
        f"{CASTS[types[n]].format(_pointed(ident(n), decimal) if types[n] == 'DOUBLE' else ident(n))}"  # noqa: E501
        f" as {ident(n)}"
        for n in names
    ]
    return f"(select {', '.join([*columns, *map(ident, kept)])} from {relation})"


def text_types(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    names: Sequence[str],
    decimal: str = ".",
    with_nulls: bool = False,
) -> dict[str, str]:
    """Return the type of each text column.

    It is BIGINT, DOUBLE, BOOLEAN, DATE, TIMESTAMP, INSTANT (with an offset) or VARCHAR. Times with
    a null among them are texts, as they always were in delimited text, unless `with_nulls` is set.
    """
    count = _counts_by_name if len(names) >= WIDE else _counts
    candidates = {n: _candidate(*found) for n, found in count(connection, relation, names, decimal)}
    tested = {
        n: _tests(_pointed(ident(n), decimal) if kind == "NUMBER" else ident(n), kind, with_nulls)
        for n, kind in candidates.items()
        if kind != "VARCHAR"
    }
    if not tested:
        return candidates
    if len(names) >= WIDE:
        passed = _passed_by_name(connection, relation, candidates, decimal, with_nulls)
    else:
        columns = ", ".join(test for tests in tested.values() for test in tests)
        held = iter(row(connection, f"select {columns} from {relation}"))
        passed = {n: sum(bool(next(held)) for _ in tests) for n, tests in tested.items()}
    return {n: _decide(kind, passed.get(n, 0)) for n, kind in candidates.items()}


def _counts(
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], decimal: str
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return values, numbers and an example of each column."""
    counts = ", ".join(_count(c, decimal) for c in map(ident, names))
    first = row(connection, f"select {counts} from {relation}")
    for place, name in enumerate(names):
        yield name, first[3 * place : 3 * place + 3]


def _count(column: str, decimal: str) -> str:
    number = f"try_cast({_pointed(column, decimal)} as double)"
    return f"count({column}), count({number}), any_value({column})"


def _counts_by_name(
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], decimal: str
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return the same as `_counts`, from one long column: thousands of expressions cost more."""
    long = _long(relation, names)
    found = {
        str(name): counts
        for name, *counts in rows(
            connection, f"select name, {_count('value', decimal)} from {long} group by name"
        )
    }
    for name in names:
        yield name, tuple(found.get(name, (0, 0, None)))  # a table without rows has no line


def _passed_by_name(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    candidates: Mapping[str, str],
    decimal: str,
    with_nulls: bool,
) -> dict[str, int]:
    """Return how many tests of its candidate type each column passes."""
    passed: dict[str, int] = {}
    for kind in sorted(set(candidates.values()) - {"VARCHAR"}):
        value = _pointed("value", decimal) if kind == "NUMBER" else "value"
        long = _long(relation, [n for n, found in candidates.items() if found == kind])
        tests = ", ".join(_tests(value, kind, with_nulls))
        held = rows(connection, f"select name, {tests} from {long} group by name")
        passed |= {str(name): sum(map(bool, results)) for name, *results in held}
    return passed


def _long(relation: str, names: Sequence[str]) -> str:
    """Return the values of columns below each other, each with its column's name."""
    columns = ", ".join(map(ident, names))
    table = f"(select {columns} from {relation})"
    return f"(select * from {table} unpivot include nulls (value for name in ({columns})))"


def _pointed(column: str, decimal: str) -> str:
    """Return SQL of a text with a decimal point where it has another mark.

    Its own points become marks, which no number contains.
    """
    return column if decimal == "." else f"translate({column}, '{decimal}.', '.{decimal}')"


def _candidate(values: int, numbers: int, example: str | None) -> str:
    """Return the possible types of a column: all its values must have the form of one."""
    if not values or example is None:
        return "VARCHAR"
    if numbers == values:
        return "NUMBER"
    return next((kind for kind, form in FORMS.items() if re.fullmatch(form, example)), "VARCHAR")


def _tests(column: str, kind: str, with_nulls: bool) -> list[str]:
    """Return SQL conditions on all values, each implying the previous one."""
    if kind == "NUMBER":
        whole = f"bool_and(case when contains({column}, '.') then false else {{}} end)"
        fits = [f"regexp_full_match({column}, {literal(f)})" for f in (NUMBER, DIGITS, INTEGER)]
        return [f"bool_and({fits[0]})", whole.format(fits[1]), whole.format(fits[2])]
    if kind in FORMS:
        or_null = f" or {column} is null" if with_nulls else ""
        return [
            f"bool_and(regexp_full_match({column}, {literal(FORMS[kind])}) and"
            f" {CASTS[kind].format(column).replace('cast(', 'try_cast(')} is not null{or_null})"
        ]
    return []


def _decide(kind: str, passed: int) -> str:
    """Choose the type; whole numbers beyond 64 bits stay text, as doubles would lose digits."""
    if kind == "NUMBER":
        return ("VARCHAR", "DOUBLE", "VARCHAR", "BIGINT")[passed]
    return kind if passed else "VARCHAR"
