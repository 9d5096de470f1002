"""Functions of text like those of the training engine: by code points, positions from 1.

Rows have no nulls.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .vectors import demand

# characters that `trim` removes: space and the other space separators of Unicode
SPACES = (
    "\u0020\u00a0\u1680\u2000\u2001\u2002\u2003"
    "\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)


@functools.lru_cache(maxsize=4096)
def _upper(letter: str) -> str:
    """Return one letter for one.

    The capital ß is ẞ, and a letter without a single capital stays.
    """
    return next(
        (form for form in (letter.upper(), letter.title()) if len(form) == 1),
        "ẞ" if letter == "ß" else letter,
    )


@functools.lru_cache(maxsize=4096)
def _lower(letter: str) -> str:
    form = letter.lower()
    return form if len(form) == 1 else form[0]


def upper(text: str) -> str:
    """Return capital letters, one for one."""
    return text.upper() if text.isascii() else "".join(map(_upper, text))


def lower(text: str) -> str:
    """Return small letters, one for one."""
    return text.lower() if text.isascii() else "".join(map(_lower, text))


def substring(text: str, start: int, length: int | None = None) -> str:
    """Return a part of a text.

    Negative starts count from its end, a negative length goes to the left.

    >>> (substring("hello", 2, 3), substring("hello", -3, 2), substring("hello", 0, 2),
    ...     substring("hello", 2, -1))
    ('ell', 'll', 'h', 'h')
    """
    first = start - 1 if start > 0 else len(text) + start if start < 0 else -1
    if start < 0 and length is None:
        first = max(first, 0)
    if start == 0 and length is None:
        first = 0
    last = len(text) if length is None else first + length
    first, last = min(first, last), max(first, last)
    return text[max(first, 0) : max(last, 0)]


def left(text: str, count: int) -> str:
    """Return the first characters, or all but the last ones if the count is negative."""
    return text[:count] if count >= 0 else text[: max(len(text) + count, 0)]


def right(text: str, count: int) -> str:
    """Return the last characters, or all but the first ones if the count is negative."""
    return text[max(len(text) - count, 0) :] if count >= 0 else text[-count:]


def split_part(text: str, separator: str, position: int) -> str | None:
    """Return one of the parts between separators, from 1 or from the end at -1.

    Return None if there is none.
    """
    parts = text.split(separator) if separator else list(text)
    at = position - 1 if position > 0 else len(parts) + position
    return parts[at] if position and 0 <= at < len(parts) else None


def pad(text: str, length: int, filling: str, *, before: bool) -> str | None:
    """Cut or fill a text to a length; None if there is nothing to fill with."""
    missing = max(length, 0) - len(text)
    if missing <= 0:
        return text[: max(length, 0)]
    if not filling:
        return None
    filled = (filling * (missing // len(filling) + 1))[:missing]
    return filled + text if before else text + filled


@functools.lru_cache(maxsize=256)
def like_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern: `%` matches any text, `_` one character."""
    return re.compile(
        "".join({"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern),
        re.DOTALL,
    )


def like(text: str, pattern: str) -> bool:
    """Return True if the whole text matches the pattern."""
    return like_pattern(pattern).fullmatch(text) is not None


TEXT: dict[str, Callable[..., Any]] = {
    "||": lambda a, b: a + b,
    "contains": lambda text, part: part in text,
    "starts_with": str.startswith,
    "prefix": str.startswith,
    "ends_with": str.endswith,
    "suffix": str.endswith,
    "instr": lambda text, part: text.find(part) + 1,
    "length": len,
    "lower": lower,
    "upper": upper,
    "trim": lambda text, letters=SPACES: text.strip(letters) if letters else text,
    "ltrim": lambda text, letters=SPACES: text.lstrip(letters) if letters else text,
    "rtrim": lambda text, letters=SPACES: text.rstrip(letters) if letters else text,
    "left": left,
    "right": right,
    "substring": substring,
    "replace": lambda text, old, new: text.replace(old, new) if old else text,
    "lpad": lambda text, length, filling: pad(text, length, filling, before=True),
    "rpad": lambda text, length, filling: pad(text, length, filling, before=False),
    "~~": like,
    "!~~": lambda text, pattern: not like(text, pattern),
    "~~*": lambda text, pattern: like(lower(text), lower(pattern)),
    "!~~*": lambda text, pattern: not like(lower(text), lower(pattern)),
}
SAME = {
    "strpos": "instr",
    "position": "instr",
    "len": "length",
    "lcase": "lower",
    "ucase": "upper",
    "substr": "substring",
}
TEXT |= {name: TEXT[known] for name, known in SAME.items()}


def split_parts(args: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Apply `split_part` to rows; return texts, and a mask, bool [N], of missing parts."""
    found = [split_part(*row) for row in zip(*(a.tolist() for a in args), strict=True)]
    result = np.empty(len(found), dtype=object)
    result[:] = ["" if part is None else part for part in found]
    return result, np.array([part is None for part in found], dtype=bool)


def apply(op: str, args: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Apply a function of text to rows.

    Raises:
        BadRows: it has no value there.
    """
    function = TEXT[op]
    found = [function(*row) for row in zip(*(a.tolist() for a in args), strict=True)]
    demand(np.array([value is not None for value in found], dtype=bool), f"{op} has no value")
    result = np.empty(len(found), dtype=dtype)
    result[:] = found
    return result
