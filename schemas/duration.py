"""Durations in the declaration, which keep their unit until the time column's unit is known."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

TimeUnit = Literal["ns", "us", "ms", "s", "min", "h", "d", "w"]
SECONDS: dict[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
NAMES = {
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
    "sec": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
    "week": "w",
}
LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def unit_of(name: Any) -> Any:
    """Return the short form of a unit's name; return other text unchanged, for pydantic to refuse.

    >>> unit_of("days"), unit_of("ms"), unit_of("fortnight")
    ('d', 'ms', 'fortnight')
    """
    if not isinstance(name, str) or name in SECONDS:
        return name
    return NAMES.get(name.strip().lower().removesuffix("s"), name)


def seconds_of(length: str) -> float:
    """Return the seconds of a duration such as `24h`, `7d` or `500ms`.

    Raises:
        ValueError: the text is not a duration.

    >>> seconds_of("2h"), seconds_of("1.5 days")
    (7200.0, 129600.0)
    """
    match = LENGTH.fullmatch(length.strip())
    unit = unit_of(match[2]) if match else None
    if match is None or unit not in SECONDS:
        raise ValueError(f"expected a duration such as 24h, 7d or 30min, got {length!r}")
    return float(match[1]) * SECONDS[unit]


def _checked(value: Any) -> Any:
    if isinstance(value, str):
        seconds_of(value)
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"expected a duration of at least 0, got {value!r}")
    return float(value)


Duration = Annotated[float | str, BeforeValidator(_checked)]
"""A length with its unit (`7d`), or a plain number in the units of a numeric time column."""

Unit = Annotated[TimeUnit, BeforeValidator(unit_of)]
