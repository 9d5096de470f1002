"""A key column read once: 64-bit hashes by which sides are compared, and which characters its keys
are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from schemas.config import SplitName
from training.data.engine.engine import ident, row
from training.data.leakage.sides import Sides
from training.data.leakage.spellings import (
    DIGITS,
    IS_DIGIT,
    LOWER,
    UPPER,
    ZERO,
    Text,
    leading_zeros,
    text_of,
)

BATCH_ROWS = 2**15
NOT_DIGITS, OTHERS = ~IS_DIGIT, ~np.isin(np.arange(256), [*DIGITS, *LOWER, *UPPER])
ROWS_A_KEY = 4  # from which on keys are made distinct before they are read


class Characters(NamedTuple):
    """What the spellings of keys have in common.

    `used`: which bytes occur, bool [256]; `lengths`: shortest and longest key in bytes;
    `leading_zeros`: whether a run of digits of several begins with a zero, which is looked for only
    where no other character lets spellings differ.
    """

    used: np.ndarray = np.zeros(256, bool)
    lengths: tuple[int, int] = (2**62, 0)
    leading_zeros: bool = False

    @property
    def alike(self) -> bool:
        """Whether two keys can only differ in what they name: letters of one case and digits,
        without zeros that could be left out.
        """
        return _one_case(self.used) and (
            not self.leading_zeros or self.lengths[0] == self.lengths[1]
        )

    def __or__(self, other: Characters) -> Characters:
        """Those of both."""
        lengths = (min(self.lengths[0], other.lengths[0]), max(self.lengths[1], other.lengths[1]))
        return Characters(
            self.used | other.used, lengths, self.leading_zeros or other.leading_zeros
        )


class Keys(NamedTuple):
    """Hashes uint64 of each side's non-null values, sorted, and the characters of all, or of so
    many that they let spellings differ.
    """

    hashes: dict[str, np.ndarray]
    characters: Characters


def key_batches(
    sides: Sides, column: str, side: SplitName, part: int = 0, parts: int = 1, repeats: bool = True
) -> Iterator[pa.RecordBatch]:
    """A side's non-null keys in batches of (hash, key).

    Args:
        sides: to read.
        column: of text.
        side: which.
        part: which part of the hash space to read.
        parts: into how many it is cut, so that the hashes of one fit into memory.
        repeats: whether a key comes as often as it stands on the side, or once.
    """
    key, relation = ident(column), sides.relations[side]
    where = f"{key} is not null" + (f" and hash({key}) % {parts} = {part}" if parts > 1 else "")
    each = "" if repeats else "distinct "
    yield from sides.connection.sql(
        f"select hash(k), k from (select {each}{key} as k from {relation} where {where})"
    ).to_arrow_reader(BATCH_ROWS)


def read_keys(
    sides: Sides, column: str, part: int = 0, parts: int = 1, repeats: bool = True
) -> Keys:
    """One scan of the column on every side; the arguments are those of `key_batches`."""
    hashes, characters = {}, Characters()
    for side in sides.relations:
        found = []
        for batch in key_batches(sides, column, side, part, parts, repeats):
            found.append(uint64(batch.column(0)))
            # else spellings can differ, whatever the other keys are made of
            if _one_case(characters.used):
                characters |= _characters(text_of(batch.column(1)))
        hashes[str(side)] = in_order(found)
    return Keys(hashes, characters)


def uint64(hashes: pa.UInt64Array) -> np.ndarray:
    """The values [N] of a column without nulls, not copied; Arrow's own `to_numpy` would import
    pandas.
    """
    return (
        np.frombuffer(hashes.buffers()[1], np.uint64, len(hashes), hashes.offset * 8)
        if len(hashes)
        else np.empty(0, np.uint64)
    )


def in_order(parts: Iterable[np.ndarray]) -> np.ndarray:
    """The values of all parts, uint64 [N], sorted in place: a sorted copy would be another eight
    bytes a row.
    """
    values = np.concatenate([np.empty(0, np.uint64), *parts])
    values.sort()
    return values


def many_rows_each(sides: Sides, column: str) -> bool:
    """Whether keys of train stand on so many rows that making them distinct saves more time and
    memory than it costs.
    """
    key = ident(column)
    keys, num_rows = row(
        sides.connection,
        f"select approx_count_distinct({key}), count({key}) from {sides.relations['train']}",
    )
    return bool(keys * ROWS_A_KEY <= num_rows)


def _one_case(used: np.ndarray) -> bool:
    """Whether these bytes are digits and letters of one case."""
    return not used[OTHERS].any() and not (used[LOWER].any() and used[UPPER].any())


def _characters(text: Text) -> Characters:
    """Of some keys."""
    sizes = np.diff(text.offsets)
    if not len(sizes):
        return Characters()
    used = np.zeros(256, bool)
    used[text.content] = True
    return Characters(
        used,
        (int(sizes.min()), int(sizes.max())),
        bool(used[ZERO]) and _one_case(used) and _has_leading_zeros(text, used),
    )


def _has_leading_zeros(text: Text, used: np.ndarray) -> bool:
    """Whether in any key a run of several digits begins with a zero."""
    if not used[NOT_DIGITS].any():  # a run is a whole text, and one look at each will do
        first = text.offsets[:-1][np.diff(text.offsets) > 1]
        return bool((text.content[first] == ZERO).any())
    return bool(len(leading_zeros(text)))
