"""Margins of a model's labels from validation rows, and how often they hold on others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from schemas.calibration_records import Coverage, Margin
from schemas.config import Declaration
from schemas.load import declare
from schemas.records import RunSpec, SplitArrays
from training.evaluation.row_ids import read_groups
from training.objectives.conformal import PROBABILITY, SCALES, covered, errors_of, margin, sizes
from training.objectives.targets import targets_of


class _Rows(NamedTuple):
    """Known rows of one label: predictions [M] or [M, C], truth [M], group [M] or None."""

    name: str
    scale: str
    predictions: np.ndarray
    target: np.ndarray
    group: np.ndarray | None


def margins_of(
    run: RunSpec, predictions: np.ndarray, target: np.ndarray, group: np.ndarray | None
) -> tuple[Margin, ...]:
    """Return the margin of each label for the declared coverage; () without one.

    Args:
        run: The trained run.
        predictions: Of `metrics.predict`, on validation rows.
        target: Of `metrics.targets`, for the same rows.
        group: Group of each row [N], or None.
    """
    declaration = declare(run.declaration)
    wanted = declaration.evaluate.intervals
    if wanted is None:
        return ()
    return tuple(
        Margin(
            label=rows.name,
            coverage=wanted,
            scale=rows.scale,
            margin=margin(errors_of(rows.predictions, rows.target, rows.scale), wanted, rows.group),
            rows=len(rows.target),
            groups=0 if rows.group is None else len(np.unique(rows.group)),
        )
        for rows in _labels(run, declaration, predictions, target, group)
    )


def coverage_of(
    run: RunSpec,
    margins: Sequence[Margin],
    predictions: np.ndarray,
    target: np.ndarray,
    group: np.ndarray | None,
) -> tuple[Coverage, ...]:
    """Return how often the margins hold on rows that had no part in them.

    Where rows are grouped, each group counts alike, as the margins promise it for a new group. See
    `margins_of` for the arguments.
    """
    known = {found.label: found for found in margins}
    return tuple(
        Coverage(
            label=rows.name,
            declared=known[rows.name].coverage,
            seen=_mean(
                covered(rows.predictions, rows.target, rows.scale, known[rows.name].margin),
                rows.group,
            ),
            size=float(np.median(sizes(rows.predictions, rows.scale, known[rows.name].margin)))
            if known[rows.name].margin is not None
            else None,
            rows=len(rows.target),
        )
        for rows in _labels(run, declare(run.declaration), predictions, target, group)
        if rows.name in known and len(rows.target)
    )


def group_of(arrays: SplitArrays) -> np.ndarray | None:
    """Return the group of each row of a side [N]; None where rows are not grouped."""
    found = read_groups(arrays)
    return None if pd.isna(found).all() else found


def _mean(held: np.ndarray, group: np.ndarray | None) -> float:
    if group is None:
        return float(held.mean())
    _, places, counts = np.unique(group, return_inverse=True, return_counts=True)
    return float(np.mean(np.bincount(places, weights=held) / counts))


def _labels(
    run: RunSpec,
    declaration: Declaration,
    predictions: np.ndarray,
    target: np.ndarray,
    group: np.ndarray | None,
) -> Iterator[_Rows]:
    several = targets_of(declaration, run.statistics)
    if not several:
        kind = declaration.task.kind
        scale = SCALES[declaration.task.transform] if kind == "regression" else PROBABILITY
        yield _Rows(run.spec.label, scale, predictions, target, group)
    for place, label in enumerate(several):
        rows = np.flatnonzero(~np.isnan(target[:, place]))
        yield _Rows(
            label.name,
            SCALES["none"] if label.kind == "regression" else PROBABILITY,
            label.of(predictions)[rows],
            target[rows, place],
            None if group is None else group[rows],
        )
