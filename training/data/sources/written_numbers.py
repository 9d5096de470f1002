"""Notes on text categories that are numbers or times as text, or hardly repeat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import duckdb

from training.data.advice import in_yaml, sql_name
from training.data.engine.engine import count_distinct, ident, literal, row, rows
from training.data.sources.spelling import guess_spelling

FIRST_ROWS = 1_000  # decide which columns are read as a whole
READ_ROWS = 4 * FIRST_ROWS  # among which so many texts are sought
AT_ONCE = 200  # columns of one query
NEARLY_ALL = 0.9  # of the rows: a category with so many values hardly repeats
LEAST_ROWS = 20
LEAST_VALUES = 10  # different texts of one form; fewer are codes
TIMES = {  # form → format of strptime
    r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}": "%d.%m.%Y %H:%M",
    r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}:\d{2}": "%d.%m.%Y %H:%M:%S",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2}": "%m/%d/%Y %H:%M",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2}:\d{2}": "%m/%d/%Y %H:%M:%S",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2} ?[AaPp][Mm]": "%m/%d/%Y %I:%M %p",
    r"\d{4}/\d{1,2}/\d{1,2} \d{1,2}:\d{2}": "%Y/%m/%d %H:%M",
    r"\d{4}/\d{1,2}/\d{1,2} \d{1,2}:\d{2}:\d{2}": "%Y/%m/%d %H:%M:%S",
}


def category_notes(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    names: Sequence[str],
    given: Sequence[str],
    is_csv: bool,
) -> tuple[str, ...]:
    """Return one sentence for each category that should not be one.

    It is a number or a time in another spelling, or has nearly as many values as there are rows.

    Args:
        connection: the engine.
        relation: SQL relation.
        names: its columns of texts that are read as categories.
        given: those of them that can declare `written`: not computed, and not read by Spark.
        is_csv: True if the source is delimited text, whose decimal comma can be declared.
    """
    notes = []
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        for name, texts in _first_texts(connection, relation, part).items():
            note = _note(connection, relation, name, texts, is_csv, name in given)
            notes += [f"{name!r}: {note}"] if note is not None else []
    return tuple(notes)


def category_note(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    name: str,
    is_csv: bool,
    is_given: bool = True,
) -> str | None:
    """Return the sentence for a text column that is read as a category; None if it is one.

    Arguments are those of `category_notes`, for one column.
    """
    texts = _first_of(connection, relation, name)
    return _note(connection, relation, name, texts, is_csv, is_given)


def _first_texts(
    connection: duckdb.DuckDBPyConnection, relation: str, names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return the first texts of each column with their rows, in order of the texts.

    One query reads them; another reads a column that has too many nulls.
    """
    listed = ", ".join(f"cast({ident(n)} as varchar) as {ident(n)}" for n in names)
    table = connection.sql(f"select {listed} from {relation} limit {READ_ROWS}").to_arrow_table()
    found = {}
    for name in names:
        present = table[name].drop_null().slice(0, FIRST_ROWS)
        if len(present) < FIRST_ROWS and len(table) == READ_ROWS:
            found[name] = _first_of(connection, relation, name)
            continue
        counts = present.value_counts().flatten()
        found[name] = dict(sorted(zip(counts[0].to_pylist(), counts[1].to_pylist(), strict=True)))
    return found


def _first_of(connection: duckdb.DuckDBPyConnection, relation: str, name: str) -> dict[str, int]:
    first = f"(select v from ({_present(relation, name)}) limit {FIRST_ROWS})"
    found = rows(connection, f"select v, count(*) from {first} group by v order by v")
    return {str(text): int(rows_of) for text, rows_of in found}


def _present(relation: str, name: str) -> str:
    """Return SQL of a column's values `v` as text, without nulls."""
    column = ident(name)
    return f"select cast({column} as varchar) as v from {relation} where {column} is not null"


def _note(
    connection: duckdb.DuckDBPyConnection,
    relation: str,
    name: str,
    texts: Mapping[str, int],
    is_csv: bool,
    is_given: bool,
) -> str | None:
    count, different = sum(texts.values()), len(texts)
    if count < LEAST_ROWS or different < LEAST_VALUES:
        return None
    present = _present(relation, name)
    if spelt := _spelt(connection, present, texts, name, is_csv, is_given):
        shown, words, remedy = spelt
        more = "+" if count == FIRST_ROWS else ""
        return (
            f"{shown!r} looks like {words}, read as a category of {different}{more} texts; {remedy}"
        )
    if different < NEARLY_ALL * count:
        return None
    total = int(row(connection, f"select count(*) from ({present})")[0])
    values = count_distinct(connection, ident(name), relation)
    if values < NEARLY_ALL * total:
        return None
    return (
        f"a category with {values:,} values in {total:,} rows, e.g. {min(texts)[:60]!r}: hardly"
        " any repeats, so nothing is learnt of it; ignore it, or derive from it"
    )


def _spelt(
    connection: duckdb.DuckDBPyConnection,
    present: str,
    texts: Mapping[str, int],
    name: str,
    is_csv: bool,
    is_given: bool,
) -> tuple[str, str, str] | None:
    """Return an example, what the texts look like, and what to declare; None for other texts."""
    guess = guess_spelling(texts)
    if guess is not None:
        declare = in_yaml(columns={name: {"kind": "numeric", "written": guess.written}})
        remedy = f"declare data.{declare}"
        if not is_given:
            remedy = "make a number of it in data.derive"
        elif is_csv and guess.written == {"decimal": ","}:
            remedy = f'declare data.csv: {{decimal: ","}}, or {remedy.removeprefix("declare ")}'
        return guess.example, "a number as people write it", remedy
    form = next((form for form in TIMES if all(re.fullmatch(form, t.strip()) for t in texts)), None)
    if form is None:
        return None
    every = f"select bool_and(regexp_full_match(trim(v), {literal(form)})) from ({present})"
    if not row(connection, every)[0]:
        return None
    moment = f"epoch(strptime({sql_name(name)}, {literal(TIMES[form])}))"
    derive = in_yaml(derive={re.sub(r"\W", "_", name) + "_number": moment})
    return max(texts, key=len), "dates with a time", f"declare data.{derive} and set {name}: ignore"
