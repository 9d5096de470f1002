"""Arithmetic and comparison like those of the training engine.

Numbers are IEEE floats, exact decimals, and whole numbers that must fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .casts import divided_half_away, half_away
from .vectors import decimals, demand, dtype, fitted

Binary = Callable[[Any, Any], Any]
SAFE = 2**62
_BINARY: dict[str, Binary] = {"+": np.add, "-": np.subtract, "*": np.multiply}
_FLOAT: dict[str, Callable[..., Any]] = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "radians": np.radians,
    "degrees": np.degrees,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "pow": np.power,
    "/": np.divide,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}
_SAME = {"power": "pow", "**": "pow", "^": "pow"}
FLOAT_OPS = (*_FLOAT, *_SAME)


def of_floats(op: str, args: list[np.ndarray]) -> np.ndarray:
    """Apply a function of floats, infinity and NaN included."""
    with np.errstate(all="ignore"):
        return np.asarray(_FLOAT[_SAME.get(op, op)](*args))


def log(args: list[np.ndarray]) -> np.ndarray:
    """Return the decimal logarithm, or with two arguments the one to the base of the first."""
    with np.errstate(all="ignore"):
        return np.asarray(
            np.log10(args[0]) if len(args) == 1 else np.log10(args[1]) / np.log10(args[0])
        )


def arithmetic(op: str, args: list[np.ndarray], kind: str) -> np.ndarray:
    """Return sum, difference or product of two, or one with its sign changed or kept, as a type.

    Raises:
        BadRows: a whole number or decimal is beyond the type.
    """
    if len(args) == 1:
        args = (
            [np.zeros_like(args[0]), args[0]]
            if args[0].dtype.kind != "f"
            else [np.full_like(args[0], -1 if op == "-" else 1), args[0]]
        )
        op = op if args[1].dtype.kind != "f" else "*"
    function = _BINARY[op]
    if args[0].dtype.kind == "f":
        return of_pair(function, args)
    if dtype(kind).hasobject or _may_overflow(function, args):
        args = [a.astype(object) for a in args]
    return fitted(function(*args), kind)


def of_pair(function: Binary, args: list[np.ndarray]) -> np.ndarray:
    """Apply a function to two floats, without a warning for infinity."""
    with np.errstate(all="ignore"):
        return np.asarray(function(*args))


def _may_overflow(function: Binary, args: list[np.ndarray]) -> bool:
    return bool((np.abs(function(*(a.astype(np.float64) for a in args))) >= SAFE).any())


def quotient(args: list[np.ndarray], kind: str) -> np.ndarray:
    """Compute `//`: whole numbers towards zero; floats are divided as they are.

    Raises:
        BadRows: division by zero.
    """
    demand(np.asarray(args[1] != 0, dtype=bool), "division by zero")
    if args[0].dtype.kind == "f":
        return of_pair(np.divide, args)
    return fitted(_truncated(*args), kind)


def remainder(args: list[np.ndarray], kind: str) -> np.ndarray:
    """Compute `%` with the sign of the dividend.

    Raises:
        BadRows: division of a whole number or decimal by zero.
    """
    if args[0].dtype.kind == "f":
        return of_pair(np.fmod, args)
    demand(np.asarray(args[1] != 0, dtype=bool), "division by zero")
    return fitted(args[0] - args[1] * _truncated(*args), kind)


def _truncated(dividend: np.ndarray, divisor: np.ndarray) -> np.ndarray:
    """Divide towards zero; numpy rounds down."""
    return np.asarray(
        np.abs(dividend) // np.abs(divisor) * np.where((dividend < 0) == (divisor < 0), 1, -1)
    )


def absolute(values: np.ndarray, kind: str) -> np.ndarray:
    """Return the absolute value.

    Raises:
        BadRows: a whole number without a positive counterpart.
    """
    return (
        np.abs(values) if values.dtype.kind == "f" else fitted(np.abs(values.astype(object)), kind)
    )


def sign(values: np.ndarray) -> np.ndarray:
    """Return -1, 0 or 1; 0 for NaN."""
    return np.asarray((values > 0).astype(np.int64) - (values < 0).astype(np.int64))


def rounded(op: str, args: list[np.ndarray], source: str, kind: str) -> np.ndarray:
    """Compute `round` (halves away from zero), `floor`, `ceil` or `trunc`.

    The first and last may have a number of digits.
    """
    values = args[0]
    if values.dtype.kind == "f":
        return _rounded_floats(op, values, args[1] if len(args) > 1 else None)
    if op in ("round", "trunc") and len(args) > 1:
        return _rounded_digits(op, values, args[1], source, kind)
    divisor = 10 ** (decimals(source)[1] - decimals(kind)[1])
    return fitted(_divided(op, values, divisor), kind)


def _divided(op: str, values: np.ndarray, divisor: int) -> np.ndarray:
    if op == "round":
        return divided_half_away(values, divisor)
    if op == "trunc":
        return np.asarray(np.abs(values) // divisor * np.where(values < 0, -1, 1))
    return np.asarray(values // divisor if op == "floor" else -(-values // divisor))


def _rounded_digits(
    op: str, values: np.ndarray, digits: np.ndarray, source: str, kind: str
) -> np.ndarray:
    """Round whole numbers and decimals; the stored scale may shrink to the result's."""
    scale, wanted = decimals(source)[1], decimals(kind)[1]
    result = np.empty(len(values), dtype=object)
    for count in np.unique(digits):
        rows = digits == count
        kept = min(max(int(count), -40), scale)  # digits after the point that stay
        result[rows] = _divided(op, values[rows].astype(object), 10 ** (scale - kept)) * 10 ** max(
            wanted - kept, 0
        )
    return fitted(result, kind)


def _rounded_floats(op: str, values: np.ndarray, digits: np.ndarray | None) -> np.ndarray:
    functions: dict[str, Callable[..., Any]] = {
        "round": half_away,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
    }
    whole = functions[op]
    with np.errstate(all="ignore"):
        if digits is None:
            return np.asarray(whole(values))
        factor = np.power(10.0, np.abs(digits))
        up = whole(values * factor) / factor
        down = whole(values / factor) * factor
        found = np.where(
            digits >= 0,
            np.where(np.isfinite(up), up, values),
            np.where(np.isfinite(down), down, 0.0),
        )
    return np.asarray(np.where(np.isfinite(values), found, values).astype(values.dtype))


def equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return bool [N]; NaN equals NaN."""
    same = np.asarray(a == b, dtype=bool)
    return same | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else same


def less(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return bool [N]; NaN is above every number, texts are compared by code points."""
    below = np.asarray(a < b, dtype=bool)
    return below | (~np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else below


COMPARISONS: dict[str, Binary] = {
    "=": equal,
    "!=": lambda a, b: ~equal(a, b),
    "<": less,
    ">": lambda a, b: less(b, a),
    "<=": lambda a, b: ~less(b, a),
    ">=": lambda a, b: ~less(a, b),
}
