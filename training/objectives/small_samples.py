"""Intervals for few rows, and for a score at its bound, where resamples do not differ.

Rows of one group are not independent, so groups are counted: for AUROC the groups with a positive
or a negative row, for accuracy all groups.

Source: AUROC by Newcombe 2006 (part 2, method 5: a score interval over Hanley and McNeil's
variance); proportions by Clopper and Pearson 1934; expansion of percentile intervals by Hesterberg
2015, sec. 4.4.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, norm, t

from schemas.records import Interval


def expanded_tail(confidence: float, units: int) -> float:
    """Return the fraction of resamples beyond each end; below (1 - confidence) / 2 for few units.

    >>> round(expanded_tail(0.95, 10_000), 3), round(expanded_tail(0.95, 10), 3)
    (0.025, 0.009)
    """
    if units < 2:
        return 0.0
    return float(norm.cdf(-math.sqrt(units / (units - 1)) * t.ppf((1 + confidence) / 2, units - 1)))


def proportion_interval(share: float, units: int, confidence: float) -> tuple[float, float]:
    """Compute the exact interval of a fraction of independent units.

    >>> [round(bound, 3) for bound in proportion_interval(1.0, 3, 0.95)]
    [0.292, 1.0]
    """
    hits, tail = share * units, (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, units - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, units - hits)) if hits < units else 1.0
    return low, high


def auroc_interval(
    value: float, positives: int, negatives: int, confidence: float
) -> tuple[float, float]:
    """Compute the score interval of an area under the ROC curve, with a width also at 0 and 1.

    >>> ([round(bound, 3) for bound in auroc_interval(1.0, 1, 2, 0.95)],
    ...     [round(b, 3) for b in auroc_interval(0.8, 50, 50, 0.95)])
    ([0.283, 1.0], [0.697, 0.871])
    """
    z, half = float(norm.ppf((1 + confidence) / 2)), (positives + negatives) / 2 - 1

    def excess(area: float) -> float:
        variance = (
            area
            * (1 - area)
            * (1 + half * (1 - area) / (2 - area) + half * area / (1 + area))
            / (positives * negatives)
        )
        return (value - area) ** 2 - z * z * variance

    near = 1e-9  # excess is 0 at 0 and 1
    low = float(brentq(excess, 0.0, value - near)) if value > 2 * near else 0.0
    high = float(brentq(excess, value + near, 1.0)) if value < 1 - 2 * near else 1.0
    return low, high


def at_least(
    found: Interval, metric: str, target: np.ndarray, units: np.ndarray, confidence: float, few: int
) -> Interval:
    """Widen the interval to the exact one if units are few or resamples do not differ.

    Metrics without an exact interval are unchanged.

    Args:
        found: From the bootstrap.
        metric: Its name.
        target: Class indices or values [N].
        units: Unit of each row [N].
        confidence: Coverage of an interval, a fraction.
        few: From this number of units on the bootstrap is enough.
    """
    if found.value is None or metric not in ("auroc", "accuracy") or target.ndim > 1:
        return found
    counts = (
        [len(np.unique(units[target == c])) for c in (0, 1)]
        if metric == "auroc"
        else [int(units.max()) + 1]
    )
    if min(counts) >= few and found.low is not None:
        return found
    exact = (
        auroc_interval(found.value, counts[1], counts[0], confidence)
        if metric == "auroc"
        else proportion_interval(found.value, counts[0], confidence)
    )
    low, high = (
        exact
        if found.low is None or found.high is None
        else (min(found.low, exact[0]), max(found.high, exact[1]))
    )
    return Interval(value=found.value, low=low, high=high)
