"""Lengths of time in the units of a table's `__time`."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.config import Declaration, TimeSplit
from schemas.duration import SECONDS, TimeUnit, seconds_of
from schemas.errors import SchemaError
from schemas.records import TableSpec

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def in_time_units(declared: float | str, spec: TableSpec, where: str) -> float:
    """Return a declared length in the units of `__time`.

    These are seconds for timestamps, else the column's own units.

    Args:
        declared: the length.
        spec: of the table; `time_unit` is the declared unit of a numeric time.
        where: path of the setting, for the message.

    Raises:
        SchemaError: a length with a unit meets a column whose unit nobody declared, or a plain
            number meets timestamps.
    """
    if not declared:
        return 0.0
    if isinstance(declared, str):
        seconds = seconds_of(declared)
        if spec.time_is_timestamp or seconds == 0:
            return seconds
        if spec.time_unit is None:
            raise SchemaError(
                f"{where}: {declared} has a unit, and column {spec.time!r} (role time) holds plain"
                f" numbers, whose unit is not declared; declare it, e.g. {spec.time}: {{role: time,"
                f" unit: ms}} (one of {', '.join(SECONDS)}), or give {where} as a plain number that"
                " counts what the column counts"
            )
        return float(seconds / SECONDS[spec.time_unit])
    if spec.time_is_timestamp:
        raise SchemaError(
            f"{where}: {declared:g} has no unit, and column {spec.time!r} (role time) holds"
            f" timestamps; give a length such as {declared:g}d or {declared:g}h"
        )
    return declared


def declared_lengths(declaration: Declaration) -> Iterator[tuple[str, float | str]]:
    """Yield the path and the value of every length of time that the declaration gives."""
    if isinstance(declaration.split, TimeSplit):
        yield "split.embargo", declaration.split.embargo
        for name in ("roll", "test", "val"):
            yield f"split.{name}", getattr(declaration.split, name) or 0.0
    if declaration.cv.folds:
        yield "cv.embargo", declaration.cv.embargo or 0.0
        yield "cv.horizon", declaration.cv.horizon
        yield "cv.window", declaration.cv.window or 0.0


def scale(unit: TimeUnit | None, wanted: TimeUnit | None) -> float:
    """Return the factor from one unit to another; 1 if neither is declared.

    >>> scale("s", "ms"), scale(None, None)
    (1000.0, 1.0)
    """
    return SECONDS[unit] / SECONDS[wanted] if unit and wanted else 1.0


def length(value: float, spec: TableSpec) -> str:
    """Return a length of time in the largest unit that it is a multiple of.

    For a numeric time, return the number in the declared unit.
    """
    if not spec.time_is_timestamp:
        return f"{value:g} {spec.time_unit}" if spec.time_unit else f"{value:g}"
    name, unit = next((name, unit) for name, unit in UNITS if value % unit == 0 or unit == 1)
    return f"{value / unit:g} {name}"
