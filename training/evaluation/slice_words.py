"""Slices in sentences, for terminal and report."""

from __future__ import annotations

from schemas.slice_records import Slices, SliceScore
from training.formatting import count, interval, metric_name, number, plain, plural


def worse_words(slices: Slices, found: SliceScore, total: int) -> str:
    """Describe a slice that is worse than the others of its column.

    Args:
        slices: gives the metric.
        found: one of them.
        total: test rows.
    """
    return (
        f"{plain(found.name, 120)}: {metric_name(slices.metric)} {interval(found.score)} on"
        f" {count(found.rows)} of {plural(total, 'test row')}, {number(found.others)} on the others"
    )


def looked_words(slices: Slices) -> str:
    """Say how many slices were compared, and how chances were corrected."""
    small = (
        f" {plural(slices.small, 'more slice')}"
        f" {'has' if slices.small == 1 else 'have'} too few rows, groups or rows of a class."
        if slices.small
        else ""
    )
    return (
        f"{plural(slices.looked_at, 'slice')} {'was' if slices.looked_at == 1 else 'were'} compared"
        f" in {metric_name(slices.metric)}, each with the mean of the other slices of its column."
        " The chance of so low a score by luck is corrected for that number (Holm); a slice is"
        f" called worse below {slices.limit:.3g}, where the difference also matters.{small}"
    )
