"""Sentences on yardsticks, for terminal and report."""

from __future__ import annotations

from schemas.comparison_records import YardstickResult
from schemas.config import Declaration
from training.formatting import duration, interval, metric_name, number

PLACES = {
    "ahead": "behind the model",
    "level": "not distinguishable from the model",
    "behind": "ahead of the model",
    "unknown": "not compared with the model",
}


def yardstick_words(declaration: Declaration, found: YardstickResult) -> str:
    """Describe a yardstick in one sentence, e.g. that it is ahead of the model."""
    if found.problem:
        return f"{found.name} has no figures: {found.problem.rstrip('.')}."
    metric = declaration.metric
    note = f"; {found.note}" if found.note else ""
    return (
        f"{found.name} is {PLACES[found.standing]}: {metric_name(metric)}"
        f" {number(found.metrics.get(metric))}, model minus {found.name}"
        f" {interval(found.differences[metric])}; fitted in {duration(found.seconds)}{note}."
    )
