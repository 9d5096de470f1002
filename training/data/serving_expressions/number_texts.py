"""Numbers of texts as people write them: $1,234.50, 1.234,50 €, 12.3%, <0.1, 12 kg, 7*, (5).

A spelling is a mapping as `data.columns.NAME.written` declares it. The same pattern is used by the
engine of training (RE2) and here (`re`): it contains nothing that the two read differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from .vectors import BadRows

Spelling = Mapping[str, Any]
# spaces of other widths, the minus of typesetting and the curly apostrophe, and what they become
LOOKALIKES = ("\t\u00a0\u2007\u2009\u202f\u2212\u2019", "     -'")
BLANK = " *"
BOUNDS = "<=|>=|<|>|\u2264|\u2265"
SPECIAL = frozenset("\\.+*?()|[]{}^$")


class Reading(NamedTuple):
    """Patterns of a whole text, of one without a mark, of all before the number, of the number.

    None has groups, which would make the engine slow. Nothing else begins like a number, so the
    number is what `number` matches after `before`.
    """

    whole: str
    unmarked: str
    before: str
    number: str
    minus: tuple[str, ...]  # units with a sign in them, which is none of the number


def normal(text: str) -> str:
    """Return a text with plain spaces and minus signs, without spaces around it."""
    return text.translate(str.maketrans(*LOOKALIKES)).strip(" ")


def escaped(text: str) -> str:
    """Return a pattern that matches exactly this text, also in RE2."""
    return "".join("\\" + c if c in SPECIAL else c for c in text)


def reading(spelling: Spelling) -> Reading:
    """Return the patterns by which the texts of a spelling are read."""
    number = _number(str(spelling["decimal"]), str(spelling["thousands"]))
    units = [normal(text) for text in spelling["units"]]
    named = _any(text for text in units if text)
    forms: list[str] = []
    if named:
        forms += [
            f"[+-]?{BLANK}(?:{named}){BLANK}{number}",
            f"(?:{named}){BLANK}[+-]{BLANK}{number}",
            f"[+-]?{BLANK}{number}{BLANK}(?:{named})",
        ]
    if not named or "" in units:
        forms.append(f"[+-]?{BLANK}{number}")
    if spelling["parentheses"]:
        forms += _in_parentheses(number, named, not named or "" in units)
    marks = _any(normal(text) for text in spelling["marks"])
    bound = f"(?:{BOUNDS})?{BLANK}" if spelling["limits"] == "bound" else ""
    unmarked = f"{bound}(?:{'|'.join(forms)})"
    unit = f"(?:{named})?{BLANK}" if named else ""
    return Reading(
        f"{unmarked}(?:{BLANK}(?:{marks}))*" if marks else unmarked,
        unmarked,
        f"{bound}[+-]?{BLANK}{unit}[+-]?{BLANK}\\(?{BLANK}{unit}",
        number,
        tuple(text for text in units if set(text) & set("-(")),
    )


def _in_parentheses(number: str, named: str, bare: bool) -> list[str]:
    forms = [f"\\({BLANK}{number}{BLANK}\\)"] if bare else []
    if named:
        forms += [
            f"\\({BLANK}(?:{named}){BLANK}{number}{BLANK}\\)",
            f"\\({BLANK}{number}{BLANK}(?:{named}){BLANK}\\)",
            f"(?:{named}){BLANK}\\({BLANK}{number}{BLANK}\\)",
            f"\\({BLANK}{number}{BLANK}\\){BLANK}(?:{named})",
        ]
    return forms


def _any(texts: Any) -> str:
    """Return a pattern of one of the texts, the longer first."""
    return "|".join(map(escaped, sorted(set(texts), key=lambda text: (-len(text), text))))


def _number(decimal: str, thousands: str) -> str:
    point, digits = escaped(decimal), "[0-9]"
    fraction = f"(?:{point}{digits}*)?"
    forms = [f"{digits}+{fraction}", f"{point}{digits}+"]
    if thousands:
        mark = escaped(thousands)
        groups = [f"{digits}{{1,3}}(?:{mark}{digits}{{3}})+"]
        if thousands == ",":  # 12,34,567 in India
            groups.append(f"{digits}{{1,2}}(?:{mark}{digits}{{2}})+{mark}{digits}{{3}}")
        forms = [*(f"{group}{fraction}" for group in groups), *forms]
    return f"(?:(?:{'|'.join(forms)})(?:[eE][+-]?{digits}{{1,3}})?)"


def value(text: str, spelling: Spelling, read: Reading) -> float | None:
    """Return the number of one text; NaN if it stands for a null, None if it is another spelling.

    >>> how = {"decimal": ".", "thousands": ",", "units": ["$"], "parentheses": True,
    ...        "limits": "refuse", "marks": [], "nulls": ["-"]}
    >>> [value(t, how, reading(how)) for t in ("$1,234.50", "($5)", "-", "1,23")]
    [1234.5, -5.0, nan, None]
    """
    plain = normal(text)
    if plain in {normal(null) for null in spelling["nulls"]}:
        return float("nan")
    before = re.match(read.before, plain)
    found = re.match(read.number, plain[before.end() :]) if before else None
    if before is None or found is None or re.fullmatch(read.whole, plain) is None:
        return None
    sign, digits = before[0], found[0]
    for unit in read.minus:
        sign = sign.replace(unit, "")
    digits = digits.replace(str(spelling["thousands"]), "") if spelling["thousands"] else digits
    digits = digits.replace(str(spelling["decimal"]), ".")
    number = float(("-" if "-" in sign or "(" in sign else "") + digits)
    return number if np.isfinite(number) else None


def numbers(values: pd.Series, spelling: Spelling, null_texts: tuple[str, ...] = ()) -> pd.Series:
    """Return a column of texts as float64 [N] with NaN for nulls; numbers among them stay.

    Args:
        values: texts, numbers and nulls [N].
        spelling: how the texts are written.
        null_texts: texts that meant null in the whole source.

    Raises:
        BadRows: a text is written in another way.
    """
    read = reading(spelling)
    places, distinct = pd.factorize(values)
    known: list[float | None] = [
        (float("nan") if one in null_texts else value(one, spelling, read))
        if isinstance(one, str)
        else _plain(one)
        for one in distinct
    ]
    bad = np.array([*(found is None for found in known), False])[places]  # place -1 is null
    if bad.any():
        first = values[bad].iloc[0]
        raise BadRows(bad, f"expected numbers as training had them, got {first!r}")
    table = np.array([*known, np.nan], dtype=np.float64)
    return pd.Series(table[places], index=values.index, name=values.name)


def _plain(one: Any) -> float | None:
    try:
        return float(one)
    except (TypeError, ValueError):
        return None
