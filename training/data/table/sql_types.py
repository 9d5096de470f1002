"""Families of SQL types, as roles and kinds of columns need them."""

from __future__ import annotations

import re
from typing import Literal

Family = Literal["int", "float", "bool", "text", "date", "instant", "list", "other"]
INTEGERS = {
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
}
WORDS = {
    "int": "whole numbers",
    "float": "numbers",
    "bool": "true/false",
    "text": "text",
    "date": "dates",
    "instant": "timestamps",
    "list": "lists",
    "other": "values",
}


def family(kind: str) -> Family:
    """Return the family of values of an SQL type.

    >>> family("DECIMAL(10,2)"), family("UTINYINT[784]"), family("TIMESTAMP WITH TIME ZONE")
    ('float', 'list', 'instant')
    """
    if kind.endswith("]"):
        return "list"
    if kind in INTEGERS:
        return "int"
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        return "float"
    if kind in ("VARCHAR", "UUID", '"NULL"') or kind.startswith("ENUM"):
        return "text"
    if kind.startswith("TIMESTAMP"):
        return "instant"
    return "bool" if kind == "BOOLEAN" else "date" if kind == "DATE" else "other"


def is_whole(kind: str) -> bool:
    """Return True for SQL types of whole numbers, which compare reliably.

    Decimals without a fraction are among them.

    >>> is_whole("BIGINT"), is_whole("DECIMAL(38,0)"), is_whole("DECIMAL(10,2)")
    (True, True, False)
    """
    return kind in INTEGERS or bool(re.fullmatch(r"DECIMAL\(\d+,0\)", kind))


def nesting(kind: str) -> int:
    """Return the list depth of an SQL type.

    >>> nesting("UTINYINT[]"), nesting("FLOAT[28][28]"), nesting("DOUBLE")
    (1, 2, 0)
    """
    return kind.count("[")
