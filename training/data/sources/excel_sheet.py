"""Sheets of Excel files as delimited text, which all of `data.csv` applies to.

A sheet often has what a file of text has: a title above the header, a line of units below it, marks
and texts among numbers. So it is converted once to text, and types are found as in any other.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from schemas.config import CsvConfig, DataConfig
from schemas.errors import ConfigError, SourceError, first_few
from schemas.references import Snapshot
from training.data.sources.other_formats import convert_line
from training.data.sources.snapshots import converted_file

FORM = "1"  # of the copies: another one makes them again
WHOLE = 2.0**53  # up to which a number is written without a fraction


def read_sheet(path: Path, data: DataConfig) -> Snapshot:
    """Return the declared sheet of a file, or the only one, as a copy in delimited text.

    Raises:
        ConfigError: the reader of Excel files is not installed.
        SourceError: the file cannot be read, there is no such sheet, none holds anything, or
            several do and none is declared.
    """
    if find_spec("python_calamine") is None:
        raise ConfigError(
            f"{path}: Excel files need the extra of that name: pip install 'bulkhead[excel]'; or"
            f" this line converts its first sheet: {convert_line(path)}"
        )
    name = _chosen_sheet(path, data)
    options = data.csv
    key = (FORM, name, options.delimiter, options.quote, options.decimal)

    def write(target: Path) -> None:
        rows = _rows(path, name)
        with target.open("w", encoding="utf-8", newline="") as file:
            quote = options.quote or '"'
            writer = csv.writer(
                file, delimiter=options.delimiter, quotechar=quote, lineterminator="\n"
            )
            writer.writerows(_texts(rows, options))

    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return converted_file(path, key, f".{safe}.csv", write, sheet=name)


def _chosen_sheet(path: Path, data: DataConfig) -> str:
    from python_calamine import CalamineWorkbook

    try:
        with CalamineWorkbook.from_path(str(path)) as book:
            names: list[str] = list(book.sheet_names)
            if data.sheet is not None:
                if data.sheet not in names:
                    raise SourceError(
                        f"{path}: no sheet {data.sheet!r}, expected one of {_listed(names)}; check"
                        " data.sheet"
                    )
                return data.sheet
            filled = [n for n in names if next(iter(_cells(book, n)), None) is not None]
    except Exception as error:
        raise _unreadable(path, error) from error
    if not filled:
        raise SourceError(f"{path}: expected rows, but no sheet holds any; give another file")
    if len(filled) > 1:
        raise SourceError(
            f"{path}: {len(filled)} sheets hold something; name one with data.sheet (bulkhead init"
            f" --sheet): {_listed(filled)}"
        )
    return filled[0]


def _listed(names: Sequence[str]) -> str:
    return first_few(map(repr, names), limit=30)


def _unreadable(path: Path, error: Exception) -> SourceError:
    """Return our own errors as they are, those of the reader as one sentence."""
    if isinstance(error, SourceError):
        return error
    return SourceError(
        f"{path}: cannot be read as an Excel file: {' '.join(str(error).split())[:300]}; it is"
        " damaged, protected by a password, or of another format: save it again as .xlsx"
    )


def _rows(path: Path, name: str) -> list[list[Any]]:
    """Return the rows of a sheet that hold anything.

    Raises:
        SourceError: the sheet cannot be read, or holds nothing.
    """
    from python_calamine import CalamineWorkbook

    try:
        with CalamineWorkbook.from_path(str(path)) as book:
            found = list(_cells(book, name))
    except Exception as error:
        raise _unreadable(path, error) from error
    if not found:
        raise SourceError(f"{path}: sheet {name!r} holds nothing; name another with data.sheet")
    return found


def _cells(book: Any, name: str) -> Iterator[list[Any]]:
    for row in book.get_sheet_by_name(name).iter_rows():
        if any(value not in ("", None) for value in row):
            yield row


def _texts(rows: Sequence[list[Any]], options: CsvConfig) -> Iterator[list[str]]:
    """Yield the values of each row as texts; days have a time where others of the column have."""
    timed = {
        column
        for row in rows
        for column, value in enumerate(row)
        if isinstance(value, datetime) and value.time() != time()
    }
    for row in rows:
        yield [_text(value, column in timed, options) for column, value in enumerate(row)]


def _text(value: Any, timed: bool, options: CsvConfig) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, int | float):
        return _number(value).replace(".", options.decimal)
    if isinstance(value, date):  # a datetime is one
        moment = value if isinstance(value, datetime) else datetime(*value.timetuple()[:3])
        return moment.isoformat(" ") if timed else moment.date().isoformat()
    return str(value)


def _number(value: float) -> str:
    """Return the shortest text of a number; Excel keeps whole ones with a fraction of 0.

    >>> _number(12.0), _number(0.1), _number(1e300)
    ('12', '0.1', '1e+300')
    """
    if math.isfinite(value) and value == int(value) and abs(value) < WHOLE:
        return str(int(value))
    return repr(value)
