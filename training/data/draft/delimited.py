"""How delimited text is read, detected from its first lines."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from schemas.config import CsvConfig
from schemas.records import SourceRef

SNIFFED_LINES = 20_000
NULL_TEXTS = ("?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")


def csv_options(source: SourceRef) -> CsvConfig:
    """Detect delimiter, quoting and null texts from the first lines of each file."""
    files = [_first_lines(file.file) for file in source.files]
    lines = [line for file in files for line in file]
    delimiter = max(",;\t|", key=lambda d: _width(lines[:1], d))
    values = [line for file in files for line in file[1:]]  # a name is no null
    plain_lines = not any('"' in line for line in lines)
    if plain_lines:
        options = CsvConfig(delimiter=delimiter)
        found = _null_texts("".join(values), delimiter)
    else:
        quoted = CsvConfig(delimiter=delimiter)
        options = quoted if _is_even(lines, quoted) else quoted.model_copy(update={"quote": ""})
        found = {value for cells in _split(values, options) for value in cells}
    return options.model_copy(
        update={"null_values": ("", *(text for text in NULL_TEXTS if text in found))}
    )


def _null_texts(text: str, delimiter: str) -> set[str]:
    """Return the texts for null that are a whole value in lines without quote marks."""
    possible = "|".join(re.escape(t) for t in NULL_TEXTS if t in text)
    if not possible:
        return set()
    edge = re.escape(delimiter)
    return set(re.findall(rf"(?:^|{edge})({possible})(?={edge}|[\r\n]|\Z)", text, re.MULTILINE))


def _first_lines(path: Path) -> list[str]:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        return [line.decode("utf-8-sig", errors="replace") for line in islice(file, SNIFFED_LINES)]


def _width(line: Sequence[str], delimiter: str) -> int:
    try:
        return len(next(csv.reader(line, delimiter=delimiter), []))
    except csv.Error:
        return 0


def _split(lines: Sequence[str], options: CsvConfig) -> list[list[str]]:
    """Return cells of lines; none if they are no delimited text.

    The reader of the file reports that with its line.
    """
    try:
        return list(_cells(lines, options))
    except csv.Error:
        return []


def _is_even(lines: Sequence[str], options: CsvConfig) -> bool:
    """Return True if every line has as many values as the first.

    A quote mark inside a text breaks that.
    """
    try:
        return len({len(cells) for cells in _cells(lines, options)}) == 1
    except csv.Error:
        return False


def _cells(lines: Sequence[str], options: CsvConfig) -> Iterator[list[str]]:
    if not options.quote:
        return csv.reader(lines, delimiter=options.delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=options.delimiter, quotechar=options.quote, strict=True)
