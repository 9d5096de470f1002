"""What the order of rows in the file says: columns that rise, a label that moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.table_look import OrderLook
from training.data.look.coded_columns import CodedColumn

BLOCKS = 10
CHANCE = 6.0  # standard deviations by which blocks of rows may differ by luck
LEAST = 20  # rows: in fewer a column rises by luck


def look_along(columns: Sequence[CodedColumn], target: NDArray[np.float64] | None) -> OrderLook:
    """Return what the order of the rows says.

    Args:
        columns: of the sample, rows in the order of the file.
        target: the label of each row as a number, NaN where it is null; none without a label.
    """
    turns = {c.name: _direction(c) for c in columns if c.numbers is not None and c.distinct > 1}
    blocks = block_means(target) if target is not None else ()
    return OrderLook(
        rising=tuple(n for n, d in turns.items() if d > 0),
        falling=tuple(n for n, d in turns.items() if d < 0),
        label_blocks=blocks,
        label_moves=target is not None and moves(target),
    )


def _direction(column: CodedColumn) -> int:
    """Return 1 if no number is below an earlier one, -1 if none is above, else 0."""
    numbers = column.numbers
    if numbers is None:
        return 0
    present = numbers[column.codes >= 0]
    if len(present) < LEAST:
        return 0
    before, after = present[:-1], present[1:]
    return 1 if bool(np.all(before <= after)) else -1 if bool(np.all(before >= after)) else 0


def block_means(target: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the mean of the label in ten consecutive blocks of rows; none of fewer than 20."""
    known = target[np.isfinite(target)]
    if len(known) < LEAST:
        return ()
    return tuple(float(np.mean(block)) for block in np.array_split(known, BLOCKS))


def moves(target: NDArray[np.float64]) -> bool:
    """Return True if the label differs between blocks of rows by more than luck.

    Source: Kruskal and Wallis, Use of ranks in one-criterion variance analysis, 1952; with ties.
    """
    known = target[np.isfinite(target)]
    if len(known) < 5 * BLOCKS:
        return False
    _, codes, counts = np.unique(known, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return False
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[codes]
    spread = float(np.var(ranks))
    middle = (len(known) + 1) / 2
    between = sum(len(b) * (float(np.mean(b)) - middle) ** 2 for b in np.array_split(ranks, BLOCKS))
    statistic, degrees = between / spread, BLOCKS - 1
    return bool((statistic - degrees) / (2 * degrees) ** 0.5 > CHANCE)
