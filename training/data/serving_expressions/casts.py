"""Casts between SQL types like those of the training engine; all functions get no nulls."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np

from .vectors import (
    BLANKS,
    DAY,
    NUMERAL,
    UNITS,
    BadRows,
    bounds,
    decimals,
    demand,
    dtype,
    each,
    family,
    fitted,
    is_decimal,
    parse_moment,
    scaled_down,
    whole_of,
)

TRUTHS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
# from a family of types to the families of possible casts
CASTS = {
    "z": "nbtdsie",
    "n": "nbt",
    "b": "nbt",
    "t": "tnbds",
    "e": "t",
    "d": "dst",
    "s": "sdt",
    "i": "i",
}


def cast(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """Return values [N] of one SQL type as another.

    Raises:
        BadRows: a value that the target cannot hold.
    """
    if source == target or family(source) == "e":
        return values
    kind = f"{family(source)}{family(target)}"
    functions: dict[str, Callable[[np.ndarray, str, str], np.ndarray]] = {
        "nn": _number_to_number,
        "nb": lambda v, s, t: np.asarray(v != 0, dtype=bool),
        "nt": _number_to_text,
        "bn": lambda v, s, t: _number_to_number(v.astype(np.int64), "BIGINT", t),
        "bt": lambda v, s, t: np.where(v, "true", "false").astype(object),
        "tn": _text_to_number,
        "tb": lambda v, s, t: each(v, lambda text: TRUTHS.get(text.lower()), t),
        "td": lambda v, s, t: each(v, lambda text: _parsed(text, DAY * 1000, offset=False), t),
        "ts": lambda v, s, t: each(
            v, lambda text: _parsed(text, 1_000_000_000 // UNITS[t], offset=t.endswith("ZONE")), t
        ),
        "ds": lambda v, s, t: v * (86_400 * UNITS[t]),
        "dt": lambda v, s, t: texts(v.astype("datetime64[D]").astype(str)),
        "sd": lambda v, s, t: _moment_to_moment(v, s, "TIMESTAMP") // DAY,
        "ss": _moment_to_moment,
        "st": _moment_to_text,
    }
    if kind not in functions:
        raise ValueError(f"no cast from {source} to {target}")
    return functions[kind](values, source, target)


def try_cast(values: np.ndarray, source: str, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the same as `cast`, with null (second result, bool [N]) where it would refuse."""
    failed = np.zeros(len(values), dtype=bool)
    result = np.zeros(len(values), dtype=dtype(target))
    while True:
        good = np.flatnonzero(~failed)
        try:
            result[good] = cast(values[good], source, target)
            return result, failed
        except BadRows as bad:
            failed[good[bad.rows]] = True


def texts(values: Any) -> np.ndarray:
    """Return texts as an array of objects."""
    found = list(values)
    result = np.empty(len(found), dtype=object)
    result[:] = found
    return result


def half_away(values: np.ndarray) -> np.ndarray:
    """Return floats rounded to whole ones, halves away from zero."""
    with np.errstate(invalid="ignore"):  # infinity and NaN stay as they are
        whole = np.trunc(values)
        return np.asarray(
            whole
            + np.where(
                np.abs(values - whole) >= 0.5, np.copysign(1, values), np.copysign(0, values)
            ).astype(values.dtype)
        )


def divided_half_away(values: np.ndarray, divisor: int) -> np.ndarray:
    """Return the quotient of whole numbers, halves rounded away from zero."""
    return np.asarray((2 * np.abs(values) + divisor) // (2 * divisor) * np.where(values < 0, -1, 1))


def _number_to_number(values: np.ndarray, source: str, target: str) -> np.ndarray:
    scale, wanted = decimals(source)[1], decimals(target)[1]
    if values.dtype.kind == "f":
        return _float_to_number(values, target, wanted)
    if target in ("FLOAT", "DOUBLE"):
        return scaled_down(values, scale).astype(dtype(target))
    if wanted < scale:
        return fitted(divided_half_away(values, 10 ** (scale - wanted)), target)
    if wanted > scale:
        values = values.astype(object) * 10 ** (wanted - scale)
    return fitted(values, target)


def _float_to_number(values: np.ndarray, target: str, scale: int) -> np.ndarray:
    """Round to a decimal with halves away from zero, to a whole number with halves to even."""
    if target in ("FLOAT", "DOUBLE"):
        return _narrowed(values, target)
    with np.errstate(over="ignore"):
        whole = (
            half_away(values.astype(np.float64) * 10.0**scale)
            if is_decimal(target)
            else np.rint(values.astype(np.float64))
        )
    low, high = bounds(target)
    # compared as doubles: 2^63 - 1 is none, and 2^63 must not pass
    demand(
        (whole >= float(low)) & (whole < float(high + 1)),
        f"a number is too large for {target}, or none",
    )
    exact = np.array([int(v) for v in whole], dtype=object) if dtype(target).hasobject else whole
    return exact.astype(dtype(target))


def _narrowed(values: np.ndarray, target: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        found = values.astype(dtype(target))
    demand(np.isfinite(found) | ~np.isfinite(values), f"a number is too large for {target}")
    return found


def _number_to_text(values: np.ndarray, source: str, target: str) -> np.ndarray:
    if is_decimal(source):
        return texts([decimal_text(int(v), decimals(source)[1]) for v in values])
    return texts([str(v) for v in values])  # of doubles, the shortest digits that give them back


def decimal_text(value: int, scale: int) -> str:
    """Return a decimal with all digits of its scale.

    >>> decimal_text(-50, 3), decimal_text(7, 0)
    ('-0.050', '7')
    """
    digits = str(abs(value)).rjust(scale + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _text_to_number(values: np.ndarray, source: str, target: str) -> np.ndarray:
    if target in ("FLOAT", "DOUBLE"):
        return each(values, _parsed_float, target)
    scale, (low, high) = decimals(target)[1], bounds(target)

    def whole(text: str) -> int | None:
        """Return a whole number within bounds, else None."""
        found = _parsed_whole(text, scale)
        return found if found is not None and low <= found <= high else None

    return each(values, whole, target)


def _parsed_float(text: str) -> float | None:
    text = text.strip(BLANKS)
    if NUMERAL.fullmatch(text) or text.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        return float(text)
    return None


def _parsed_whole(text: str, scale: int) -> int | None:
    text = text.strip(BLANKS)
    if not NUMERAL.fullmatch(text):
        return None
    return whole_of(decimal.Decimal(text.replace("_", "")), scale)


def _parsed(text: str, unit: int, *, offset: bool) -> int | None:
    found = parse_moment(text, offset=offset)
    return None if found is None else found // unit


def _moment_to_moment(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """Convert to a coarser unit by rounding, halves away from 1970."""
    if UNITS[target] >= UNITS[source]:
        return np.asarray(values * (UNITS[target] // UNITS[source]))
    return divided_half_away(values, UNITS[source] // UNITS[target])


def _moment_to_text(values: np.ndarray, source: str, target: str) -> np.ndarray:
    per_second = UNITS[source]
    seconds = texts(
        np.char.replace((values // per_second).astype("datetime64[s]").astype(str), "T", " ")
    )
    fractions = [
        f".{part:0{len(str(per_second)) - 1}d}".rstrip("0") if part else ""
        for part in (values % per_second).tolist()
    ]
    zone = "+00" if source.endswith("ZONE") else ""
    return texts(
        [f"{second}{fraction}{zone}" for second, fraction in zip(seconds, fractions, strict=True)]
    )
