"""Best constant predictions of losses that have no formula in the class shares alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def focal_shares(shares: Sequence[float], gamma: float) -> tuple[float, ...]:
    """Return the probabilities with the least mean focal loss over rows of these class shares.

    With `f(p) = -(1 - p)^gamma log p`, which is convex, they solve `share_c f'(p_c) = -m` with one
    multiplier m for all classes, and add up to 1. They are less extreme than the shares; gamma 0
    gives the shares.

    >>> [round(p, 3) for p in focal_shares((0.9, 0.1), 2.0)], focal_shares((0.75, 0.25), 0.0)
    ([0.694, 0.306], (0.75, 0.25))
    """
    from scipy.optimize import brentq

    if not gamma:
        return tuple(shares)
    mass = np.asarray(shares, dtype=np.float64)

    def probabilities(log_multiplier: float) -> np.ndarray:
        """Return each class's p, by bisection of its log odds; it falls as the multiplier grows."""
        low, high = np.full(len(mass), -80.0), np.full(len(mass), 80.0)
        for _ in range(80):
            middle = (low + high) / 2
            steep = _log_slope(middle, gamma) + np.log(mass) > log_multiplier
            low, high = np.where(steep, middle, low), np.where(steep, high, middle)
        return np.asarray(1 / (1 + np.exp(-(low + high) / 2)))

    def excess(log_multiplier: float) -> float:
        return float(probabilities(log_multiplier).sum()) - 1

    found = probabilities(brentq(excess, -200.0, 100.0, xtol=1e-13, rtol=1e-14))
    return tuple(float(p) for p in found / found.sum())


def _log_slope(odds: np.ndarray, gamma: float) -> np.ndarray:
    """Return log(-f'(p)) at log odds: `(1-p)^(gamma-1) ((1-p)/p - gamma log p)`."""
    log_p, log_q = -np.logaddexp(0, -odds), -np.logaddexp(0, odds)
    return np.asarray((gamma - 1) * log_q + np.logaddexp(log_q - log_p, np.log(-gamma * log_p)))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """Return the smallest value that rows of at least a share `level` of the weight do not exceed.

    It has the least weighted pinball loss of all constants.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, level * reached[-1]))
    return float(values[order[place]])
