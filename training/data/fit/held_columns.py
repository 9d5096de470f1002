"""Moments, quantiles and counts of columns in memory: the engine's exact results in half its time.

Columns are copied out of the table one after the other. The sums are those of moments.py, of the
same integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.engine.in_memory import CODE, Rows
from training.data.engine.threads import at_once
from training.data.fit.moments import (
    BITS,
    LARGEST,
    Moments,
    between,
    exact_mean,
    refuse_extraordinary,
    unit_above,
)

BLOCK_ROWS = 16_384  # all intermediate values of so many rows stay in the processor's cache
# least values and most ranks for which a sample is looked at first; its size, and how far from its
# place a rank may lie there: six standard deviations
MANY_VALUES, FEW_RANKS = 2**17, 8
SAMPLE_VALUES, SAMPLE_MARGIN = 2**14, 400
WORD = 64  # bits; integers beyond lose digits in a sum


def held_moments(rows: Rows, columns: Sequence[str]) -> dict[str, Moments]:
    """Return `column_moments` of numeric columns in memory.

    Raises:
        DataError: a column holds an infinity, or a magnitude above 1e300.
    """
    places = _places(rows)
    # one for each thread: new memory costs more than filling it
    rooms = list[np.ndarray]()

    def moments(name: str) -> Moments:
        """Return the moments of one column."""
        room = rooms.pop() if rooms else np.empty(len(places))
        found = _moments(_present(rows.table[name].chunk(0), places, room), len(places))
        rooms.append(room)
        return found

    found = dict(zip(columns, at_once(moments, columns), strict=True))
    refuse_extraordinary(
        {c: (m.low, m.high) for c, m in found.items() if m.low is not None and m.high is not None}
    )
    return found


def held_quantiles(rows: Rows, column: str, levels: Sequence[float]) -> tuple[float, ...]:
    """Return `column_quantiles` of a column in memory that has at least one value."""
    places = _places(rows)
    values = _present(rows.table[column].chunk(0), places, np.empty(len(places)))
    positions = [(len(values) - 1) * level for level in levels]
    found = _at_ranks(
        values, sorted({rank for p in positions for rank in (math.floor(p), math.ceil(p))})
    )
    return tuple(
        between(found[math.floor(p)] + 0.0, found[math.ceil(p)] + 0.0, p - math.floor(p))
        for p in positions
    )


def _at_ranks(values: np.ndarray, ranks: Sequence[int]) -> dict[int, float]:
    """Return the values [present] at a few ranks, by rank; the values may be reordered.

    A sample says between which two values a rank must lie nearly surely. Those between them are
    few, and only they are divided further; where the sample misses a rank, all are.
    """
    if len(values) < MANY_VALUES or len(ranks) > FEW_RANKS:
        values.partition(ranks)
        return {rank: float(values[rank]) for rank in ranks}
    sample, found = np.sort(values[:: len(values) // SAMPLE_VALUES]), dict[int, float]()
    for rank in ranks:
        if rank in found:
            continue
        place = min(round(rank / len(values) * len(sample)), len(sample) - 1)
        low = sample[max(0, place - SAMPLE_MARGIN)]
        high = sample[min(len(sample) - 1, place + SAMPLE_MARGIN)]
        below, inside = _between(values, low, high)
        here = [r for r in ranks if below <= r < below + len(inside)]
        if rank not in here:
            values.partition(ranks)
            return {r: float(values[r]) for r in ranks}
        inside.partition([r - below for r in here])
        found |= {r: float(inside[r - below]) for r in here}
    return found


def _between(values: np.ndarray, low: float, high: float) -> tuple[int, np.ndarray]:
    """Return the number of values below `low`, and the values from `low` to `high`."""
    below, inside = 0, []
    for start in range(0, len(values), BLOCK_ROWS):
        block = values[start : start + BLOCK_ROWS]
        chosen = block >= low
        below += len(block) - int(np.count_nonzero(chosen))
        chosen &= block <= high
        inside.append(block[chosen])
    return below, np.concatenate(inside)


def held_counts(rows: Rows, column: str) -> tuple[dict[str, int], int] | None:
    """Count rows by text, and rows without one, of a dictionary-encoded column in memory.

    Return None if the column is not dictionary-encoded.
    """
    values = rows.table[column].chunk(0)
    if not isinstance(values, pa.DictionaryArray):
        return None
    codes = np.asarray(pc.fill_null(values.indices, len(values.dictionary)))[_places(rows)]
    counts = np.bincount(codes, minlength=len(values.dictionary) + 1).tolist()
    return {
        text: count
        for text, count in zip(values.dictionary.to_pylist(), counts, strict=False)
        if count
    }, counts[-1]


def _places(rows: Rows) -> np.ndarray:
    """Return the indices of the rows of the table to use, int64, ascending."""
    return (
        np.arange(len(rows.table))
        if rows.code is None
        else np.flatnonzero(rows.table[CODE].to_numpy() == rows.code)
    )


def _present(values: pa.DoubleArray, places: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Copy the values at these indices that are not null, float64 [present], into `room`."""
    if values.null_count:
        places = places[values.is_valid().to_numpy(zero_copy_only=False)[places]]
    numbers = np.frombuffer(values.buffers()[1], np.float64, len(values), values.offset * 8)
    # all are within bounds; with "raise" NumPy would write into a copy first
    return np.take(numbers, places, out=room[: len(places)], mode="clip")


def _moments(values: np.ndarray, total: int) -> Moments:
    """Return the moments of the values [present] of this number of rows.

    Mean and deviation are absent if `refuse_extraordinary` would refuse the values.
    """
    present = len(values)
    if not present:
        return Moments(0, total, None, None, None, None)
    # + 0.0: a -0.0 would reveal the row order
    low, high = (float(values.min()) + 0.0, float(values.max()) + 0.0)
    if not max(abs(low), abs(high)) <= LARGEST:
        return Moments(present, total - present, low, high, None, None)
    unit = unit_above(max(abs(low), abs(high)))
    mean = exact_mean(_exact_sum(values, 0.0, unit), present, unit)
    spread = unit_above(max(high - mean, mean - low))
    std = spread * math.sqrt(
        exact_mean(_exact_sum(values, mean, spread, squared=True), present, 1.0)
    )
    return Moments(present, total - present, low, high, mean, std)


def _exact_sum(values: np.ndarray, center: float, unit: float, squared: bool = False) -> int:
    """Return the sum of (values - center) / unit, or of its squares, in units of 2^-62.

    Each term is rounded to an integer and must stay within [-2, 2].
    """
    total = 0
    for start in range(0, len(values), BLOCK_ROWS):
        scaled = (values[start : start + BLOCK_ROWS] - center) / unit
        if squared:
            scaled *= scaled
        scaled *= 2.0**BITS
        total += _sum_of_integers(_rounded(scaled))
    return total


def _rounded(values: np.ndarray) -> np.ndarray:
    """Return the nearest integers, with halves away from zero like the engine's `round`.

    `np.round` rounds halves to even.
    """
    whole: np.ndarray = np.trunc(values)
    values -= whole  # exact, as is doubling it
    values += values
    whole += np.trunc(values, out=values)
    return whole


def _sum_of_integers(values: np.ndarray) -> int:
    """Return the exact sum of up to `BLOCK_ROWS` integers below 2^63 that are given as floats.

    The last 64 bits come from integers, which wrap; the others come from floats.
    """
    last = int(values.astype(np.int64).sum())
    beyond = round((float(values.sum()) - last) / 2.0**WORD)
    return last + (beyond << WORD)
