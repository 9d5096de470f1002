"""Strength of predictions, and what each row adds to its error.

Strength: 2 AUROC - 1 of a class, and the explained share of variance of a number: 0 for no
information, 1 for full information. Shapes: B rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


def gini(predicted: Floats, positive: Flags, codes: Codes | None = None) -> tuple[float, Floats]:
    """Return 2 AUROC - 1, and what each row adds to its error (DeLong's placements).

    Args:
        predicted: [B], or if there are codes, one for each code: few need to be sorted.
        positive: [B].
        codes: [B] of the rows.
    """
    _, place = np.unique(predicted, return_inverse=True)
    place = place if codes is None else place[codes]
    size = int(place.max()) + 1
    ups, downs = (
        np.bincount(place[rows], minlength=size).astype(np.float64)
        for rows in (positive, ~positive)
    )
    below_ups, below_downs = np.cumsum(ups) - 0.5 * ups, np.cumsum(downs) - 0.5 * downs
    num_up, num_down = ups.sum(), downs.sum()
    area = float((ups * below_downs).sum() / (num_up * num_down))
    moved = np.where(
        positive,
        (below_downs[place] / num_down - area) / num_up,
        ((num_up - below_ups[place]) / num_up - area) / num_down,
    )
    return 2 * area - 1, 2 * moved


def explained(predicted: Floats, target: Floats) -> tuple[float, Floats]:
    """Return the explained share of variance, and what each row takes from it."""
    spread = (target - target.mean()) ** 2
    total = spread.sum()
    if not total:
        return 0.0, np.zeros(len(target))
    missed = (target - predicted) ** 2
    share = 1 - missed.sum() / total
    return float(share), (missed - (1 - share) * spread) / total


def clustered_error(influence: Floats, group: Codes) -> float:
    """Return the standard error of a statistic: the influence of its rows, summed by group code."""
    rows = np.bincount(group)
    sums = np.bincount(group, weights=influence)[rows > 0]
    return float(np.sqrt((sums**2).sum()))


def as_score(strength: float, is_class: bool, named: bool = True, of: str = "") -> str:
    """Return a strength as the score that people know.

    >>> as_score(0.96, True), as_score(0.96, False), as_score(0.04, True, named=False)
    ('AUROC 0.98', 'R2 of ranks 0.96', '0.52')
    """
    shown = f"{(1 + strength) / 2:.2f}" if is_class else f"{strength:.2f}"
    return f"{'AUROC' if is_class else 'R2 of ranks'}{of} {shown}" if named else shown
