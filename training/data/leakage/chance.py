"""Probability of a count by chance: the only place where findings are compared with their null.

It uses `scipy.special` alone: the import of `scipy.stats` takes a second in every process that
prepares or trains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TAIL_SHARE, TAIL_ROWS = 0.05, 20  # of a sample's lowest values, from which its tail is extrapolated


def binomial_tail(count: int, total: int, rate: float) -> float:
    """Return the probability of at least `count` successes in `total` trials of a known rate.

    >>> binomial_tail(0, 10, 0.1)
    1.0
    >>> round(binomial_tail(2, 2, 0.1), 3)
    0.01
    """
    from scipy.special import bdtrc

    if count > total:
        return 0.0
    return float(bdtrc(count - 1, total, min(1.0, max(0.0, rate)))) if count > 0 else 1.0


def tail_above(count: int, total: int, null_count: int, null_total: int) -> float:
    """Return the probability of at least `count` in `total` when the rate is estimated.

    The estimate is `null_count` in `null_total` (beta-binomial, Jeffreys).

    >>> tail_above(3, 1000, 0, 10) > 0.01  # ten rows say little about a rate
    True
    >>> tail_above(30, 1000, 0, 10_000) < 1e-6
    True
    """
    from scipy.special import betaln

    if count <= 0:
        return 1.0
    a, b = null_count + 0.5, max(null_total - null_count, 0) + 0.5

    def chance_of(k: NDArray[np.int64]) -> float:
        """Return the probability that the count is one of `k`."""
        return float(
            np.exp(
                betaln(k + a, total - k + b)
                - betaln(a, b)
                - np.log1p(total)
                - betaln(total - k + 1, k + 1)
            ).sum()
        )

    if total - count < count:
        return min(1.0, chance_of(np.arange(count, total + 1)))
    # the shorter sum: counts are small where totals are millions
    return max(0.0, 1 - chance_of(np.arange(count)))


def lower_tail(value: float, sample: NDArray[np.float64]) -> float:
    """Return the share of values below a value that is lower than the whole sample.

    It extrapolates the power law by which the sample's own share falls.

    The power is Hill's estimate from the lowest values minus two standard errors, so that the share
    is too large rather than too small. Return 1 if the sample is too small, or has too few
    different values to say anything about the range between them.

    Args:
        value: above 0.
        sample: values above 0; infinite ones count for the share alone.

    Source: Hill 1975, A simple general approach to inference about the tail of a distribution (of 1
        / value).

    >>> sample = np.linspace(0.001, 1, 1000) ** (1 / 4)  # a share of x⁴ lies below x
    >>> 1e-8 < lower_tail(0.01, sample) < 1e-5
    True
    """
    number = max(TAIL_ROWS, round(TAIL_SHARE * len(sample)))
    if (
        len(sample) < 5 * TAIL_ROWS
        or not np.isfinite(lowest := np.sort(sample)[: number + 1]).all()
    ):
        return 1.0
    if len(np.unique(lowest)) <= number / 2:
        return 1.0
    power = (
        number
        / max(float(np.log(lowest[-1] / lowest[:-1]).sum()), 1e-9)
        * (1 - 2 / np.sqrt(number))
    )
    return float(min(1.0, number / len(sample) * (value / lowest[-1]) ** power))
