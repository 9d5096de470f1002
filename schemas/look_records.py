"""Records of looks: how many models were scored on the same held-out rows, and the claimed score.

A score that the best of several models has on the rows that chose it is too high. How much so
depends on the number of models, so each scoring is counted (training/run/look_ledger.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from schemas.comparison_records import Interval
from schemas.references import Record


class Look(Record):
    """Scoring of a model on held-out rows, and the number of looks at these rows so far.

    `rows_sha256`: digest of the ids of the rows. `number`: different models that were scored on
    these rows, this one included. `optimism`: upper bound of how far the best of so many equally
    good models is expected to score above its true score, in units of the metric; null where its
    standard error is unknown.
    """

    rows_sha256: str
    metric: str
    number: int
    optimism: float | None = None

    @property
    def sentence(self) -> str:
        """Count and bound in plain words; empty at the first look.

        >>> Look(rows_sha256="0" * 64, metric="auroc", number=14, optimism=0.0331).sentence
        'look 14 at these rows: the best of 14 equal models may score up to 0.0331 too well'
        """
        if self.number < 2:
            return ""
        bound = "an unknown amount" if self.optimism is None else f"up to {self.optimism:.4f}"
        return (
            f"look {self.number} at these rows: the best of {self.number} equal models may score"
            f" {bound} too well"
        )


class Window(Record):
    """Rows that a claim rests on, of a split whose windows move on (`split.roll`).

    `after`, `until`: times in units of `__time`; test rows after the one, up to the other. A null
    `after`: all test rows. `between`: both for people. `rows_sha256`: digest of the rows' ids.
    """

    after: float | None
    until: float
    between: str
    rows: int
    rows_sha256: str


class Claim(Record):
    """Score that a version claims after the gate: it moves only by what exceeds chance.

    `looks`: models scored on these rows when it was made. `noise`: gain that chance alone explains
    among so many, in units of the metric; null without a champion or without an interval.
    `window`: the rows of the claim, where the windows of the split move on.
    """

    metric: str
    value: float
    looks: int = 1
    noise: float | None = None
    window: Window | None = Field(None, exclude_if=lambda found: found is None)


# absent from the JSON of validation rows, and of records of earlier versions
Looks = Annotated[tuple[Look, ...], Field(exclude_if=lambda found: not found)]


def optimism(standard_error: float | None, looks: int) -> float | None:
    """Return the bound of `Look.optimism`: standard error × √(2 ln k) of k looks.

    The expected maximum of k draws around 0 with a normal tail is at most that, whether or not the
    draws depend on each other. Scores on the same rows depend on each other strongly, so the true
    optimism is usually a third of the bound or less.

    Source: Boucheron, Lugosi and Massart 2013, Concentration Inequalities, theorem 2.5.

    >>> round(optimism(0.0144, 14), 4), optimism(0.01, 1)
    (0.0331, 0.0)
    """
    return None if standard_error is None else standard_error * math.sqrt(2 * math.log(looks))


def standard_error(found: Interval, confidence: float) -> float | None:
    """Return half of an interval over its normal quantile; None without an interval.

    >>> round(standard_error(Interval(value=0.8, low=0.771, high=0.829), 0.95), 4)
    0.0148
    """
    if found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2 / NormalDist().inv_cdf((1 + confidence) / 2)


def with_bounds(looks: Looks, metrics: Mapping[str, Interval], confidence: float) -> Looks:
    """Return counted looks with the bound of their optimism.

    Args:
        looks: counted, of some metrics.
        metrics: of the model on these rows.
        confidence: of their intervals.
    """
    return tuple(
        look.model_copy(
            update={
                "optimism": optimism(
                    standard_error(metrics.get(look.metric, Interval(value=None)), confidence),
                    look.number,
                )
            }
        )
        for look in looks
    )


def look_at(looks: Iterable[Look], metric: str) -> Look | None:
    """Return the look of a metric; None if it was not counted."""
    return next((look for look in looks if look.metric == metric), None)
