"""Columns of one SQL type with their nulls, and their conversion from raw values of a frame.

N rows. Values by type: BOOLEAN bool; whole numbers and decimals (as whole numbers of their last
digit) int64, or Python integers if 64 bits are too few; FLOAT float32; DOUBLE float64; VARCHAR
text objects; DATE days and timestamps their own unit since 1970 (UTC), int64; INTERVAL months, days
and microseconds, int64 [N, 3].
"""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

MICROS = 1_000_000
DAY = 86_400 * MICROS
WHOLE = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
}
UNITS = {
    "TIMESTAMP_S": 1,
    "TIMESTAMP_MS": 1_000,
    "TIMESTAMP": MICROS,
    "TIMESTAMP_NS": 1_000_000_000,
    "TIMESTAMP WITH TIME ZONE": MICROS,
}
FAMILIES = {
    "NULL": "z",
    "BOOLEAN": "b",
    "VARCHAR": "t",
    "ENUM": "e",
    "DATE": "d",
    "INTERVAL": "i",
    "FLOAT": "n",
    "DOUBLE": "n",
    **dict.fromkeys(WHOLE, "n"),
    **dict.fromkeys(UNITS, "s"),
}
EXAMPLES = {
    "n": "numbers",
    "b": "true or false",
    "t": "text",
    "e": "text",
    "d": "dates",
    "s": "timestamps",
}
NUMERAL = re.compile(r"[+-]?(\d+(_\d+)*(\.(\d+(_\d+)*)?)?|\.\d+(_\d+)*)([eE][+-]?\d+)?", re.ASCII)
BLANKS = " \t\n\v\f\r"


class Vector(NamedTuple):
    """Values [N] of one type ([N, 3] of an interval), arbitrary where `null`, bool [N], is set."""

    values: np.ndarray
    null: np.ndarray


class BadRows(ValueError):
    """Error: an operation has no value on the given rows that `rows`, bool [N], marks."""

    def __init__(self, rows: np.ndarray, problem: str) -> None:
        super().__init__(problem)
        self.rows, self.problem = rows, problem


def demand(good: np.ndarray, problem: str) -> None:
    """Raise unless all rows are good.

    Raises:
        BadRows: some are not.
    """
    if not good.all():
        raise BadRows(~good, problem)


def family(kind: str) -> str:
    """Return one letter for the kind of an SQL type; else empty.

    Kinds: number, boolean, text, date, s(timestamp), interval, enum, z(null).

    >>> family("DECIMAL(10,2)"), family("TIMESTAMP_NS"), family("DOUBLE[]")
    ('n', 's', '')
    """
    return "n" if is_decimal(kind) else FAMILIES.get(kind, "")


def is_decimal(kind: str) -> bool:
    """Return True if the type is `DECIMAL(width,scale)`."""
    return kind.startswith("DECIMAL(") and kind.endswith(")")


def decimals(kind: str) -> tuple[int, int]:
    """Return width and scale of a decimal type; a whole number has scale 0."""
    if not is_decimal(kind):
        return 0, 0
    width, scale = kind[len("DECIMAL(") : -1].split(",")
    return int(width), int(scale)


def bounds(kind: str) -> tuple[int, int]:
    """Return the smallest and largest stored number of a type of whole numbers or decimals."""
    if kind in WHOLE:
        return WHOLE[kind]
    limit = int(10 ** decimals(kind)[0]) - 1
    return -limit, limit


def dtype(kind: str) -> np.dtype:
    """Return the array type that holds values of an SQL type."""
    if kind in ("BOOLEAN", "NULL"):
        return np.dtype(bool)
    if kind in ("FLOAT", "DOUBLE"):
        return np.dtype(np.float32 if kind == "FLOAT" else np.float64)
    wide = (is_decimal(kind) or kind in WHOLE) and max(map(abs, bounds(kind))) > 2**63
    return np.dtype(object if wide or kind in ("VARCHAR", "ENUM") else np.int64)


def nulls(kind: str, rows: int) -> Vector:
    """Return a vector that contains only nulls."""
    values = np.zeros((rows, 3) if kind == "INTERVAL" else rows, dtype=dtype(kind))
    if kind in ("VARCHAR", "ENUM"):
        values[:] = ""
    return Vector(values, np.ones(rows, dtype=bool))


def constant(value: Any, kind: str, rows: int) -> Vector:
    """Return one value in every row; None is null."""
    found = nulls(kind, rows)
    if value is None:
        return found
    found.values[:] = float(value) if kind in ("FLOAT", "DOUBLE") else value
    return Vector(found.values, np.zeros(rows, dtype=bool))


def fitted(values: np.ndarray, kind: str) -> np.ndarray:
    """Return whole numbers as an array of their type.

    Raises:
        BadRows: a number is beyond the type.
    """
    low, high = bounds(kind)
    demand(
        np.asarray((values >= low) & (values <= high), dtype=bool),
        f"a number is too large for {kind}",
    )
    return np.asarray(values.astype(dtype(kind)))


def column(series: pd.Series, kind: str, null_texts: tuple[str, ...] = ()) -> Vector:
    """Return raw values as a vector of the type that the column had in training; NaN is null.

    Whole numbers may arrive as floats (as they do next to nulls) or as text, dates and timestamps
    as ISO text, numbers of a text column as numbers. Timestamps with an offset are converted to
    UTC.

    Args:
        series: [N].
        kind: SQL type.
        null_texts: texts that meant null in training.

    Raises:
        BadRows: a value that the type cannot hold; its first example is in the message.
    """
    plain = series.astype(object) if isinstance(series.dtype, pd.CategoricalDtype) else series
    null = plain.isna().to_numpy(dtype=bool)
    if null_texts and plain.dtype.kind == "O":
        null = null | plain.isin(null_texts).to_numpy(dtype=bool)
    result = nulls(kind, len(plain))
    present = np.flatnonzero(~null)
    if len(present):
        try:
            result.values[present] = _typed(plain.iloc[present], kind)
        except BadRows as bad:
            rows = np.zeros(len(plain), dtype=bool)
            rows[present[bad.rows]] = True
            raise BadRows(
                rows,
                f"expected {EXAMPLES[family(kind)]} ({kind}), got"
                f" {plain.iloc[int(rows.argmax())]!r}",
            ) from None
    return Vector(result.values, null)


def _typed(series: pd.Series, kind: str) -> np.ndarray:
    """Return values without nulls, as the type stores them."""
    if kind in ("FLOAT", "DOUBLE") and series.dtype.kind in "biuf":
        return np.asarray(series.to_numpy(dtype=dtype(kind)))
    if kind in WHOLE and series.dtype.kind in "biu":
        return fitted(
            series.to_numpy(dtype=np.uint64 if series.dtype.kind == "u" else np.int64), kind
        )
    if kind in UNITS and series.dtype.kind == "M":
        return _instants(series, kind)
    return each(series.to_numpy(dtype=object), lambda value: _value(value, kind), kind)


def _instants(series: pd.Series, kind: str) -> np.ndarray:
    unit = {1: "s", 1_000: "ms", MICROS: "us"}.get(UNITS[kind], "ns")
    naive = (
        series.dt.tz_convert("UTC").dt.tz_localize(None)
        if isinstance(series.dtype, pd.DatetimeTZDtype)
        else series
    )
    return np.asarray(naive.to_numpy().astype(f"datetime64[{unit}]").astype(np.int64))


def each(values: np.ndarray, function: Any, kind: str) -> np.ndarray:
    """Return each value, read by a function, as an SQL type.

    Raises:
        BadRows: it gave None for some; names the first.
    """
    found = [function(value) for value in values]
    failed = np.array([value is None for value in found], dtype=bool)
    if failed.any():
        raise BadRows(failed, f"{values[failed][0]!r} is no {kind}")
    result = np.empty(len(found), dtype=dtype(kind))
    result[:] = found
    return result


def _value(value: Any, kind: str) -> str | bool | int | float | None:
    """Return one raw value as its type stores it; None if it is no such value."""
    if kind in ("VARCHAR", "ENUM"):
        return _text(value)
    if kind == "BOOLEAN":
        return _truth(value)
    if kind == "DATE" or kind in UNITS:
        return _moment(value, kind)
    if kind in ("FLOAT", "DOUBLE"):
        number = _number(value)
        return None if number is None else float(number)
    number = _number(value)
    whole = None if number is None else whole_of(number, decimals(kind)[1])
    if whole is None or not bounds(kind)[0] <= whole <= bounds(kind)[1]:
        return None
    return whole if is_decimal(kind) or number == whole else None


def whole_of(number: decimal.Decimal, scale: int) -> int | None:
    """Return the number in units of its last digit, halves rounded away from zero.

    Return None for a number that no type holds.
    """
    if not number.is_finite() or (number and number.adjusted() > 40):
        return None
    return int(
        number.scaleb(scale, decimal.Context(prec=100)).to_integral_value(decimal.ROUND_HALF_UP)
    )


def _number(value: Any) -> decimal.Decimal | None:
    if isinstance(value, str):
        text = value.strip(BLANKS)
        known = NUMERAL.fullmatch(text) or text.lower().lstrip("+-") in ("inf", "infinity", "nan")
        return decimal.Decimal(text.replace("_", "")) if known else None
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return decimal.Decimal(int(value))
    if isinstance(value, float | np.floating):
        return decimal.Decimal(repr(float(value)))
    return value if isinstance(value, decimal.Decimal) else None


def _text(value: Any) -> str | None:
    """Return text as it is, and a number in the spelling of training, if its column were text."""
    if isinstance(value, str | uuid.UUID):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return None


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    if isinstance(value, bool | np.bool_ | int | np.integer | float | np.floating) and value in (
        0,
        1,
    ):
        return bool(value)
    return None


def _moment(value: Any, kind: str) -> int | None:
    """Return a date as days, a timestamp in its unit; a timestamp is a date only at midnight."""
    if isinstance(value, str):
        found = parse_moment(value, offset=True) if _ISO.match(value) else None
    elif isinstance(value, datetime.datetime | np.datetime64):
        found = _nanos(value)
    else:
        found = days_of(value) * DAY * 1000 if isinstance(value, datetime.date) else None
    if found is None:
        return None
    unit = DAY * 1000 if kind == "DATE" else 1_000_000_000 // UNITS[kind]
    return None if kind == "DATE" and found % unit else found // unit


def _nanos(value: datetime.datetime | np.datetime64) -> int:
    stamp = pd.Timestamp(value)
    if stamp.tzinfo is not None:
        stamp = stamp.tz_convert("UTC").tz_localize(None)
    seconds = days_of(stamp) * 86_400 + stamp.hour * 3600 + stamp.minute * 60 + stamp.second
    return int(seconds * 1_000_000_000 + stamp.microsecond * 1000 + stamp.nanosecond)


def days_of(value: datetime.date) -> int:
    """Return days since 1970-01-01."""
    return value.toordinal() - 719_163


def days_of_date(year: int, month: int, day: int) -> int | None:
    """Return days since 1970-01-01, also in year 0; None if there is no such day."""
    cycles = int(year < 1)  # the calendar repeats after 400 years, which have 146,097 days
    try:
        return days_of(datetime.date(year + 400 * cycles, month, day)) - 146_097 * cycles
    except ValueError:
        return None


_DATE = r"(\d{1,4})([-/ ])(\d{1,2})\2(\d{1,2})"
_CLOCK = r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?"
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)  # other orders have two readings
_MOMENT = re.compile(rf"{_DATE}(?:[T ]{_CLOCK}(?: ?(Z|UTC|[+-]\d{{2}}(?::?\d{{2}})?))?)?", re.ASCII)


def parse_moment(text: str, *, offset: bool) -> int | None:
    """Return an ISO date or timestamp as nanoseconds since 1970; None for any other text.

    Args:
        text: surrounding blanks are ignored.
        offset: apply an offset; otherwise it is read and ignored, as in a cast to TIMESTAMP.
    """
    match = _MOMENT.fullmatch(text.strip(BLANKS))
    if match is None:
        return None
    days = days_of_date(int(match[1]), int(match[3]), int(match[4]))
    hour, minute, second = (int(match[i] or 0) for i in (5, 6, 7))
    if days is None or (
        (hour, minute, second) != (24, 0, 0) and (hour > 23 or minute > 59 or second > 59)
    ):
        return None
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    if offset and match[9] and match[9][0] in "+-":
        digits = match[9][1:].replace(":", "")
        seconds -= int(match[9][0] + "1") * (int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60)
    fraction = int((match[8] or "").ljust(9, "0"))
    return None if hour == 24 and fraction else seconds * 1_000_000_000 + fraction


def series(found: Vector, kind: str, index: pd.Index) -> pd.Series:
    """Return a vector as a column of a frame.

    Nulls are NaN among numbers, else None; decimals are doubles.
    """
    values = found.values
    if is_decimal(kind):
        values, kind = scaled_down(values, decimals(kind)[1]), "DOUBLE"
    if kind in ("FLOAT", "DOUBLE"):
        return pd.Series(np.where(found.null, np.nan, values).astype(dtype(kind)), index=index)
    if kind == "DATE" or kind in UNITS:
        unit = "D" if kind == "DATE" else {1: "s", 1_000: "ms", MICROS: "us"}.get(UNITS[kind], "ns")
        moments = values.astype(f"datetime64[{unit}]")
        moments[found.null] = np.datetime64("NaT")
        return pd.Series(moments.astype("datetime64[s]") if unit == "D" else moments, index=index)
    if found.null.any() or values.dtype == object:
        values = values.astype(object)
        values[found.null] = None
    return pd.Series(values, index=index, dtype=object if values.dtype == object else None)


def scaled_down(values: np.ndarray, scale: int) -> np.ndarray:
    """Return decimals as the nearest doubles."""
    if values.dtype == object:
        return np.array([value / 10**scale for value in values], dtype=np.float64)
    return np.asarray(values.astype(np.float64) / 10.0**scale)
