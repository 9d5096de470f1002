"""Notes on text categories that are numbers or times in another spelling, or hardly repeat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import duckdb

from training.data.engine.engine import count_distinct, ident, literal, row, rows

FIRST_ROWS = 1_000  # decide which columns are read as a whole
NEARLY_ALL = 0.9  # of the rows: a category with so many values hardly repeats
LEAST_ROWS = 20
LEAST_VALUES = 10  # different texts of one form; fewer are codes
SIGN, UNIT = r"[+-]?\s?", r"[$€£¥₹]|(?:EUR|USD|GBP|CHF|JPY|INR)"
COMMA, POINT = (
    r"\d+,\d+|\d{1,3}(?:[.' \x{a0}]\d{3})+(?:,\d+)?",
    r"\d+(?:\.\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?",
)
TIMES = {  # form → format of strptime
    r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}": "%d.%m.%Y %H:%M",
    r"\d{1,2}\.\d{1,2}\.\d{4} \d{1,2}:\d{2}:\d{2}": "%d.%m.%Y %H:%M:%S",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2}": "%m/%d/%Y %H:%M",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2}:\d{2}": "%m/%d/%Y %H:%M:%S",
    r"\d{1,2}/\d{1,2}/\d{4} \d{1,2}:\d{2} ?[AaPp][Mm]": "%m/%d/%Y %I:%M %p",
    r"\d{4}/\d{1,2}/\d{1,2} \d{1,2}:\d{2}": "%Y/%m/%d %H:%M",
    r"\d{4}/\d{1,2}/\d{1,2} \d{1,2}:\d{2}:\d{2}": "%Y/%m/%d %H:%M:%S",
}


class Form(NamedTuple):
    """Spelling: description of the texts, pattern of a whole text, and decimal mark.

    For times it has the format of `strptime`.
    """

    words: str
    pattern: str
    decimal: str = "."
    time: str = ""


NUMBERS = (
    Form("numbers with a thousands separator", rf"{SIGN}(?:{POINT})"),
    Form("numbers with a decimal comma", rf"{SIGN}(?:\d+|{COMMA})", ","),
    Form("amounts of money", rf"{SIGN}(?:(?:{UNIT})\s?{SIGN}(?:{POINT})|(?:{POINT})\s?(?:{UNIT}))"),
    Form(
        "amounts of money with a decimal comma",
        rf"{SIGN}(?:(?:{UNIT})\s?{SIGN}(?:\d+|{COMMA})|(?:\d+|{COMMA})\s?(?:{UNIT}))",
        ",",
    ),
    Form("per cent", rf"{SIGN}(?:{POINT})\s?%"),
    Form("per cent with a decimal comma", rf"{SIGN}(?:\d+|{COMMA})\s?%", ","),
)
FORMS = (
    *NUMBERS,
    *(Form("dates with a time", pattern, time=form) for pattern, form in TIMES.items()),
)


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
        given: those of them that the source contains, and that are not computed.
        is_csv: True if the source is delimited text, whose decimal comma can be declared.
    """
    return tuple(
        f"{name!r}: {note}"
        for name in names
        if (note := category_note(connection, relation, name, is_csv and name in given)) is not None
    )


def category_note(
    connection: duckdb.DuckDBPyConnection, relation: str, name: str, is_csv: bool
) -> str | None:
    """Return the sentence for a text column that is read as a category; None if it is one."""
    column = ident(name)
    first = (
        f"(select cast({column} as varchar) as v from {relation} where {column} is not null limit"
        f" {FIRST_ROWS})"
    )
    count, different, example = row(
        connection, f"select count(*), count(distinct v), min(v) from {first}"
    )
    if count < LEAST_ROWS or different < LEAST_VALUES:
        return None
    form = next(_fitting(connection, f"select v from {first}", FORMS), None)
    present = f"select cast({column} as varchar) as v from {relation} where {column} is not null"
    if form is not None and (form := next(_fitting(connection, present, FORMS), None)) is not None:
        shown = str(
            row(connection, f"select any_value(v order by length(v) desc, v) from {first}")[0]
        )
        return (
            f"{shown!r} looks like {form.words}, read as a category of"
            f" {different}{'+' if count == FIRST_ROWS else ''} texts;"
            f" {_remedy(form, name, is_csv, _extra(connection, present))}"
        )
    if different < NEARLY_ALL * count:
        return None
    total, values = (
        int(row(connection, f"select count(*) from ({present})")[0]),
        count_distinct(connection, column, relation),
    )
    if values < NEARLY_ALL * total:
        return None
    return (
        f"a category with {values:,} values in {total:,} rows, e.g. {str(example)[:60]!r}: hardly"
        " any repeats, so nothing is learnt of it; ignore it, or derive from it"
    )


def _fitting(
    connection: duckdb.DuckDBPyConnection, texts: str, forms: Iterable[Form]
) -> Iterator[Form]:
    """Return the spellings that every text has; texts that are all plain numbers are codes."""
    chosen = list(forms)
    tests = ", ".join(
        f"bool_and(regexp_full_match(trim(v), {literal(form.pattern)}))" for form in chosen
    )
    plain, *holds = row(
        connection, f"select bool_and(try_cast(v as double) is not null), {tests} from ({texts})"
    )
    yield from (form for form, fits in zip(chosen, holds, strict=True) if fits and not plain)


def _extra(connection: duckdb.DuckDBPyConnection, texts: str) -> list[str]:
    """Return the characters of the texts besides digits and signs.

    They are codes of currencies, and single characters.
    """
    codes = UNIT.split("(?:")[1].strip(")").split("|")
    counts = row(
        connection,
        "select"
        f" {', '.join(f'count(*) filter (where contains(v, {literal(code)}))' for code in codes)}"
        f" from ({texts})",
    )
    found = [code for code, count in zip(codes, counts, strict=True) if count]
    letters = f"regexp_replace(v, {literal('[0-9-]|' + '|'.join(codes))}, '', 'g')"
    single = f"select distinct unnest(string_split({letters}, '')) as c from ({texts})"
    return found + [
        str(r[0]) for r in rows(connection, f"select c from ({single}) where c <> '' order by c")
    ]


def _remedy(form: Form, name: str, is_csv: bool, extra: Sequence[str]) -> str:
    column = name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else ident(name)
    if form.time:
        expression = f"epoch(strptime({column}, {literal(form.time)}))"
    else:
        for text in (t for t in extra if t != form.decimal):
            column = f"replace({column}, {literal(text)}, '')"
        column = column if form.decimal == "." else f"replace({column}, ',', '.')"
        expression = f"cast({column} as double)"
    number = re.sub(r"\W", "_", name) + "_number"
    escaped = expression.replace("\\", "\\\\").replace('"', '\\"')
    derive = f'derive {{{number}: "{escaped}"}} and set {name}: ignore'
    return (
        f'declare data.csv: {{decimal: ","}}, or {derive}'
        if is_csv and form.words == "numbers with a decimal comma"
        else derive
    )
