"""Records of comparisons: a metric with its interval, and where the model stands to others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.references import Record

Standing = Literal["ahead", "level", "behind", "unknown"]


class Interval(Record):
    """A metric with its bootstrap confidence interval; null where it is not defined on
    these rows.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


class YardstickResult(Record):
    """An estimator of `evaluate.against` on the test rows; it is never registered.

    `problem`: one line on why it has no figures; empty if it has. `note`: what its fit could not
    use. `rows`: train rows of the fit, which took `seconds`. `differences`: model minus yardstick,
    on the same resamples, in the declared metric and for classes in log loss. `standing`: where
    the model stands to it in the declared metric, beyond uncertainty.
    """

    name: str
    path: str
    metrics: dict[str, float | None] = {}
    differences: dict[str, Interval] = {}
    standing: Standing = "unknown"
    rows: int = 0
    seconds: float = 0.0
    note: str = ""
    problem: str = ""


# absent from the JSON of a run without yardsticks, whose bytes stay what they were
Yardsticks = Annotated[tuple[YardstickResult, ...], Field(exclude_if=lambda found: not found)]


def yardstick_figures(against: Yardsticks) -> dict[str, float | None]:
    """Return the figures of yardsticks by their name for a tracking server."""
    return {
        f"against/{found.name}/{name}": value
        for found in against
        if not found.problem
        for name, value in {**found.metrics, "fit_seconds": found.seconds}.items()
    }
