"""Key column, read once: 64-bit hashes to compare splits, and the characters of its keys."""

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
ROWS_A_KEY = 4  # least rows a key for which keys are made distinct before they are read


class Characters(NamedTuple):
    """Common properties of the spellings of keys.

    `used` says which bytes occur, bool [256]. `lengths` is the shortest and longest key in bytes.
    `leading_zeros` says whether a run of several digits begins with a zero; it is checked only
    if no other character lets spellings differ.
    """

    used: np.ndarray = np.zeros(256, bool)
    lengths: tuple[int, int] = (2**62, 0)
    leading_zeros: bool = False

    @property
    def alike(self) -> bool:
        """Return True if keys differ only if they name different things.

        Then they have letters of one case and digits, without zeros that could be left out.
        """
        return _one_case(self.used) and (
            not self.leading_zeros or self.lengths[0] == self.lengths[1]
        )

    def __or__(self, other: Characters) -> Characters:
        """Return the union of both."""
        lengths = (min(self.lengths[0], other.lengths[0]), max(self.lengths[1], other.lengths[1]))
        return Characters(
            self.used | other.used, lengths, self.leading_zeros or other.leading_zeros
        )


class Keys(NamedTuple):
    """Sorted hashes, uint64, of each split's non-null values, and the characters of the keys.

    The characters are of all keys, or of enough to show that spellings can differ.
    """

    hashes: dict[str, np.ndarray]
    characters: Characters


def key_batches(
    sides: Sides, column: str, side: SplitName, part: int = 0, parts: int = 1, repeats: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield a split's non-null keys in batches of (hash, key).

    Args:
        sides: to read.
        column: of text.
        side: the split to read.
        part: the part of the hash space to read.
        parts: number of parts of the hash space, so that the hashes of one fit into memory.
        repeats: True yields a key for each of its rows in the split, False once.
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
    """Scan the column once in every split; the arguments are those of `key_batches`."""
    hashes, characters = {}, Characters()
    for side in sides.relations:
        found = []
        for batch in key_batches(sides, column, side, part, parts, repeats):
            found.append(uint64(batch.column(0)))
            # else spellings can differ, regardless of the other keys
            if _one_case(characters.used):
                characters |= _characters(text_of(batch.column(1)))
        hashes[str(side)] = in_order(found)
    return Keys(hashes, characters)


def uint64(hashes: pa.UInt64Array) -> np.ndarray:
    """Return the values [N] of a column without nulls, not copied.

    Arrow's own `to_numpy` would import pandas.
    """
    return (
        np.frombuffer(hashes.buffers()[1], np.uint64, len(hashes), hashes.offset * 8)
        if len(hashes)
        else np.empty(0, np.uint64)
    )


def in_order(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the values of all parts, uint64 [N], sorted in place.

    A sorted copy would take another eight bytes a row.
    """
    values = np.concatenate([np.empty(0, np.uint64), *parts])
    values.sort()
    return values


def many_rows_each(sides: Sides, column: str) -> bool:
    """Return True if keys of train have so many rows each that making them distinct pays off.

    It pays off if it saves more time and memory than it costs.
    """
    key = ident(column)
    keys, num_rows = row(
        sides.connection,
        f"select approx_count_distinct({key}), count({key}) from {sides.relations['train']}",
    )
    return bool(keys * ROWS_A_KEY <= num_rows)


def _one_case(used: np.ndarray) -> bool:
    """Return True if these bytes are digits and letters of one case."""
    return not used[OTHERS].any() and not (used[LOWER].any() and used[UPPER].any())


def _characters(text: Text) -> Characters:
    """Return the characters of some keys."""
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
    """Return True if in any key a run of several digits begins with a zero."""
    if not used[NOT_DIGITS].any():  # a run is a whole text, and one check for each is enough
        first = text.offsets[:-1][np.diff(text.offsets) > 1]
        return bool((text.content[first] == ZERO).any())
    return bool(len(leading_zeros(text)))
