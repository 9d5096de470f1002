"""Column names in advice, as SQL and YAML read them, so that the advice of an error works."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable
from contextlib import closing

import duckdb
import yaml

from training.data.engine.engine import ident


@functools.cache
def sql_name(name: str) -> str:
    """Return a column's name as an expression needs it.

    It is in double quotes unless the engine reads the bare word as that column.

    >>> sql_name("age"), sql_name("case.id"), sql_name("at")
    ('age', '"case.id"', '"at"')
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        return ident(name)
    with closing(duckdb.connect()) as connection:
        answer = connection.execute(
            "select json_serialize_sql(?)", [f"select ({name}) as x"]
        ).fetchall()[0][0]
    tree = json.loads(answer)
    read = None if tree["error"] else tree["statements"][0]["node"]["select_list"][0]
    return (
        name
        if read and read["class"] == "COLUMN_REF" and read["column_names"] == [name]
        else ident(name)
    )


def in_yaml(**values: object) -> str:
    r"""Return settings as one line of YAML that can be pasted below their section.

    >>> in_yaml(filter='"case.id" is not null'), in_yaml(derive={"m": "month(day)"})
    ('filter: \'"case.id" is not null\'', 'derive: {m: month(day)}')
    """
    lines = [
        yaml.safe_dump(
            {key: value},
            default_flow_style=True,
            allow_unicode=True,
            width=math.inf,
            sort_keys=False,
        )
        for key, value in values.items()
    ]
    return ", ".join(line.strip().removeprefix("{").removesuffix("}") for line in lines)


def derived_in_yaml(name: str, expression: str) -> str:
    """Return a derived column as a mistake's remedy shows it."""
    return f"data.{in_yaml(derive={name: expression})}"


def role_of(name: str, role: str) -> str:
    """Return `data.columns` with another role for one column, as YAML reads it.

    >>> role_of("a: b", "ignore")
    "'a: b': ignore"
    """
    return in_yaml(**{name: role})


def quoted_names(expression: str, known: Iterable[str]) -> str | None:
    """Return an expression with quotes around column names that SQL cannot read bare.

    Return None if there are none.

    >>> quoted_names("case.id is not null and age > 3", ["case.id", "age"])
    '"case.id" is not null and age > 3'
    """
    changed = expression
    for name in sorted(known, key=len, reverse=True):
        if sql_name(name) != name and name in changed:
            word = rf"(?<![\w.\"']){re.escape(name)}(?![\w\"'])(?!\s*\()"
            changed = re.sub(word, ident(name).replace("\\", r"\\"), changed)
    return changed if changed != expression else None
