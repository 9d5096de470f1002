"""A key column read once: 64-bit hashes by which sides are compared, and which characters its keys are made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from training.data.engine import ident, row
from training.data.leakage.sides import Sides

BATCH_ROWS = 2**18
ROWS_A_KEY = 4  # from which on keys are made distinct before they are read
DIGITS, LOWER, UPPER = range(48, 58), range(97, 123), range(65, 91)
IS_DIGIT = np.isin(np.arange(256), DIGITS)


class Keys(NamedTuple):
    """Hashes uint64 of each side's non-null values, sorted; and what their spellings have in common.

    `bytes_used`: how often each byte occurs, int [256]; `lengths`: shortest and longest key in bytes; `leading_zeros`:
    whether a run of digits of several begins with a zero.
    """

    hashes: dict[str, np.ndarray]
    bytes_used: np.ndarray
    lengths: tuple[int, int]
    leading_zeros: bool

    @property
    def spelt_alike(self) -> bool:
        """Whether two keys can only differ in what they name: letters of one case and digits, without zeros that could be left out."""
        used = set(np.flatnonzero(self.bytes_used).tolist())
        one_case = not (used & set(LOWER) and used & set(UPPER))
        return used <= {*DIGITS, *LOWER, *UPPER} and one_case and (not self.leading_zeros or self.lengths[0] == self.lengths[1])


def read_keys(sides: Sides, column: str, part: int = 0, parts: int = 1, repeats: bool = True) -> Keys:
    """One scan of the column on every side.

    Args:
        sides: to read.
        column: of text.
        part: which part of the hash space to read.
        parts: into how many it is cut, so that the hashes of one fit into memory.
        repeats: whether a key counts as often as it stands on a side. If not, keys of several rows are read once, where that saves work.
    """
    key, value = ident(column), f"hash({ident(column)})"
    where = f"{key} is not null" + (f" and {value} % {parts} = {part}" if parts > 1 else "")
    hashes, used, lengths, zeros = {}, np.zeros(256, np.int64), (2**62, 0), False
    for side, relation in sides.relations.items():
        found = [np.empty(0, np.uint64)]
        each = "" if repeats or _few_rows_each(sides, key, relation) else "distinct "
        reader = sides.connection.sql(f"select hash(k) as h, k from (select {each}{key} as k from {relation} where {where})").to_arrow_reader(BATCH_ROWS)
        for batch in reader:
            found.append(batch.column(0).to_numpy(zero_copy_only=False))
            counts, sizes, some = _characters(batch.column(1))
            used += counts
            lengths, zeros = (min(lengths[0], sizes[0]), max(lengths[1], sizes[1])), zeros or some
        hashes[str(side)] = np.sort(np.concatenate(found))
    return Keys(hashes, used, lengths, zeros)


def _few_rows_each(sides: Sides, key: str, relation: str) -> bool:
    """Whether most keys stand on few rows, so that to make them distinct would cost more time and memory than it saves."""
    keys, num_rows = row(sides.connection, f"select approx_count_distinct({key}), count({key}) from {relation}")
    return bool(keys * ROWS_A_KEY > num_rows)


def _characters(texts: pa.StringArray) -> tuple[np.ndarray, tuple[int, int], bool]:
    """Of a batch of texts without nulls: how often each byte occurs, shortest and longest, and whether zeros lead other digits."""
    if not len(texts):
        return np.zeros(256, np.int64), (2**62, 0), False
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    sizes = np.diff(offsets)
    counts = np.bincount(content, minlength=256)
    return counts, (int(sizes.min()), int(sizes.max())), bool(counts[DIGITS[0]]) and _leading_zeros(content, offsets - offsets[0], counts)


def _leading_zeros(content: np.ndarray, offsets: np.ndarray, counts: np.ndarray) -> bool:
    """Whether in any of the texts [N], one after the other in `content`, a run of several digits begins with a zero."""
    if counts[DIGITS].sum() == len(content):  # nothing but digits: a run is a whole text, and one look at each will do
        first = offsets[:-1][np.diff(offsets) > 1]
        return bool((content[first] == DIGITS[0]).any())
    zeros = np.flatnonzero(content[:-1] == DIGITS[0])
    starts = np.zeros(len(content) + 1, bool)
    starts[offsets] = True
    leads = starts[zeros] | ~IS_DIGIT[content[zeros - 1]]
    return bool((leads & ~starts[zeros + 1] & IS_DIGIT[content[zeros + 1]]).any())
