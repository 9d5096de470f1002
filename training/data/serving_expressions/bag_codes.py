"""Texts and sets of values as codes of their pieces; pieces are words, characters or values.

A rule is what a model's spec has for such a column: `separator`, `unit` and `ngrams` of its pieces,
the known `values`, `shape` [L], and names of the columns for `codes` and `unread`; `ordered` if all
words or characters are coded in their order. N rows, L codes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from . import molecules

Rule = Mapping[str, Any]
FILLING, NULL, FIRST = 0, 1, 2  # codes; known pieces from FIRST on
OF_LISTS = "\x1f"  # separator of a column whose cells are lists
WORD = re.compile(r"\w+|[^\w\s]")


def pieces(text: str, rule: Rule) -> list[str]:
    """Return the different pieces of a text, short ones first, in the order they occur.

    >>> pieces("Call NOW, call!", {"separator": None, "unit": "words", "ngrams": (1, 2)})
    ['call', 'now', ',', '!', 'call now', 'now ,', ', call', 'call !']
    >>> pieces("b; a;;b ", {"separator": ";"})
    ['b', 'a']
    """
    if rule["separator"] is not None:
        found = (part.strip() for part in text.split(rule["separator"]))
        return list(dict.fromkeys(part for part in found if part))
    low, high = rule["ngrams"]
    lowered = text.lower()
    units: Sequence[str]
    if rule["unit"] == "words":
        units, between = WORD.findall(lowered), " "
    else:
        units, between = f" {' '.join(lowered.split())} ", ""
    return list(
        dict.fromkeys(
            between.join(units[start : start + count])
            for count in range(low, high + 1)
            for start in range(len(units) - count + 1)
        )
    )


def sequence(text: str, rule: Rule) -> list[str]:
    """Return the words or characters of a text in their order, in small letters.

    >>> sequence("To be, or not to be", {"unit": "words"})
    ['to', 'be', ',', 'or', 'not', 'to', 'be']
    """
    return WORD.findall(text.lower()) if rule["unit"] == "words" else list(text.lower())


def as_text(value: Any, null_texts: Collection[str] = ()) -> str | None:
    """Return a cell as text, a list as its values in one; None for null."""
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        found = (as_text(each) for each in value)
        return OF_LISTS.join(each for each in found if each is not None)
    if pd.isna(value):
        return None
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    text = str(value)
    return None if text in null_texts else text


def encode(texts: Sequence[str | None], rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of texts, and where something in them is unknown.

    Returns:
        Codes int32 [N, L], filled up with 0; the first of a null is 1. Unknown, bool [N]: a value
        of a set that training did not know, or a text in which it knows nothing.
    """
    known = {value: FIRST + place for place, value in enumerate(rule["values"])}
    is_ordered = rule.get("ordered", False)
    codes = np.zeros((len(texts), rule["shape"][0]), dtype=np.int32)
    unknown = np.zeros(len(texts), dtype=bool)
    for row, text in enumerate(texts):
        if text is None:
            codes[row, 0] = NULL
            continue
        found = sequence(text, rule) if is_ordered else pieces(text, rule)
        own = [known[piece] for piece in found if piece in known]
        unknown[row] = len(own) < len(found) and (rule["separator"] is not None or not own)
        if is_ordered:
            own = [known.get(piece, FIRST + len(known)) for piece in found]
        own = own[: rule["shape"][0]]
        codes[row, : len(own)] = own
    return codes, unknown


def with_codes(
    frame: pd.DataFrame, rules: Sequence[Rule], null_texts: Collection[str] = ()
) -> pd.DataFrame:
    """Return the frame with columns for the codes [L] of each row and for unknown, as rules say."""
    added: dict[str, Any] = {}
    for rule in rules:
        texts = [as_text(value, null_texts) for value in frame[rule["name"]]]
        if "of" in rule:  # a molecule
            codes, unknown = molecules.encode(texts, rule)
            molecules.refuse_invalid(texts, rule, unknown)
        else:
            codes, unknown = encode(texts, rule)
        added |= {rule["codes"]: list(codes), rule["unread"]: unknown}
    return pd.concat([frame, pd.DataFrame(added, index=frame.index)], axis=1) if added else frame
