"""Delimited text as a relation: names from the header, rows strictly as they are written."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import duckdb

from schemas.config import CsvConfig, DataConfig
from schemas.errors import SourceError, first_few
from schemas.records import SourceRef
from training.data.engine.engine import ident, literal, row, rows
from training.data.sources.conversions import spellings
from training.data.sources.file_formats import TAB_ENDINGS
from training.data.sources.other_formats import encoding_advice
from training.data.sources.partitions import FILE, with_keys
from training.data.sources.same_columns import require_agreement
from training.data.sources.text_types import typed_sql

EMPTY = "bulkhead_empty_"  # names of the columns at the end that hold nothing


class Header(NamedTuple):
    """Column names of a file, and the lines of it up to the end of the header."""

    names: list[str]
    lines: int


def suffix(path: Path) -> str:
    """Return a file's ending in small letters, with that below `.gz`."""
    return (
        "".join(path.suffixes[-2:]).lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    )


def csv_relation(source: SourceRef, data: DataConfig, connection: duckdb.DuckDBPyConnection) -> str:
    """Return the typed rows of delimited files; columns of a declared spelling stay text.

    Raises:
        SourceError: names are missing or differ between the files, or a column that should be
            empty is not.
    """
    names, texts = _text_rows(source, data.csv, named=bool(source.partitions))
    _refuse_filled(source, data.csv, connection)
    kept = tuple(spellings(dict.fromkeys(names, "VARCHAR"), data))
    typed = [name for name in names if name not in kept]
    decimal = data.csv.decimal
    if not source.partitions:
        return in_order(typed_sql(connection, texts, typed, kept, decimal), names, bool(kept))
    types = typed_sql(connection, texts, typed, (*kept, FILE), decimal)
    return with_keys(source, in_order(types, [*names, FILE], bool(kept)), names, connection)


def in_order(relation: str, names: Sequence[str], changed: bool) -> str:
    """Return the relation with its columns in this order, if they have another."""
    return f"(select {', '.join(map(ident, names))} from {relation})" if changed else relation


def csv_texts(source: SourceRef, data: DataConfig) -> str:
    """Return the rows of delimited files as a relation of texts, in the order of `relation_sql`.

    Empty is null.
    """
    return _text_rows(source, data.csv.model_copy(update={"null_values": ("",)}), named=False)[1]


def _text_rows(source: SourceRef, options: CsvConfig, named: bool) -> tuple[list[str], str]:
    """Return column names of delimited files, and their rows as texts.

    `named` adds the file of each row.
    """
    names, relation = _all_columns(source, options, named)
    empty = ", ".join(f"{EMPTY}{i}" for i in range(options.empty_columns))
    return names, f"(select * exclude ({empty}) from {relation})" if empty else relation


def _all_columns(source: SourceRef, options: CsvConfig, named: bool) -> tuple[list[str], str]:
    headers = {f.path: _header(f.file, options) for f in source.files}
    require_agreement(
        {path: [(name, "text") for name in header.names] for path, header in headers.items()}
    )
    groups: dict[tuple[tuple[str, ...], str, int], list[str]] = {}
    for path, header in headers.items():
        key = (tuple(header.names), _delimiter(Path(path), options), header.lines)
        groups.setdefault(key, []).append(path)
    parts = [
        f"select * from {_read_csv(paths, names, delimiter, options, named, lines)}"
        for (names, delimiter, lines), paths in groups.items()
    ]
    return headers[source.files[0].path].names, f"({' union all by name '.join(parts)})"


def _delimiter(path: Path, options: CsvConfig) -> str:
    """Return the declared delimiter.

    A .tsv or .tab file is split at tabs unless another delimiter than the default is declared.
    """
    is_tab = options.delimiter == "," and suffix(path) in TAB_ENDINGS
    return "\t" if is_tab else options.delimiter


def _read_csv(
    paths: Sequence[str],
    names: Sequence[str],
    delimiter: str,
    options: CsvConfig,
    named: bool,
    lines: int,
) -> str:
    """Read text strictly as text: stop at a row with too few or too many values."""
    all_names = [*names, *(f"{EMPTY}{i}" for i in range(options.empty_columns))]
    columns = ", ".join(f"{literal(n)}: 'VARCHAR'" for n in all_names)
    nulls = ", ".join(literal(v) for v in options.null_values)
    quote = literal(options.quote)
    start = (
        f"false, skip = {lines + options.skip_below}"
        if options.skip or options.skip_below
        else literal(options.header)
    )
    return (
        f"read_csv([{', '.join(literal(p) for p in paths)}], auto_detect = false, header ="
        f" {start}, columns = {{{columns}}}, delim = {literal(delimiter)}, quote"
        f" = {quote}, escape = {quote}, nullstr = [{nulls}], strict_mode = true, ignore_errors ="
        " false, null_padding = false, hive_partitioning ="
        f" false{f', filename = {literal(FILE)}' if named else ''})"
    )


def _refuse_filled(
    source: SourceRef, options: CsvConfig, connection: duckdb.DuckDBPyConnection
) -> None:
    """Refuse a value in a column at the end that is declared to hold nothing.

    Raises:
        SourceError: with the rows and values.
    """
    if not options.empty_columns:
        return
    relation = _all_columns(source, options, named=False)[1]
    names = [f"{EMPTY}{i}" for i in range(options.empty_columns)]
    values = ", ".join(f"nullif(trim({name}), '')" for name in names)
    filled = f"coalesce({values})"
    count = row(connection, f"select count({filled}) from {relation}")[0]
    if count:
        numbered = f"(select row_number() over () as n, {filled} as v from {relation})"
        first = rows(
            connection, f"select n, v from {numbered} where v is not null order by 1 limit 5"
        )
        shown = first_few((f"{v!r} in row {n}" for n, v in first), count)
        raise SourceError(
            f"{first_few(f.path for f in source.files)}: expected nothing in the last"
            f" {options.empty_columns} columns (data.csv.empty_columns), but {count} rows have a"
            f" value there: {shown}; declare fewer, or correct the file"
        )


def _header(path: Path, options: CsvConfig) -> Header:
    """Return column names of a delimited file; `column0`, `column1` … if it has no header."""
    names, lines = _first_row(path, options)
    if any(c == "\x00" for name in names for c in name):
        advice = encoding_advice(path)
        raise SourceError(
            f"{path}: the first line contains NUL characters, so it is no text; write the file as"
            f" UTF-8, or set data.format{f'; {advice}' if advice else ''}"
        )
    if any("\udc80" <= c <= "\udcff" for name in names for c in name):
        raise SourceError(f"{path}: the first line is no UTF-8 text; {encoding_advice(path)}")
    if not options.header:
        width = max(0, len(names) - options.empty_columns)
        return Header([f"column{i}" for i in range(width)], options.skip)
    for _ in range(options.empty_columns):
        names = names[:-1] if names and not names[-1].strip() else names
    if options.unnamed == "number":
        names = [name if name.strip() else f"column{i}" for i, name in enumerate(names)]
    unnamed = [i + 1 for i, name in enumerate(names) if not name.strip()]
    if unnamed:
        raise SourceError(
            f"{path}: expected a name for each column, but number {first_few(unnamed)} has none;"
            f" {_unnamed_advice(names, unnamed)}"
        )
    return Header(names, lines)


def _first_row(path: Path, options: CsvConfig) -> tuple[list[str], int]:
    """Return the values of the first row that is read, and the lines of the file up to its end."""
    delimiter, quote = _delimiter(path, options), options.quote or None
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        # bytes that are not UTF-8 are left to the engine, which names their line
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(
            islice(text, options.skip, None),
            delimiter=delimiter,
            quotechar=quote,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            return next(reader, []), options.skip + reader.line_num
        except csv.Error as error:
            raise SourceError(
                f"{path}: the first line cannot be read: {error}; expected UTF-8 text, delimiter"
                f" {delimiter!r}, quote {options.quote!r}; see data.csv"
            ) from error


def _unnamed_advice(names: Sequence[str], unnamed: Sequence[int]) -> str:
    if unnamed == [1] and len(names) > 1:
        return (
            "it may be a written index: write the table without it (pandas: index=False), name it"
            " in the first line, or read it as column0 with data.csv.unnamed: number"
        )
    if len(unnamed) < len(names) and all(_is_value(name) for name in names if name.strip()):
        return "the first line may hold values: set data.csv.header: false"
    if list(unnamed) == list(range(len(names) - len(unnamed) + 1, len(names) + 1)):
        return f"name it, or, if nothing is there, set data.csv.empty_columns: {len(unnamed)}"
    return "name it, or read it by its number with data.csv.unnamed: number"


def _is_value(text: str) -> bool:
    """Return True if a text is rather a value than a name: a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
