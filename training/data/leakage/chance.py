"""How likely a count is by chance: the one place where findings meet their null."""

from __future__ import annotations

from scipy.stats import betabinom, binom


def binomial_tail(count: int, total: int, rate: float) -> float:
    """Chance of at least `count` successes in `total` trials of a known rate.

    >>> binomial_tail(0, 10, 0.1)
    1.0
    >>> round(binomial_tail(2, 2, 0.1), 3)
    0.01
    """
    return float(binom.sf(count - 1, total, min(1.0, max(0.0, rate)))) if count > 0 else 1.0


def tail_above(count: int, total: int, null_count: int, null_total: int) -> float:
    """Chance of at least `count` in `total` when the rate is only known from `null_count` in `null_total` (beta-binomial, Jeffreys).

    >>> tail_above(3, 1000, 0, 10) > 0.01  # ten rows say little about a rate
    True
    >>> tail_above(30, 1000, 0, 10_000) < 1e-6
    True
    """
    if count <= 0:
        return 1.0
    return float(betabinom.sf(count - 1, total, null_count + 0.5, max(null_total - null_count, 0) + 0.5))
