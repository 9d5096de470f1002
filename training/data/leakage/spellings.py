"""Canonical spellings of keys: what is left of a text without case, spaces, punctuation or leading zeros.

Texts of ASCII, which keys mostly are, are folded as one array of bytes in NumPy; others by Arrow's regular expressions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGITS, LOWER, UPPER = range(48, 58), range(97, 123), range(65, 91)
ZERO = 48
BYTES = np.arange(256)
IS_DIGIT = np.isin(BYTES, DIGITS)
IS_SPACE = np.isin(BYTES, list(b"\t\n\f\r "))
IS_PLAIN = np.isin(BYTES, [*DIGITS, *LOWER, *UPPER]) | (BYTES > 127)  # bytes of other scripts are Arrow's to judge
LOWERED = np.where(np.isin(BYTES, UPPER), BYTES + 32, BYTES).astype(np.uint8)

STEPS = {  # as (pattern, replacement) of RE2
    "spaces": (r"\s+", ""),
    "punctuation": (r"[^\p{L}\p{N}]+", ""),
    "zeros": (r"(^|[^0-9])0+([0-9])", r"\1\2"),
}
SPELLINGS = {  # what two keys may differ in → the steps that take it away, in this order; strongest first
    "case, spaces, punctuation and leading zeros": ("case", "zeros", "punctuation"),
    "case, spaces and punctuation": ("case", "punctuation"),
    "case, spaces and leading zeros": ("case", "spaces", "zeros"),
    "case and spaces": ("case", "spaces"),
    "spaces": ("spaces",),
}


class Text(NamedTuple):
    """Texts one after the other: `content` uint8 [bytes], `offsets` int32 [N + 1] into it, as Arrow has them."""

    content: np.ndarray
    offsets: np.ndarray

    def keeping(self, keep: np.ndarray) -> Text:
        """The same texts with only those bytes for which `keep`, bool [bytes], holds."""
        kept_before = np.zeros(len(keep) + 1, np.int32)
        np.cumsum(keep, out=kept_before[1:])
        return Text(self.content[keep], kept_before[self.offsets])

    def starts(self) -> np.ndarray:
        """Where a text starts or the last one ends, bool [bytes + 1]."""
        starts = np.zeros(len(self.content) + 1, bool)
        starts[self.offsets] = True
        return starts


def text_of(texts: pa.StringArray) -> Text:
    """The bytes of texts without nulls, not copied."""
    if not len(texts):
        return Text(np.empty(0, np.uint8), np.zeros(1, np.int32))
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Text(content, offsets - offsets[0])


def leading_zeros(text: Text) -> np.ndarray:
    """Positions, int [zeros], at which a run of digits goes on after nothing but zeros: `0` in `A07`, not in `A70`, `A0` or `A0-7`."""
    zeros = np.flatnonzero(text.content == ZERO)
    if not len(zeros):
        return zeros
    starts, digit = text.starts(), np.append(IS_DIGIT[text.content], False)
    at_start = starts[zeros]
    first_of_run = at_start | np.append(True, text.content != ZERO)[zeros]
    leads = (at_start | ~digit[zeros - 1])[first_of_run][np.cumsum(first_of_run) - 1]
    leading: np.ndarray = zeros[leads & ~starts[zeros + 1] & digit[zeros + 1]]
    return leading


def fold(texts: pa.StringArray, spelling: str) -> pa.StringArray:
    """Texts [N] in a canonical spelling.

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
    return pc.replace_with_mask(folded, mask, _fold_unicode(texts.filter(mask), SPELLINGS[spelling]))


def _fold_bytes(text: Text, steps: tuple[str, ...]) -> pa.StringArray:
    """ASCII texts without what the steps take away; of others, something that is replaced afterwards."""
    for step in steps:
        if step == "case":
            text = text._replace(content=LOWERED[text.content])
        elif step == "spaces":
            text = text.keeping(~IS_SPACE[text.content])
        elif step == "punctuation":
            text = text.keeping(IS_PLAIN[text.content])
        elif len(zeros := leading_zeros(text)):
            keep = np.ones(len(text.content), bool)
            keep[zeros] = False
            text = text.keeping(keep)
    offsets = pa.py_buffer(np.ascontiguousarray(text.offsets))
    return pa.StringArray.from_buffers(len(text.offsets) - 1, offsets, pa.py_buffer(np.ascontiguousarray(text.content)))


def _fold_unicode(texts: pa.StringArray, steps: tuple[str, ...]) -> pa.StringArray:
    """Texts with compatibility forms (full width, ligatures, superscripts) as plain characters, without accents and what the steps take away."""
    folded = pc.replace_substring_regex(pc.utf8_normalize(texts, form="NFKD"), pattern=r"\p{Mn}+", replacement="")
    for step in steps:
        if step == "case":
            folded = pc.utf8_lower(folded)
        else:
            pattern, replacement = STEPS[step]
            folded = pc.replace_substring_regex(folded, pattern=pattern, replacement=replacement)
    return folded
