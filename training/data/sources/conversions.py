"""Columns of texts that are numbers in a declared spelling, converted strictly: `written`.

Every text must have the spelling that `data.columns.NAME.written` declares, or the source is
refused by row and value. Serving reads the same texts with the same pattern:
`training.data.serving_expressions.number_texts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import duckdb

from schemas.config import DataConfig
from schemas.errors import SchemaError, counted, first_few, shortened
from schemas.written_config import WrittenConfig
from training.data.advice import in_yaml
from training.data.engine.engine import ident, literal, row, rows
from training.data.serving_expressions.number_texts import LOOKALIKES, Reading, normal, reading

SHOWN = 5  # values of a refusal
STAGE = "bulkhead_written_"  # columns that hold what was found in a text
_BEFORE, _AFTER = map(literal, LOOKALIKES)


class Sql(NamedTuple):
    """Expressions of one column over a relation of `staged`: its number, and conditions of rows.

    `bad`: a text in another spelling. `bound`, `mark`, `null`: what a text has besides a number;
    empty where the spelling has none.
    """

    number: str
    bad: str
    bound: str
    mark: str
    null: str


def spellings(types: Mapping[str, str], data: DataConfig) -> dict[str, WrittenConfig]:
    """Return the declared spelling of each column of texts; columns of other types have none."""
    return {
        name: config.written
        for name, kind in types.items()
        if (config := data.column(name)) is not None
        and config.written is not None
        and (kind == "VARCHAR" or kind.startswith("ENUM"))
    }


def converted(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    types: Mapping[str, str],
    data: DataConfig,
) -> str:
    """Return the relation with numbers in place of texts whose spelling is declared.

    Args:
        connection: the engine; it reads the relation once.
        relation: SQL relation of the source, in its order.
        types: SQL type of each of its columns.
        data: declares the spellings.

    Raises:
        SchemaError: a text is written in another way; names rows and values.
    """
    wanted = spellings(types, data)
    if not wanted:
        return relation
    read, found = staged(relation, wanted)
    counts = row(
        connection,
        f"select {', '.join(f'count(*) filter (where {sql.bad})' for sql in found.values())} from"
        f" {read}",
    )
    refused = [
        _refusal(connection, read, name, found[name].bad, count, data)
        for name, count in zip(found, counts, strict=True)
        if count
    ]
    if refused:
        raise SchemaError("\n  ".join(refused))
    columns = ", ".join(
        f"{found[name].number} as {ident(name)}" if name in found else ident(name) for name in types
    )
    return f"(select {columns} from {read})"


def staged(relation: str, wanted: Mapping[str, WrittenConfig]) -> tuple[str, dict[str, Sql]]:
    """Return the relation with what the texts of columns hold, and the expressions over it.

    Each text is matched once: one query inside the other has the plain text, its parts and its
    number.
    """
    texts, starts, numbers, found = [], [], [], {}
    for i, (name, written) in enumerate(wanted.items()):
        read = reading(written.model_dump())
        plain, start, number = (f"{STAGE}{what}_{i}" for what in ("text", "start", "number"))
        changed = f"translate(cast({ident(name)} as varchar), {_BEFORE}, {_AFTER})"
        texts.append(f"trim({changed}, ' ') as {plain}")
        before = literal(f"^(?:{read.before})")
        matches = f"regexp_full_match({plain}, {literal(read.whole)})"
        starts.append(f"case when {matches} then regexp_extract({plain}, {before}) end as {start}")
        numbers.append(f"{_number(plain, start, written, read)} as {number}")
        found[name] = _conditions(plain, number, written, read)
    for stage in (texts, starts, numbers):
        relation = f"(select *, {', '.join(stage)} from {relation})"
    return relation, found


def _conditions(plain: str, number: str, written: WrittenConfig, read: Reading) -> Sql:
    nulls = ", ".join(literal(normal(text)) for text in written.nulls)
    null = f"{plain} in ({nulls})" if nulls else ""
    other = f" and not {null}" if null else ""
    unmarked = f"not regexp_full_match({plain}, {literal(read.unmarked)})"
    return Sql(
        f"case when isfinite({number}){other} then {number} end",
        f"({plain} is not null and coalesce(not isfinite({number}), true){other})",
        f"(left({plain}, 1) in ('<', '>', '≤', '≥'){other})" if written.limits == "bound" else "",
        f"({unmarked}{other})" if written.marks else "",
        null,
    )


def _number(plain: str, start: str, written: WrittenConfig, read: Reading) -> str:
    """Return SQL of the number after the start of a text, null where there is no start.

    Digits are joined to a text with a decimal point and cast, so the number is the nearest one.
    """
    number = literal(f"^{read.number}")
    digits = f"regexp_extract(substring({plain}, length({start}) + 1), {number})"
    if written.thousands:
        digits = f"replace({digits}, {literal(written.thousands)}, '')"
    if written.decimal != ".":
        digits = f"replace({digits}, {literal(written.decimal)}, '.')"
    sign = start
    for unit in read.minus:
        sign = f"replace({sign}, {literal(unit)}, '')"
    minus = f"case when contains({sign}, '-') or contains({sign}, '(') then '-' else '' end"
    return f"case when {start} is not null then try_cast({minus} || {digits} as double) end"


def _refusal(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    name: str,
    bad: str,
    count: int,
    data: DataConfig,
) -> str:
    numbered = f"(select row_number() over () as {STAGE}row, {ident(name)}, {bad} as {STAGE}bad"
    first = rows(
        connection,
        f"select {STAGE}row, {ident(name)} from {numbered} from {relation}) where {STAGE}bad order"
        f" by 1 limit {SHOWN}",
    )
    column = data.column(name)
    declared = column.written if column is not None else None
    spelling = declared.model_dump(mode="json", exclude_defaults=True) if declared else {}
    shown = first_few((f"{shortened(str(v))} in row {n}" for n, v in first), count)
    return (
        f"column {name!r}: expected numbers as data.columns declares ({in_yaml(written=spelling)}),"
        f" but {counted(count, 'row')} {'has' if count == 1 else 'have'} another text: {shown} (row"
        " 1 is the first below the header); add the text to written.nulls if it means a null, add"
        " its unit or mark to written, or correct the file"
    )


def conversion_notes(
    connection: duckdb.DuckDBPyConnection,
    texts: str,
    types: Mapping[str, str],
    data: DataConfig,
) -> Iterator[str]:
    """Yield one sentence for each column of which texts said more than a number.

    Args:
        connection: the engine; it reads the relation once.
        texts: SQL relation of the source before the conversion.
        types: SQL type of each of its columns.
        data: declares the spellings.
    """
    read, found = staged(texts, spellings(types, data))
    asked = [
        (name, words, condition)
        for name, sql in found.items()
        for words, condition in (
            ("bounds such as {}, of which the bound was taken", sql.bound),
            ("numbers with a footnote mark such as {}, which was left out", sql.mark),
            ("texts such as {}, which stand for a null", sql.null),
        )
        if condition
    ]
    if not asked:
        return
    figures = ", ".join(
        f"count({ident(name)}), count(*) filter (where {condition}), min({ident(name)}) filter"
        f" (where {condition})"
        for name, _, condition in asked
    )
    told = row(connection, f"select {figures} from {read}")
    for i, (name, words, _) in enumerate(asked):
        values, count, example = told[3 * i : 3 * i + 3]
        if count:
            yield f"{name!r}: {count:,} of {values:,} texts are {words.format(repr(example))}"
