"""Canonical spellings of keys: texts without case, spaces, punctuation or leading zeros.

ASCII texts, as most keys are, are folded as one array of bytes in NumPy; others by Arrow's regular
expressions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.engine.distinct import distinct
from training.data.engine.engine import literal

DIGITS, LOWER, UPPER = range(48, 58), range(97, 123), range(65, 91)
ZERO = 48
IS_DIGIT = np.isin(np.arange(256), DIGITS)
IS_SPACE = np.isin(np.arange(256), list(b"\t\n\f\r "))

STEPS = {  # as (pattern, replacement) of RE2
    "spaces": (r"\s+", ""),
    "punctuation": (r"[^\p{L}\p{N}]+", ""),
    "zeros": (r"(^|[^0-9])0+([0-9])", r"\1\2"),
}
# possible difference of two keys → the steps that remove it, in this order; strongest first
SPELLINGS = {
    "case, spaces, punctuation and leading zeros": ("case", "zeros", "punctuation"),
    "case, spaces and punctuation": ("case", "punctuation"),
    "case, spaces and leading zeros": ("case", "spaces", "zeros"),
    "case and spaces": ("case", "spaces"),
    "spaces": ("spaces",),
}


def one_spelling(expression: str, spelling: str) -> str:
    r"""Return the SQL that brings ASCII texts to a canonical spelling, as `fold` does.

    >>> print(one_spelling("ward", "case and spaces"))
    regexp_replace(lower(ward), '\s+', '', 'g')
    """
    for step in SPELLINGS[spelling]:
        if step == "case":
            expression = f"lower({expression})"
        else:
            pattern, replacement = (literal(text) for text in STEPS[step])
            expression = f"regexp_replace({expression}, {pattern}, {replacement}, 'g')"
    return expression


class Text(NamedTuple):
    """Texts one after the other: `content` uint8 [bytes], and `offsets` int32 [N + 1] into it.

    This is Arrow's layout.
    """

    content: np.ndarray
    offsets: np.ndarray

    def keeping(self, keep: np.ndarray) -> Text:
        """Return the same texts with only those bytes for which `keep`, bool [bytes], holds."""
        kept_before = np.zeros(len(keep) + 1, np.int32)
        np.cumsum(keep, out=kept_before[1:])
        return Text(self.content[keep], kept_before[self.offsets])


def among(content: np.ndarray, characters: range) -> np.ndarray:
    """Return the mask of bytes, uint8 [N], in a range.

    Subtraction wraps around, and one comparison is several times faster than a table.
    """
    inside: np.ndarray = content - np.uint8(characters.start) < np.uint8(len(characters))
    return inside


def lowered(content: np.ndarray) -> np.ndarray:
    """Return bytes, uint8 [N], with ASCII letters in lower case."""
    lower: np.ndarray = content + (among(content, UPPER).view(np.uint8) << np.uint8(5))
    return lower


def is_plain(content: np.ndarray) -> np.ndarray:
    """Return the mask of bytes, uint8 [N], that are no punctuation.

    They are digits, letters, and bytes of other scripts, which Arrow classifies.
    """
    plain: np.ndarray = (
        among(content, DIGITS) | among(content | np.uint8(32), LOWER) | (content > 127)
    )
    return plain


def text_of(texts: pa.StringArray) -> Text:
    """Return the bytes of texts without nulls, not copied."""
    if not len(texts):
        return Text(np.empty(0, np.uint8), np.zeros(1, np.int32))
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Text(content, offsets - offsets[0])


def leading_zeros(text: Text) -> np.ndarray:
    """Return positions, int [zeros], of zeros that lead a longer run of digits.

    Example: `0` in `A07`, not in `A70`, `A0` or `A0-7`.
    """
    content, ends = text.content, text.offsets[1:]
    zeros = np.flatnonzero(content == ZERO)
    first = text.offsets[:-1][np.diff(text.offsets) > 0]
    # for the very first byte this reads the last one, which does no harm
    inside = zeros[~IS_DIGIT[content[zeros - 1]]]
    zeros, found = distinct(np.concatenate([first[content[first] == ZERO], inside])), [zeros[:0]]
    while len(zeros):  # one iteration for each zero of the longest run
        end = ends[np.searchsorted(ends, zeros, side="right")]
        zeros = zeros[zeros + 1 < end]
        zeros = zeros[IS_DIGIT[content[zeros + 1]]]
        found.append(zeros)
        zeros = zeros[content[zeros + 1] == ZERO] + 1
    return np.concatenate(found)


def fold(texts: pa.StringArray, spelling: str) -> pa.StringArray:
    """Return texts [N] in a canonical spelling.

    Args:
        texts: without nulls.
        spelling: a name of `SPELLINGS`.
    """
    text = text_of(texts)
    folded = _fold_bytes(text, SPELLINGS[spelling])
    foreign = text.content > 127
    if not foreign.any():
        return folded
    mask = pa.array(np.diff(text.keeping(foreign).offsets) > 0)
    return pc.replace_with_mask(
        folded, mask, _fold_unicode(texts.filter(mask), SPELLINGS[spelling])
    )


def _fold_bytes(text: Text, steps: tuple[str, ...]) -> pa.StringArray:
    """Return ASCII texts after the steps; others become placeholders that are replaced later."""
    if "case" in steps:
        text = text._replace(content=lowered(text.content))
    if "spaces" in steps:
        text = text.keeping(~IS_SPACE[text.content])
    keep = is_plain(text.content) if "punctuation" in steps else np.ones(len(text.content), bool)
    if "zeros" in steps:  # these depend on their neighbours, punctuation too
        keep[leading_zeros(text)] = False
    text = text.keeping(keep)
    offsets = pa.py_buffer(np.ascontiguousarray(text.offsets))
    return pa.StringArray.from_buffers(
        len(text.offsets) - 1, offsets, pa.py_buffer(np.ascontiguousarray(text.content))
    )


def _fold_unicode(texts: pa.StringArray, steps: tuple[str, ...]) -> pa.StringArray:
    """Return texts after the steps, without accents and with compatibility forms made plain.

    Compatibility forms are full width, ligatures and superscripts.
    """
    folded = pc.replace_substring_regex(
        pc.utf8_normalize(texts, form="NFKD"), pattern=r"\p{Mn}+", replacement=""
    )
    for step in steps:
        if step == "case":
            folded = pc.utf8_lower(folded)
        else:
            pattern, replacement = STEPS[step]
            folded = pc.replace_substring_regex(folded, pattern=pattern, replacement=replacement)
    return folded
