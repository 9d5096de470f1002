"""Layout of delimited files for a first declaration: delimiter, header, lines that hold no row."""

from __future__ import annotations

import csv
import functools
import gzip
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from schemas.config import CsvConfig
from schemas.errors import counted, shortened
from schemas.records import SourceRef
from training.data.serving_expressions.number_texts import normal
from training.data.sources.spelling import TEXT

SNIFFED_LINES = 20_000
DELIMITERS = ",;\t|"
NULL_TEXTS = ("?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
MOST_SKIPPED = 50  # lines above a header
MARKS = (".", "..", "-", "--")  # null where they stand among the numbers of a column
# what Orange writes below the names of columns
ORANGE_KINDS = {
    *("c", "d", "s", "t", "m", "i", ""),
    *("continuous", "discrete", "string", "time", "meta", "ignore"),
}
ORANGE_FLAGS = {"", "class", "meta", "i", "ignore", "weight", "c", "m", "w"}
LEAST_ROWS = 5  # below the header, from which a line of units differs
NEARLY_ALL = 0.95


class Layout(NamedTuple):
    """Reading options, and one remark on each that is no matter of course."""

    options: CsvConfig
    remarks: tuple[str, ...]


def layout_of(source: SourceRef) -> Layout:
    """Return how the files are laid out, from the first lines of each."""
    return _layout(tuple(f.path for f in source.files), source.sha256)


@functools.lru_cache(maxsize=8)
def _layout(paths: tuple[str, ...], sha256: str) -> Layout:
    files = [_first_lines(Path(path)) for path in paths]
    lines = [line for file in files for line in file]
    options = CsvConfig(delimiter=max(DELIMITERS, key=lambda d: _width(lines[:1], d)))
    remarks: list[str] = []
    even = _even_rows(lines, options)
    unquoted = options.model_copy(update={"quote": ""})
    if not even and (even := _even_rows(lines, unquoted)):
        options = unquoted
    read, is_one = options, even and len(even[0]) == 1
    if (not even or is_one) and (found := _uneven(files)) is not None:
        options = found
        if options.skip:
            shown = shortened(files[0][0].strip(), 60)
            remarks.append(
                f"left out: {counted(options.skip, 'line')} above the header, e.g. {shown}"
            )
        if options.empty_columns:
            remarks.append(f"holds nothing: {counted(options.empty_columns, 'column')} at the end")
    elif not even:
        options = options.model_copy(update={"quote": ""})
    if even and options == read and len(files) == 1:
        cells = [even]
    else:
        cells = [list(_records(file[options.skip :], options)) for file in files]
    changed = _header(cells, options, remarks)
    options = options.model_copy(update=changed)
    known, seen = frozenset(NULL_TEXTS), set[str]()
    for row in (row for file in cells for row in file[1:]):  # a name is no null
        seen |= known.intersection(row)
    below = 1 + options.skip_below
    seen |= _marks([row for file in cells for row in file[below:]])
    nulls = ("", *(text for text in (*NULL_TEXTS, *MARKS) if text in seen))
    return Layout(options.model_copy(update={"null_values": nulls}), tuple(remarks))


def _first_lines(path: Path) -> list[str]:
    """Return lines that end in any of the three ways."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline=None)
        return list(islice(text, SNIFFED_LINES))


def _width(line: Sequence[str], delimiter: str) -> int:
    try:
        return len(next(csv.reader(line, delimiter=delimiter), []))
    except csv.Error:
        return 0


def _records(lines: Sequence[str], options: CsvConfig) -> Iterator[list[str]]:
    """Yield the values of rows, up to one that is no delimited text.

    The reader of the file reports that with its line.
    """
    try:
        yield from _cells(lines, options)
    except csv.Error:
        return


def _even_rows(lines: Sequence[str], options: CsvConfig) -> list[list[str]]:
    """Return the values of all lines if each has as many as the first, else nothing.

    A quote mark inside a text breaks that.
    """
    found: list[list[str]] = []
    try:
        for row in _cells(lines, options):
            if found and len(row) != len(found[0]):
                return []
            found.append(row)
    except csv.Error:
        return []
    return found


def _cells(lines: Sequence[str], options: CsvConfig) -> Iterator[list[str]]:
    if not options.quote:
        return csv.reader(lines, delimiter=options.delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=options.delimiter, quotechar=options.quote, strict=True)


# ----------------------------------------------------------------------- lines of different widths


def _uneven(files: Sequence[Sequence[str]]) -> CsvConfig | None:
    """Return options under which all rows of each file are even; None if there are none.

    Lines above the header may have another width, and rows may end with delimiters.
    """
    found = []
    for delimiter in DELIMITERS:
        options = [_one_uneven(file, CsvConfig(delimiter=delimiter)) for file in files]
        if options[0] is not None and all(one == options[0] for one in options):
            found.append(options[0])
    return max(found, key=lambda o: -o.skip, default=None)


def _one_uneven(lines: Sequence[str], options: CsvConfig) -> CsvConfig | None:
    widths = Counter(_width([line], options.delimiter) for line in lines[-200:])
    width = widths.most_common(1)[0][0] if widths else 0
    if width < 2:
        return None
    for skip in range(min(MOST_SKIPPED, len(lines) - 1)):
        rest = lines[skip:]
        first = _width(rest[:1], options.delimiter)
        if first not in (width, width - 1) or rest[0].startswith("#"):
            continue
        try:
            rows = [row for row in _cells(rest, options) if row]
        except csv.Error:
            continue
        even = {len(row) for row in rows[1:]} == {width}
        empty = first == width - 1 and not any(row[-1].strip() for row in rows[1:])
        if even and (first == width or empty):
            return options.model_copy(update={"skip": skip, "empty_columns": int(empty)})
    return None


# ------------------------------------------------------------------------------- header and below


def _header(
    files: Sequence[Sequence[list[str]]], options: CsvConfig, remarks: list[str]
) -> dict[str, Any]:
    """Return the options that the names, and the lines below them, call for."""
    changed: dict[str, Any] = {}
    rows = [row for file in files for row in file[1:]]
    if any(not file for file in files) or not rows:
        return changed
    names = files[0][0]
    if _is_second_header(names, files):
        changed["skip"] = options.skip + 1
        remarks.append(f"the line above the names is left out: {shortened(', '.join(names), 60)}")
        files = [file[1:] for file in files]
        names, rows = files[0][0], [row for file in files for row in file[1:]]
    if below := _below(files):
        changed["skip_below"] = below
        shown = ", ".join(value for value in files[0][1] if value.strip())
        remarks.append(
            f"{counted(below, 'line')} below the names {'is' if below == 1 else 'are'} left out:"
            f" {shortened(shown, 60)}"
        )
        rows = [row for file in files for row in file[1 + below :]]
    empty = options.empty_columns
    while names and not names[-1].strip() and _is_empty(rows, len(names) - 1):
        names, empty = names[:-1], empty + 1
    if empty > options.empty_columns:
        changed["empty_columns"] = empty
        remarks.append(f"holds nothing: {counted(empty, 'column')} at the end")
    if _is_value_line(names, rows):
        remarks.append("the first line holds values, so the columns have numbers for names")
        return {**changed, "header": False}
    blank = [i for i, name in enumerate(names) if not name.strip()]
    if blank and len(blank) < len(names):
        changed["unnamed"] = "number"
        remarks.append(f"a column without a name is read as column{blank[0]}")
    return changed


def _is_empty(rows: Sequence[list[str]], column: int) -> bool:
    return not any(row[column].strip() for row in rows if len(row) > column)


def _is_value_line(names: Sequence[str], rows: Sequence[list[str]]) -> bool:
    """Return True if the first line is like the others: numbers above numbers, known texts.

    Numbers that count up are names.
    """
    numbers = [float(name) for name in names if _is_number(name)]
    steps = {b - a for a, b in pairwise(numbers)}
    if not numbers or (len(numbers) > 1 and steps == {1.0}):
        return False
    return all(
        _is_numeric(rows, i) if _is_number(name) else name in {r[i] for r in rows if len(r) > i}
        for i, name in enumerate(names)
    )


def _is_second_header(names: Sequence[str], files: Sequence[Sequence[list[str]]]) -> bool:
    """Return True if the first line has gaps or repeats, and the second has names for all."""
    if len(files[0]) < 2 + LEAST_ROWS:
        return False
    second = [value.strip().lower() for value in files[0][1]]
    given = [name.strip().lower() for name in names]
    return (
        (len(set(given) - {""}) < len(given) or given[0].startswith("#"))
        and len(set(second) - {""}) == len(second) == len(given)
        and not any(_is_number(value) for value in second)
        and any(_is_numeric(files[0][2:], i) for i in range(len(second)))
        and all(len(f) > 1 and f[:2] == files[0][:2] for f in files)
    )


def _below(files: Sequence[Sequence[list[str]]]) -> int:
    """Return the number of lines between the names and the rows: kinds, flags or units of columns.

    Orange writes two of them into each file, also of texts alone. Source: its format of tables.
    """
    if all(len(f) > 3 and _is_orange(f[1], f[2]) for f in files):
        return 2
    return int(all(_has_units(file) for file in files))


def _is_orange(kinds: Sequence[str], flags: Sequence[str]) -> bool:
    kinds, flags = [k.strip() for k in kinds], [f.strip() for f in flags]
    return (
        len(kinds) == len(flags)
        and any(kinds)
        and any(flags)
        and all(k in ORANGE_KINDS or (" " in k and not _is_number(k)) for k in kinds)
        and all(f in ORANGE_FLAGS for f in flags)
    )


def _has_units(file: Sequence[list[str]]) -> bool:
    """Return True if the line below the names has texts where the column has numbers."""
    if len(file) < 2 + LEAST_ROWS:
        return False
    first, rest = file[1], file[2:]
    if any(map(_is_number, first)):
        return False
    said = [first[i].strip() for i in range(len(first)) if _is_numeric(rest, i)]
    known = (*NULL_TEXTS, *MARKS)
    return any(said) and not any(v in known or TEXT.fullmatch(normal(v)) for v in said if v)


def _marks(rows: Sequence[list[str]]) -> set[str]:
    """Return the marks of a null that stand in columns whose other values are numbers."""
    places: dict[int, set[str]] = {}
    marks = frozenset(MARKS)
    for row in rows:
        if marks.isdisjoint(row):  # nearly every row: no step of Python for each value
            continue
        for i, value in enumerate(row):
            if value in marks:
                places.setdefault(i, set()).add(value)
    return {mark for i, found in places.items() if _is_numeric(rows, i) for mark in found}


def _is_numeric(rows: Sequence[list[str]], column: int) -> bool:
    values = [row[column] for row in rows[:1000] if len(row) > column and row[column].strip()]
    values = [value for value in values if value not in (*NULL_TEXTS, *MARKS)]
    good = sum(_is_number(value) or bool(TEXT.fullmatch(normal(value))) for value in values)
    return len(values) >= LEAST_ROWS and good >= NEARLY_ALL * len(values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
