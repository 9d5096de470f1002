"""Rows and columns that say the same: repeats, equal columns, columns that are null together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.table_look import MissingBlock, Repeats
from training.data.look.coded_columns import CodedColumn

LEAST_REPEATS = 2.0  # rows for each value on average: else all pairs of columns are one to one


def find_repeats(columns: Sequence[CodedColumn]) -> Repeats:
    """Find rows that repeat an earlier row, and columns that repeat another.

    Digests of rows and columns are compared, never pairs, so the cost grows with rows times
    columns.
    """
    varied = [c for c in columns if c.distinct > 1]
    telling = [c for c in varied if c.present >= LEAST_REPEATS * c.distinct]
    equal = _alike(varied, CodedColumn.content)
    known = {frozenset(names) for names in equal}
    apart = [c for c in columns if c.kind != "id-like"]
    return Repeats(
        rows=repeated_rows(columns),
        apart_from_ids=repeated_rows(apart) if apart else 0,
        equal=equal,
        one_to_one=tuple(
            names for names in _alike(telling, CodedColumn.pattern) if frozenset(names) not in known
        ),
    )


def repeated_rows(columns: Sequence[CodedColumn]) -> int:
    """Return the number of rows that are equal to an earlier row in these columns."""
    key = np.zeros(len(columns[0].codes), dtype=np.uint64)
    for place, column in enumerate(columns):
        key ^= _mixed(column.codes.astype(np.uint64) + np.uint64((place + 1) << 32))
        key = _mixed(key)
    return len(key) - len(np.unique(key))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 mixed bits of each number.

    Source: Steele et al., Fast splittable pseudorandom number generators, 2014 (SplitMix64).
    """
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def find_missing(columns: Iterable[CodedColumn]) -> tuple[MissingBlock, ...]:
    """Find columns that are null in exactly the same rows, the largest blocks first."""
    holed = {c.name: c for c in columns if c.nulls > 0}
    found = _alike(
        holed.values(),
        lambda c: hashlib.blake2b(np.packbits(c.codes < 0).tobytes(), digest_size=16).digest(),
    )
    blocks = [MissingBlock(columns=names, rows=holed[names[0]].nulls) for names in found]
    return tuple(sorted(blocks, key=lambda b: -b.rows * len(b.columns)))


def _alike(
    columns: Iterable[CodedColumn], digest: Callable[[CodedColumn], bytes]
) -> tuple[tuple[str, ...], ...]:
    """Return the names of columns with equal digests, two and more, in the order of the table."""
    found: dict[bytes, list[str]] = {}
    for column in columns:
        found.setdefault(digest(column), []).append(column.name)
    return tuple(tuple(names) for names in found.values() if len(names) > 1)
