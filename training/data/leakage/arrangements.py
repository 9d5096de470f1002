"""Exact test whether held-out rows are too few to show skill, from the labels before any training.

If scores say nothing about the labels, each arrangement of the labels over the rows is equally
likely. Even perfect scores then have a p-value of 1 over the number of different arrangements: 1/3
for 3 rows with 1 positive. Rows of one group are not independent draws, so whole groups are
arranged.

Source: permutation tests as in Fisher 1935; Good 2005, ch. 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

CONFIDENCE = 0.95  # if none is declared
FEWEST_OF_CLASS = 5  # test rows or groups of the rarer of two classes
RARE_UNITS = 100  # from here on fewer than FEWEST_OF_CLASS are below 5 %
ENOUGH_UNITS = 40  # two classes in any proportion then have at least 40 arrangements


def num_arrangements(counts: Iterable[int]) -> float:
    """Return the number of different orders of units, given how many are alike.

    >>> num_arrangements([1, 2]), num_arrangements([4, 4]), num_arrangements([1, 1, 1])
    (3.0, 70.0, 6.0)
    """
    found = list(counts)
    logarithm = math.lgamma(sum(found) + 1) - sum(math.lgamma(n + 1) for n in found)
    return float(round(math.exp(logarithm))) if logarithm < 30 else math.inf


def tail(confidence: float) -> float:
    """Return the largest p-value of a one-sided claim at a confidence.

    At 95 % it is 0.025, like one end of a two-sided interval.

    >>> round(tail(0.95), 6)
    0.025
    """
    return (1 - confidence) / 2


def shortage(counts: Iterable[int], unit: str, confidence: float = CONFIDENCE) -> str:
    """Say why no scores could show skill on these units; empty if some could.

    Args:
        counts: Number of units with each different label (or labels of a whole group).
        unit: `row`, `group` or `document`, for the sentence.
        confidence: Share that an interval covers.

    >>> shortage([1, 2], "row")
    '3 rows can be ordered in 3 ways, so that chance alone orders them best with p = 0.33, and 0.025 is needed'
    >>> shortage([4, 4], "row")
    ''
    """  # noqa: E501
    found = [n for n in counts if n]
    ways = num_arrangements(found)
    if 1 / ways <= tail(confidence) * (1 + 1e-9):
        return ""
    units, orders = sum(found), int(ways)
    return (
        f"{units} {unit}{'' if units == 1 else 's'} can be ordered in {orders}"
        f" way{'' if orders == 1 else 's'}, so that chance alone orders them best with p ="
        f" {1 / ways:.2g}, and {tail(confidence):.2g} is needed"
    )


def shortage_of_class(fewest: int, units: int, what: str) -> str:
    """Say that the rarer of two classes has too few test rows for a claim; empty if it has enough.

    A metric of so few rows moves with each of them, however many rows the other class has. Small
    tables are left to `shortage`, which counts exactly.

    >>> shortage_of_class(3, 15_000, "positives")
    '3 positives in test: no claim can be made, 5 are needed'
    >>> shortage_of_class(3, 40, "positives"), shortage_of_class(9, 15_000, "positives")
    ('', '')
    """
    if fewest >= FEWEST_OF_CLASS or units < RARE_UNITS:
        return ""
    return f"{fewest} {what} in test: no claim can be made, {FEWEST_OF_CLASS} are needed"


def shortage_of_signs(units: int, unit: str, confidence: float) -> str:
    """Say the same of paired losses, whose smallest p-value is one half to the power of the units.

    >>> shortage_of_signs(3, "document", 0.95)
    '3 documents that all are better have p = 0.12 by chance alone, and 0.025 is needed'
    """
    if 0.5**units <= tail(confidence) * (1 + 1e-9):
        return ""
    return (
        f"{units} {unit}{'' if units == 1 else 's'} that all are better have p = {0.5**units:.2g}"
        f" by chance alone, and {tail(confidence):.2g} is needed"
    )
