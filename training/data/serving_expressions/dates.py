"""Dates, timestamps and intervals like those of the training engine.

Rows have no nulls; all timestamps are UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .casts import half_away
from .vectors import DAY, MICROS, BadRows, days_of_date, demand

HOUR, MINUTE = 3600 * MICROS, 60 * MICROS
MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PARTS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
_SPAN = {"day": DAY, "hour": HOUR, "minute": MINUTE, "second": MICROS}
_INTERVAL = {
    "to_years": (0, 12),
    "to_months": (0, 1),
    "to_weeks": (1, 7),
    "to_days": (1, 1),
    "to_hours": (2, HOUR),
    "to_minutes": (2, MINUTE),
}
_INTERVAL |= {"to_seconds": (2, MICROS), "to_milliseconds": (2, 1000)}
INTERVAL_OPS = tuple(_INTERVAL)
LIMITS = (2.0**31, 2.0**31, 2.0**63)  # of months, days, microseconds


def part_name(text: str) -> str:
    """Return the one name of a date part.

    Raises:
        ValueError: a part that is not computed here.
    """
    name = text.strip().lower()
    name = name if name in PARTS else name.removesuffix("s")
    if name not in PARTS:
        raise ValueError(f"date part {text!r}; the parts are {', '.join(PARTS)}")
    return name


def _months(days: np.ndarray) -> np.ndarray:
    """Return months since January 1970."""
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _month_start(months: np.ndarray) -> np.ndarray:
    """Return the first day of a month, in days since 1970."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _isodow(days: np.ndarray) -> np.ndarray:
    return np.asarray((days + 3) % 7 + 1)


def _year(days: np.ndarray) -> np.ndarray:
    return _months(days) // 12 + 1970


def _isoyear(days: np.ndarray) -> np.ndarray:
    return _year(days - _isodow(days) + 4)  # the year of the week's Thursday


def _week(days: np.ndarray) -> np.ndarray:
    thursday = days - _isodow(days) + 4
    return np.asarray((thursday - _month_start((_year(thursday) - 1970) * 12)) // 7 + 1)


_OF_DAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "year": _year,
    "quarter": lambda days: _months(days) % 12 // 3 + 1,
    "month": lambda days: _months(days) % 12 + 1,
    "day": lambda days: days - _month_start(_months(days)) + 1,
    "week": _week,
    "isoyear": _isoyear,
    "yearweek": lambda days: _isoyear(days) * 100 + _week(days),
    "isodow": _isodow,
    "dayofweek": lambda days: _isodow(days) % 7,
    "dayofyear": lambda days: days - _month_start(_months(days) // 12 * 12) + 1,
}
_OF_DAYS |= {"dayofmonth": _OF_DAYS["day"], "weekday": _OF_DAYS["dayofweek"]}
_OF_MICROS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hour": lambda micros: micros % DAY // HOUR,
    "minute": lambda micros: micros % HOUR // MINUTE,
    "second": lambda micros: micros % MINUTE // MICROS,
}
PART_OPS = (*_OF_DAYS, *_OF_MICROS)


def part(op: str, values: np.ndarray, kind: str) -> np.ndarray:
    """Return a part of dates or timestamps (microseconds), by its function's name."""
    if op in _OF_DAYS:
        return np.asarray(_OF_DAYS[op](values if kind == "DATE" else values // DAY))
    return np.asarray(_OF_MICROS[op](_micros(values, kind)))


def _micros(values: np.ndarray, kind: str) -> np.ndarray:
    return values * DAY if kind == "DATE" else values


def truncate(name: str, values: np.ndarray, kind: str) -> np.ndarray:
    """Return the start of the year, month … that contains a date or timestamp, as microseconds."""
    if name in _SPAN:
        micros = _micros(values, kind)
        return np.asarray(micros - micros % _SPAN[name])
    days = values if kind == "DATE" else values // DAY
    if name == "week":
        return np.asarray((days - _isodow(days) + 1) * DAY)
    length = {"year": 12, "quarter": 3, "month": 1}[name]
    return np.asarray(_month_start(_months(days) // length * length) * DAY)


def difference(name: str, start: np.ndarray, end: np.ndarray, kind: str) -> np.ndarray:
    """Return the number of borders of a part between two times.

    For weeks, return the number of whole sevens of days.
    """
    if name in _SPAN:
        return np.asarray(_micros(end, kind) // _SPAN[name] - _micros(start, kind) // _SPAN[name])
    first, last = (values if kind == "DATE" else values // DAY for values in (start, end))
    if name == "week":
        days = last - first
        return np.asarray(np.sign(days) * (np.abs(days) // 7))
    length = {"year": 12, "quarter": 3, "month": 1}[name]
    return np.asarray(_months(last) // length - _months(first) // length)


def last_day(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the last day of the month, in days."""
    return np.asarray(_month_start(_months(values if kind == "DATE" else values // DAY) + 1) - 1)


def epoch(values: np.ndarray, kind: str) -> np.ndarray:
    """Return seconds since 1970, or in an interval (30 days a month, 365.25 a year)."""
    if kind != "INTERVAL":
        return np.asarray(_micros(values, kind) / MICROS)
    months, days, micros = values[:, 0], values[:, 1], values[:, 2]
    years, rest = np.sign(months) * (np.abs(months) // 12), np.sign(months) * (np.abs(months) % 12)
    return np.asarray((years * 31_557_600 + (rest * 30 + days) * 86_400) + micros / MICROS)


def interval(op: str, amount: np.ndarray) -> np.ndarray:
    """Return an interval [N, 3] of a number of hours, days …

    Raises:
        BadRows: too many.
    """
    place, factor = _INTERVAL[op]
    demand(np.abs(amount.astype(np.float64) * factor) < LIMITS[place], "an interval is too long")
    result = np.zeros((len(amount), 3), dtype=np.int64)
    result[:, place] = half_away(amount * factor) if amount.dtype.kind == "f" else amount * factor
    return result


def normalized(spans: np.ndarray) -> np.ndarray:
    """Return intervals [N, 3] in microseconds, a month as 30 days: this form is compared."""
    result = np.zeros_like(spans)
    result[:, 2] = (spans[:, 0] * 30 + spans[:, 1]) * DAY + spans[:, 2]
    return result


def shift(values: np.ndarray, spans: np.ndarray, kind: str) -> np.ndarray:
    """Return times shifted by intervals, as microseconds.

    Months come first (a day that does not exist becomes the last), then the rest.
    """
    micros = _micros(values, kind)
    days, clock = micros // DAY, micros % DAY
    months = _months(days) + spans[:, 0]
    day = np.minimum(
        days - _month_start(_months(days)), _month_start(months + 1) - _month_start(months) - 1
    )
    return np.asarray((_month_start(months) + day + spans[:, 1]) * DAY + clock + spans[:, 2])


def between(end: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the interval [N, 3] from one timestamp to another."""
    result = np.zeros((len(end), 3), dtype=np.int64)
    result[:, 2] = end - start
    return result


def make_date(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Return days since 1970.

    Raises:
        BadRows: there is no such day.
    """
    good = (np.abs(year) <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    demand(good, "no such date")
    months = (year - 1970) * 12 + month - 1
    days = _month_start(months) + day - 1
    demand(_months(days) == months, "no such date")
    return np.asarray(days)


def make_timestamp(
    year: np.ndarray,
    month: np.ndarray,
    day: np.ndarray,
    hour: np.ndarray,
    minute: np.ndarray,
    second: np.ndarray,
) -> np.ndarray:
    """Return microseconds since 1970; seconds may have a fraction.

    Raises:
        BadRows: there is no such time.
    """
    midnight = (hour == 24) & (minute == 0) & (second == 0)  # the end of the day
    demand(
        midnight
        | (
            (hour >= 0)
            & (hour <= 23)
            & (minute >= 0)
            & (minute <= 59)
            & (second >= 0)
            & (second < 61)
        ),
        "no such time of day",
    )
    return np.asarray(
        make_date(year, month, day) * DAY
        + hour * HOUR
        + minute * MINUTE
        + np.rint(second * MICROS).astype(np.int64)
    )


_DIGITS = {"Y": 4, "y": 2, "m": 2, "d": 2, "j": 3, "H": 2, "I": 2, "M": 2, "S": 2, "f": 6, "g": 3}
_LIMITS = {
    "m": (1, 12),
    "d": (1, 31),
    "j": (1, 366),
    "H": (0, 23),
    "I": (1, 12),
    "M": (0, 59),
    "S": (0, 59),
}
_NAMES = {
    "b": [m[:3] for m in MONTHS],
    "B": list(MONTHS),
    "a": [d[:3] for d in WEEKDAYS],
    "A": list(WEEKDAYS),
    "p": ["am", "pm"],
}
Directive = tuple[str, re.Pattern[str]]


def parse_format(text: str) -> list[Directive]:
    """Return the steps to read a text of this `strptime` format.

    Raises:
        ValueError: a directive that is not supported here.
    """
    steps: list[Directive] = []
    for directive, blank, literal in re.findall(r"%-?(.)|(\s+)|([^%\s]+)", text, re.DOTALL):
        if directive in _DIGITS:
            steps.append((directive, re.compile(rf"\d{{1,{_DIGITS[directive]}}}", re.ASCII)))
        elif directive in _NAMES:
            names = sorted(_NAMES[directive], key=len, reverse=True)
            steps.append((directive, re.compile("|".join(names), re.IGNORECASE | re.ASCII)))
        elif directive not in ("", "%"):
            raise ValueError(
                f"%{directive} in a format; the directives are"
                f" {', '.join('%' + d for d in (*_DIGITS, *_NAMES, '%'))}"
            )
        else:
            steps.append(("", re.compile(r"\s+" if blank else re.escape(literal or "%"))))
    return steps


def parse(values: np.ndarray, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Parse texts by a `strptime` format.

    Return microseconds, and a mask, bool [N], of texts without this form.
    """
    steps = parse_format(text)
    known = {value: _parse_one(value, steps) for value in set(values.tolist())}  # days repeat
    found = [known[value] for value in values]
    failed = np.array([value is None for value in found], dtype=bool)
    return np.array([value or 0 for value in found], dtype=np.int64), failed


def parse_all(values: np.ndarray, text: str) -> np.ndarray:
    """Parse texts that must all have the form; see `parse`.

    Raises:
        BadRows: some have another form.
    """
    found, failed = parse(values, text)
    if failed.any():
        raise BadRows(failed, f"expected text of the form {text!r}, got {values[failed][0]!r}")
    return found


def _parse_one(text: str, steps: list[Directive]) -> int | None:
    text, at, found = text.strip(), 0, {}
    for directive, pattern in steps:
        match = pattern.match(text, at)
        if match is None:
            return None
        at = match.end()
        if directive:
            found[directive] = match[0]
    return _moment(found) if at == len(text) else None


def _moment(found: dict[str, str]) -> int | None:
    numbers = {d: int(text) for d, text in found.items() if d in _DIGITS}
    if not all(low <= numbers.get(d, low) <= high for d, (low, high) in _LIMITS.items()):
        return None
    year = numbers.get("Y", 1900)
    if "y" in numbers:
        year = numbers["y"] + (2000 if numbers["y"] < 69 else 1900)
    month = next(
        (_NAMES[d].index(found[d].lower()) + 1 for d in "bB" if d in found), numbers.get("m", 1)
    )
    hour = numbers.get("H", numbers.get("I", 0))
    if "p" in found:
        hour = hour % 12 + (12 if found["p"].lower() == "pm" else 0)
    days = (
        days_of_date(year, 1, 1)
        if "j" in numbers
        else days_of_date(year, month, numbers.get("d", 1))
    )
    if days is None:
        return None
    days += numbers.get("j", 1) - 1
    micros = (
        int(found.get("f", "").ljust(6, "0"))
        if "f" in found
        else int(found.get("g", "").ljust(3, "0") or 0) * 1000
    )
    return (
        days * DAY
        + hour * HOUR
        + numbers.get("M", 0) * MINUTE
        + numbers.get("S", 0) * MICROS
        + micros
    )
