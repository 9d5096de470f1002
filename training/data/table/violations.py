"""Find rows that break the declaration: one SQL condition per rule, one sentence per finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from schemas.config import ColumnConfig
from schemas.errors import SchemaError, first_few
from schemas.tables import (
    allowed_values,
    arrow_schema,
    broken_rules,
    has_bad_elements,
    pandera_schema,
)
from training.data.advice import in_yaml, sql_name
from training.data.engine.engine import Tables, even_tables, ident, literal, row, rows, without_nan
from training.data.table.columns import Resolved, family
from training.data.table.typed import key_sql, value_columns, wrong_shape_sql

BATCH_ROWS, WIDE_BATCH_ROWS = 131_072, 2_048
MAX_MARKERS = (
    3  # with at most so many other texts, a column of numbers has markers of missing values …
)
MIN_NUMBERS = 20  # … if it has more than so many different numbers; fewer are codes

NEVER_NULL = ("id", "group", "time", "weight")  # roles whose nulls no declaration allows


class Rule(NamedTuple):
    """Condition that no row may meet: expectation of the column, what to show, and remedy."""

    column: str
    expected: str
    condition: str
    shown: str
    remedy: str


class TextNumbers(NamedTuple):
    """Counts of a text column: values, values that read as numbers, different numbers, other texts.

    Of the last two only as many as decide.
    """

    values: int
    numbers: int
    different: list[float]
    texts: list[str]


def source_violations(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, relation: str
) -> list[str]:
    """Return violations that must be absent before the cast.

    Role columns have no nulls, texts are not numbers, tensors have their shape.
    """
    return [
        *broken_source_rules(connection, resolved, relation),
        *number_like(text_numbers(connection, resolved, relation)),
    ]


def source_rules(resolved: Resolved) -> list[Rule]:
    """Return the rules of single source rows."""
    return [*_null_roles(resolved), *_no_numbers(resolved), *_wrong_shapes(resolved)]


def broken_source_rules(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, relation: str
) -> list[str]:
    """Return one sentence for each rule of `source_rules` that rows of the relation break."""
    return _found(
        connection,
        relation,
        source_rules(resolved),
        key_sql(resolved.spec.id) if resolved.spec.id else None,
    )


def value_violations(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, table: str
) -> list[str]:
    """Return rules that pandera finds broken on the typed table, with the rows that break them.

    Args:
        connection: the engine that holds the typed table.
        resolved: declared limits and types.
        table: name of the typed table.
    """
    return broken_values(connection, resolved, table, broken_pairs(connection, resolved, table))


def broken_pairs(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, table: str
) -> set[tuple[str, str]]:
    """Return pairs (column, rule) that pandera finds broken on the typed table, by batches."""
    kinds = typed_kinds(resolved)
    reader = connection.sql(f"select {', '.join(map(ident, kinds))} from {table}").to_arrow_reader(
        BATCH_ROWS
    )
    schema = pandera_schema(resolved.spec, resolved.configs, kinds)
    return {
        pair for found in even_tables(reader, BATCH_ROWS) for pair in broken_rules(schema, found)
    }


def broken_values(
    connection: duckdb.DuckDBPyConnection,
    resolved: Resolved,
    table: str,
    broken: set[tuple[str, str]],
) -> list[str]:
    """Return one sentence for each pair of `broken_pairs`, with the rows that break the rule."""
    kinds = typed_kinds(resolved)
    return _found(
        connection,
        table,
        [_rule(column, name, resolved, kinds) for column, name in sorted(broken)],
        "__id",
    )


def typed_kinds(resolved: Resolved) -> dict[str, pa.DataType]:
    """Return Arrow types of the typed table's columns that may have limits, except tensors."""
    kinds = _written_kinds(resolved)
    texts = {
        n: (
            pa.float64()
            if n not in kinds and family(resolved.types[n]) in ("int", "float")
            else pa.string()
        )
        for n in value_columns(resolved)
    }
    return {**texts, **kinds}


def _written_kinds(resolved: Resolved) -> dict[str, pa.DataType]:
    """Return the Arrow types of columns with limits in the validated table.

    Some role columns with limits are not in it.
    """
    return {
        str(f.name): f.type
        for f in arrow_schema(resolved.spec)
        if f.name not in resolved.spec.tensor
    }


def keeping_limits(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, table: str
) -> Callable[[Tables], Tables]:
    """Return a generator that passes rows of the typed table on to a file and checks limits.

    The generator raises `SchemaError` after the last row, with the text of
    `value_violations`.
    """
    kinds = _written_kinds(resolved)
    schema = pandera_schema(resolved.spec, resolved.configs, kinds)

    def passing(tables: Tables) -> Tables:
        """Yield the batches; raise after the last if a limit is broken."""
        broken: set[tuple[str, str]] = set()
        for found in tables:
            broken |= broken_rules(schema, found.select(list(kinds)))
            yield found
        findings = [
            *broken_values(connection, resolved, table, broken),
            *_beside(connection, resolved, table),
        ]
        if findings:
            raise SchemaError("\n  ".join(findings))

    return passing


def _beside(connection: duckdb.DuckDBPyConnection, resolved: Resolved, table: str) -> list[str]:
    """Check role columns that have limits but are not in the validated table."""
    written = _written_kinds(resolved)
    kinds = {n: kind for n, kind in typed_kinds(resolved).items() if n not in written}
    if not kinds:
        return []
    reader = connection.sql(f"select {', '.join(map(ident, kinds))} from {table}").to_arrow_reader(
        BATCH_ROWS
    )
    schema = pandera_schema(resolved.spec, resolved.configs, kinds)
    return broken_values(
        connection,
        resolved,
        table,
        {pair for found in even_tables(reader, BATCH_ROWS) for pair in broken_rules(schema, found)},
    )


def repeated_values(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, table: str, ids_differ: bool = False
) -> list[str]:
    """Return ids that occur in several rows, unless they are known to differ.

    Also return repeated values of columns declared unique.
    """
    remedy = (
        "remove the repeated rows, or declare all columns that together identify a row with role id"
    )
    checks = [] if ids_differ else [("__id", ", ".join(resolved.spec.id), "a row id", remedy)]
    checks += [
        (n, n, "unique", "remove the repeated rows, or unique: true")
        for n, c in resolved.configs.items()
        if c.unique
    ]
    return [line for check in checks for line in _repeated(connection, table, *check)]


def _repeated(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    column: str,
    name: str,
    what: str,
    remedy: str,
) -> Iterator[str]:
    groups = (
        f"select {ident(column)} as value, count(*) as n from {table} where {ident(column)} is not"
        " null group by 1 having count(*) > 1"
    )
    values, total = row(connection, f"select count(*), coalesce(sum(n), 0) from ({groups})")
    if values:
        first = [
            repr(r[0])
            for r in rows(connection, f"select value from ({groups}) order by value limit 5")
        ]
        several = "1 value is that" if values == 1 else f"{values} values are those"
        yield (
            f"column {name!r}: expected each value once ({what}), but {several} of {total} rows"
            f" (first: {first_few(first, values)}); {remedy}"
        )


def _found(
    connection: duckdb.DuckDBPyConnection, table: str, rules: list[Rule], ids: str | None
) -> list[str]:
    """Return one sentence for each rule that rows break."""
    if not rules:
        return []
    counts = row(
        connection,
        f"select {', '.join(f'count(*) filter (where {r.condition})' for r in rules)} from {table}",
    )
    return [
        _sentence(connection, table, rule, ids, count)
        for rule, count in zip(rules, counts, strict=True)
        if count
    ]


def _sentence(
    connection: duckdb.DuckDBPyConnection, table: str, rule: Rule, ids: str | None, count: int
) -> str:
    values = [
        r[0]
        for r in rows(
            connection,
            f"select distinct {rule.shown} from {table} where {rule.condition} order by 1 limit 6",
        )
    ]
    shown = (
        f" (values {first_few((repr(v) for v in values[:5]), len(values))})"
        if any(v is not None for v in values)
        else ""
    )
    where = ""
    if ids is not None:
        first = [
            r[0]
            for r in rows(
                connection, f"select {ids} from {table} where {rule.condition} order by 1 limit 5"
            )
        ]
        where = (
            f", first ids: {first_few(first, count)}" if any(f is not None for f in first) else ""
        )
    return (
        f"column {rule.column!r}: expected {rule.expected}, but {count}"
        f" row{'s have' if count > 1 else ' has'} not{shown}{where}; {rule.remedy}"
    )


def _null_roles(resolved: Resolved) -> Iterator[Rule]:
    spec = resolved.spec
    for role, names in (
        ("id", spec.id),
        ("group", spec.group),
        ("time", (spec.time,)),
        ("weight", (spec.weight,)),
        ("split", (spec.split,)),
    ):
        for name in (n for n in names if n is not None):
            value = (
                without_nan(ident(name))
                if resolved.types[name] in ("FLOAT", "DOUBLE")
                else ident(name)
            )
            null = f"({value}) is null"
            yield Rule(
                name,
                f"a value in each row (role {role})",
                null,
                "null",
                f"leave such rows out, e.g. data.{in_yaml(filter=f'{sql_name(name)} is not null')}",
            )


def _no_numbers(resolved: Resolved) -> Iterator[Rule]:
    numeric = [
        *resolved.spec.numeric,
        *(name for name, label in resolved.spec.label_columns.items() if label.type == "float"),
    ]
    for name in (n for n in numeric if family(resolved.types[n]) == "text"):
        remedy = (
            "add such texts to data.csv.null_values if they mean a null, or declare the column"
            " categorical"
        )
        yield Rule(
            name,
            "numbers (kind numeric)",
            f"{ident(name)} is not null and try_cast({ident(name)} as double) is null",
            ident(name),
            remedy,
        )


def _wrong_shapes(resolved: Resolved) -> Iterator[Rule]:
    for name, shape in resolved.spec.tensor.items():
        condition = wrong_shape_sql(name, shape, resolved.types[name])
        yield Rule(
            name,
            f"lists of shape {list(shape)}",
            condition,
            f"len({ident(name)})",
            "fix shape, or leave such rows out with data.filter",
        )


def text_numbers(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, relation: str, whole: bool = True
) -> dict[str, TextNumbers]:
    """Return how far text columns that would become categories hold numbers.

    The counts are exact as far as `number_like` needs them.

    Args:
        connection: the engine.
        resolved: kinds and types.
        relation: rows of the source.
        whole: True if these are all rows; of parts that are to be merged, more is returned.
    """
    names = [
        n
        for n in resolved.spec.categorical
        if resolved.configs[n].kind == "auto" and family(resolved.types[n]) == "text"
    ]
    if not names:
        return {}
    counts = row(
        connection,
        "select "
        + ", ".join(f"count({c}), count(try_cast({c} as double))" for c in map(ident, names))
        + f" from {relation}",
    )
    found = {}
    for i, name in enumerate(names):
        values, numbers, column = counts[2 * i], counts[2 * i + 1], ident(name)
        number, ask = f"try_cast({column} as double)", not whole or values > numbers > values / 2
        some = (
            rows(
                connection,
                f"select distinct {number} from {relation} where {number} is not null limit"
                f" {MIN_NUMBERS + 1}",
            )
            if ask
            else []
        )
        others = (
            f"select distinct {column} from {relation} where {number} is null and {column} is not"
            f" null order by 1 limit {MAX_MARKERS + 1}"
        )
        found[name] = TextNumbers(
            values,
            numbers,
            [r[0] for r in some],
            [r[0] for r in rows(connection, others)] if ask else [],
        )
    return found


def number_like(found: Mapping[str, TextNumbers]) -> Iterator[str]:
    """Return columns of numbers that would become categories because of a few texts such as NA."""
    for name, told in found.items():
        few = 0 < len(told.texts) <= MAX_MARKERS and len(told.different) > MIN_NUMBERS
        if told.values > told.numbers > told.values / 2 and few:
            shown = first_few(map(repr, told.texts))
            yield (
                f"column {name!r}: {told.numbers} of {told.values} values are numbers, the others"
                f" are {shown}; add them to data.csv.null_values, or declare the column numeric or"
                " categorical"
            )


def tensor_violations(
    connection: duckdb.DuckDBPyConnection, resolved: Resolved, table: str
) -> list[str]:
    """Return tensors with elements that are null or not finite."""
    rules = []
    for name in resolved.spec.tensor:
        reader = connection.sql(f"select {ident(name)} from {table}").to_arrow_reader(
            WIDE_BATCH_ROWS
        )
        # all of them: a reader left open blocks the engine
        bad = [has_bad_elements(batch.column(0)) for batch in reader]
        if any(bad):
            condition = (
                f"len(list_filter({ident(name)}, lambda v: v is null or not isfinite(cast(v as"
                " double)))) > 0"
            )
            rules.append(
                Rule(
                    name,
                    "finite elements",
                    condition,
                    "null",
                    "fix the elements, or leave such rows out with data.filter",
                )
            )
    return _found(connection, table, rules, "__id")


def _rule(column: str, name: str, resolved: Resolved, kinds: dict[str, Any]) -> Rule:
    """Return the SQL form of a rule that pandera found broken."""
    config = resolved.configs.get(column, ColumnConfig())
    told = str(resolved.spec.label_time) if column == "__label_time" else column
    c, least = ident(column), config.min if config.min is not None else 0.0
    declared = "correct the rows, change the limit, or leave them out with data.filter"
    # of several labels, any may be null unless declared otherwise
    if name == "nulls" and column == resolved.spec.label:
        what = "a text" if column == resolved.spec.text else "a label"
        return Rule(
            column,
            f"{what} in each row",
            f"{c} is null",
            "null",
            "fill them in the source, or set data.null_labels: drop",
        )
    if column == "__time":
        return Rule(
            str(resolved.spec.time),
            "finite times",
            f"{c} is null",
            "null",
            "leave rows of infinite time out with data.filter",
        )
    if name == "nulls":
        remedy = (
            "fill them in the source, or leave such rows out, e.g."
            f" data.{in_yaml(filter=f'{sql_name(told)} is not null')}"
        )
        return Rule(
            told,
            "no nulls",
            f"{c} is null",
            "null",
            (
                remedy
                if config.role in NEVER_NULL
                else "fill them in the source, or set nullable: true"
            ),
        )
    if name == "finite":
        may_be_null = config.role == "feature" and config.nullable is not False
        remedy = (
            "make them null (unknown) or correct them in the source"
            if may_be_null
            else "correct them in the source, or leave such rows out with data.filter"
        )
        return Rule(told, "finite numbers", f"isinf({c})", c, remedy)
    if name == "min":
        return Rule(told, f"at least {least:g}", f"{c} < {literal(float(least))}", c, declared)
    if name == "max":
        return Rule(
            told,
            f"at most {config.max:g}",
            f"{c} > {literal(float(config.max or 0.0))}",
            c,
            declared,
        )
    if name == "allowed" and config.allowed is not None:
        values = allowed_values(config.allowed, kinds[column])
        listed = ", ".join(literal(v) for v in values) or "null"
        return Rule(
            told,
            f"one of {first_few(map(repr, values), len(values), limit=10)}",
            f"{c} not in ({listed})",
            c,
            declared,
        )
    raise RuntimeError(
        f"column {column!r} of the typed table breaks the rule {name!r}, which its construction"
        " rules out"
    )
