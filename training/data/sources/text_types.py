"""Types of text columns, decided on every value of every file without samples or guessed formats.

A column is a number, a truth value, a date or a timestamp only if each of its values is; otherwise
it stays text. Codes with leading zeros stay text (007 is not 7), and only ISO dates are dates
(1/2/11 has two readings).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb

from training.data.engine.engine import ident, literal, row

INTEGER = r"\s*[+-]?(0|[1-9]\d{0,17})\s*"
DIGITS = r"\s*[+-]?(0|[1-9]\d*)\s*"
NUMBER = (
    r"\s*[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*|"
    r"\s*[+-]?([nN][aA][nN]|[iI][nN][fF]([iI][nN][iI][tT][yY])?)\s*"
)
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
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str], decimal: str = "."
) -> dict[str, str]:
    """Return the type of each text column.

    It is BIGINT, DOUBLE, BOOLEAN, DATE, TIMESTAMP, INSTANT (with an offset) or VARCHAR.
    """
    counts = (
        f"count({c}), count(try_cast({_pointed(c, decimal)} as double)), any_value({c})"
        for c in map(ident, names)
    )
    first = row(connection, f"select {', '.join(counts)} from {relation}")
    candidates = {n: _candidate(*first[3 * i : 3 * i + 3]) for i, n in enumerate(names)}
    tests = [
        (n, sql)
        for n, kind in candidates.items()
        for sql in _tests(_pointed(ident(n), decimal) if kind == "NUMBER" else ident(n), kind)
    ]
    if not tests:
        return candidates
    passed = dict.fromkeys(candidates, 0)
    for (name, _), holds in zip(
        tests,
        row(connection, f"select {', '.join(sql for _, sql in tests)} from {relation}"),
        strict=True,
    ):
        passed[name] += bool(holds)
    return {n: _decide(kind, passed[n]) for n, kind in candidates.items()}


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


def _tests(column: str, kind: str) -> list[str]:
    """Return SQL conditions on all values, each implying the previous one."""
    if kind == "NUMBER":
        return [
            f"bool_and(regexp_full_match({column}, {literal(form)}))"
            for form in (NUMBER, DIGITS, INTEGER)
        ]
    if kind in FORMS:
        return [
            f"bool_and(regexp_full_match({column}, {literal(FORMS[kind])}) and"
            f" {CASTS[kind].format(column).replace('cast(', 'try_cast(')} is not null)"
        ]
    return []


def _decide(kind: str, passed: int) -> str:
    """Choose the type; whole numbers beyond 64 bits stay text, as doubles would lose digits."""
    if kind == "NUMBER":
        return ("VARCHAR", "DOUBLE", "VARCHAR", "BIGINT")[passed]
    return kind if passed else "VARCHAR"
