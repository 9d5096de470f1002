"""Spellings of a table's columns for a first declaration: numbers of texts, and their remarks."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import duckdb
import yaml

from schemas.config import ColumnConfig, DataConfig
from schemas.records import SourceRef
from schemas.written_config import WrittenConfig
from training.data.advice import in_yaml, sql_name
from training.data.draft.column_hints import hint_of
from training.data.draft.text_layout import layout_of
from training.data.engine.engine import ident, literal, row, rows
from training.data.engine.many_columns import plan_quickly
from training.data.sources.conversions import conversion_notes, converted, staged
from training.data.sources.spelling import Guessed, guess_spelling, plain_numbers
from training.data.sources.text_files import csv_texts

FIRST_ROWS = 1_000  # decide which columns are read as a whole
OTHERS = 100  # different texts that are looked at again
ROUNDS = 3
MOST_VARIANTS = 1_000  # categories of which spellings are compared
REMARKS = "bulkhead_remarks"
TEXTS = "bulkhead_texts"  # table of the columns that are read as a whole
GROUPED = r"-?[1-9][0-9]{0,2}(\.[0-9]{3})+"
Types = Mapping[str, str]


def with_spellings(
    connection: duckdb.DuckDBPyConnection,
    source: SourceRef,
    data: DataConfig,
    read: Callable[[DataConfig], str],
) -> tuple[DataConfig, str]:
    """Return the reading options with the spelling of each column of written numbers.

    Args:
        connection: an open engine; afterwards it holds the table `bulkhead_remarks`.
        source: the files.
        data: how they are read.
        read: gives the relation of the files' rows by such options.

    Returns:
        The options, whose `columns` declare the spellings, and the relation read by them.

    Raises:
        SourceError: the source cannot be read.
    """
    connection.execute(f"create or replace temp table {REMARKS} (name varchar, remark varchar)")
    if source.format == "csv":
        for remark in layout_of(source).remarks:
            _tell(connection, "", remark)
    relation = read(data)
    types = _types(connection, relation)
    plan_quickly(connection, len(types))
    found = _spelt(connection, relation, types, data.csv.decimal)
    if source.format == "csv" and data.csv.decimal == "." and _is_comma(found, data):
        comma = data.model_copy(update={"csv": data.csv.model_copy(update={"decimal": ","})})
        if _without_points(connection, source, data, types):
            return with_spellings(connection, source, comma, read)
    pure = {"decimal": ","} if data.csv.decimal == "," else {}
    written = {n: WrittenConfig(**g.written) for n, g in found.items() if g.written != pure}
    if not written:
        return data, relation
    columns = {n: ColumnConfig(written=how) for n, how in written.items()}
    data = data.model_copy(update={"columns": columns | data.columns})
    for name, guess in found.items():
        if name in written:
            notes = conversion_notes(connection, TEXTS, {name: "VARCHAR"}, data)
            _tell(connection, name, "; ".join(_told(guess, [n.split(": ", 1)[1] for n in notes])))
    return data, converted(connection, relation, types, data)


def _types(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    return {str(r[0]): str(r[1]) for r in rows(connection, f"describe select * from {relation}")}


def _spelt(
    connection: duckdb.DuckDBPyConnection, relation: str, types: Types, decimal: str
) -> dict[str, Guessed]:
    """Return the spelling of each text column, true of all its rows."""
    texts = [n for n, kind in types.items() if kind == "VARCHAR" or kind.startswith("ENUM")]
    if not texts:
        return {}
    listed = ", ".join(f"cast({ident(n)} as varchar) as {ident(n)}" for n in texts)
    first = connection.sql(f"select {listed} from {relation} limit {FIRST_ROWS}").to_arrow_table()
    counts = {n: Counter(v for v in first[n].to_pylist() if v is not None) for n in texts}
    found = {n: g for n in texts if (g := guess_spelling(counts[n], decimal)) is not None}
    found = {n: g for n, g in found.items() if not (g.written.get("marks") and hint_of(n))}
    if decimal == "." and any(g.certain and _decimal(g) == "," for g in found.values()):
        found |= {n: g for n in found if (g := guess_spelling(counts[n], ",")) is not None}
    plain = {n: g for n in texts if n not in found and (g := plain_numbers(counts[n])) is not None}
    found |= {n: guess for n, guess in plain.items() if not hint_of(n)}
    if found:  # a file is read only once more for all of them
        chosen = ", ".join(f"cast({ident(n)} as varchar) as {ident(n)}" for n in found)
        connection.execute(
            f"create or replace temp table {TEXTS} as select {chosen} from {relation}"
        )
    return {
        name: known
        for name, guess in found.items()
        if (known := _of_all_rows(connection, TEXTS, name, guess, counts[name])) is not None
        and known.written
    }


def _decimal(guess: Guessed) -> str:
    return str(guess.written.get("decimal", "."))


def _of_all_rows(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    name: str,
    guess: Guessed,
    counts: Counter[str],
) -> Guessed | None:
    """Return the spelling after a look at all rows, None if some have too many other texts."""
    decimal, total = _decimal(guess), 0
    for _ in range(ROUNDS):
        read, sql = staged(relation, {name: WrittenConfig(**guess.written)})
        total = total or int(row(connection, f"select count({ident(name)}) from {relation}")[0])
        others = rows(
            connection,
            f"select {ident(name)}, count(*) from {read} where {sql[name].bad} group by all order"
            f" by 2 desc, 1 limit {OTHERS}",
        )
        if not others:
            return guess
        known = sum(counts.values()) or 1
        scaled = {text: max(1, count * total // known) for text, count in counts.items()}
        counts = Counter(scaled | {str(text): int(count) for text, count in others})
        again = guess_spelling(counts, decimal)
        if again is None:
            return None
        guess = again
    return None


def _is_comma(found: Mapping[str, Guessed], data: DataConfig) -> bool:
    """Return True if a column certainly has decimal commas, or `;` lets them be likely."""
    commas = [g for g in found.values() if _decimal(g) == ","]
    return any(g.certain or data.csv.delimiter == ";" for g in commas)


def _without_points(
    connection: duckdb.DuckDBPyConnection, source: SourceRef, data: DataConfig, types: Types
) -> bool:
    """Return True if no column has decimal points: each point could be a thousands sign."""
    pointed = [n for n, kind in types.items() if kind == "DOUBLE"]
    if not pointed:
        return True
    nulls = ", ".join(map(literal, data.csv.null_values))
    tests = ", ".join(
        f"bool_and(coalesce({ident(n)} in ({nulls}) or {ident(n)} is null or"
        f" regexp_full_match({ident(n)}, {literal(GROUPED)}) or try_cast({ident(n)} as bigint) is"
        " not null and not contains(" + ident(n) + ", '.'), false))"
        for n in pointed
    )
    return all(row(connection, f"select {tests} from {csv_texts(source, data)}"))


# ---------------------------------------------------------------------------------------- remarks


def _told(guess: Guessed, notes: list[str]) -> Iterator[str]:
    yield f"numbers as people write them, e.g. {guess.example!r}; other spellings are refused"
    if guess.ambiguous:
        sign = "thousands" if guess.written.get("thousands") == "," else "decimal"
        yield f"a comma could be of thousands or decimals, check that it is the {sign} sign"
    yield from notes


def _tell(connection: duckdb.DuckDBPyConnection, name: str, remark: str) -> None:
    connection.execute(f"insert into {REMARKS} values ({literal(name)}, {literal(remark)})")


def remark_of(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    """Return what was found in the texts of a column, empty if nothing."""
    found = rows(connection, f"select remark from {REMARKS} where name = {literal(name)}")
    return "; ".join(str(r[0]) for r in found)


def written_role(role: str, data: DataConfig, name: str) -> str:
    """Return the role of a column as YAML, with the spelling of its texts if it has one.

    >>> written_role("numeric", DataConfig(uri="t.csv", columns={"a": {"written": {}}}), "a")
    '{kind: numeric, written: {}}'
    """
    column = data.columns.get(name)
    if column is None or column.written is None or role == "ignore":
        return role
    how = _flow(column.written.model_dump(mode="json", exclude_defaults=True))
    own = "kind: numeric" if role in ("numeric", "feature") else f"role: {role}"
    return f"{{{own}, written: {how}}}"


def _flow(options: Mapping[str, Any]) -> str:
    """Return options as a YAML mapping in one line, texts in double quotes.

    >>> _flow({"units": ["$", ""], "parentheses": True})
    '{units: ["$", ""], parentheses: true}'
    """
    return f"{{{', '.join(f'{name}: {_value(v)}' for name, v in options.items())}}}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    quoted = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=math.inf)
    return str(quoted).strip()


def csv_lines(connection: duckdb.DuckDBPyConnection, data: DataConfig) -> list[tuple[str, str]]:
    """Return the line `csv:` of a declaration and its reason; nothing where all is as usual."""
    options = data.csv.model_dump(mode="json", exclude_defaults=True)
    if not options:
        return []
    why = ["found in the file"]
    why += ["these texts count as missing"] if "null_values" in options else []
    why += ["numbers have a decimal comma"] if "decimal" in options else []
    if "encoding" in options:
        why += ["no UTF-8: look at a text with accents, whether this encoding is the right one"]
    remark = remark_of(connection, "")
    line = f"  csv: {_flow(options)}"
    return [(line, "; ".join([*why, remark] if remark else why))]


def variants_note(
    connection: duckdb.DuckDBPyConnection, relation: str, name: str, role: str
) -> str:
    """Return a sentence on texts that differ only in case and spaces around them; else empty.

    It contains the declaration that reads them as one.
    """
    column = ident(name)
    different = row(connection, f"select count(distinct {column}) from {relation}")[0]
    if not 2 < different <= MOST_VARIANTS:
        return ""
    groups = rows(
        connection,
        f"select list(distinct {column} order by {column}) as texts from {relation} where"
        f" {column} is not null group by lower(trim({column})) having count(distinct {column}) > 1"
        " order by count(*) desc, texts limit 1",
    )
    if not groups:
        return ""
    shown = ", ".join(repr(str(text)) for text in groups[0][0][:4])
    clean = in_yaml(derive={f"{name}_clean": f"lower(trim({sql_name(name)}))"})
    columns = in_yaml(columns={f"{name}_clean": role, name: "ignore"})
    return (
        f"{shown} differ only in case or spaces and are read as different; to read them as one,"
        f" declare data.{clean} and in data.{columns}"
    )
