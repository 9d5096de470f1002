"""Groups of the scored rows: what is resampled, and the metrics of the largest. N rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from schemas.config import METRICS, Declaration
from schemas.evaluate_config import HALF
from training.objectives.measures import declared_measures
from training.objectives.metrics import Metrics, compute_predictions
from training.objectives.targets import Targets

MAX_GROUPS = 30
MIN_GROUP_ROWS = 10  # a metric of fewer rows is meaningless for its group
MIN_CLUSTERS = (
    5  # resampling fewer groups gives intervals that are far too narrow; one group gives none
)


def clusters_of(group: np.ndarray | None) -> tuple[np.ndarray | None, str]:
    """Return the groups to resample, or None with the reason if they are too few."""
    num_groups = 0 if group is None else len(np.unique(group[~pd.isna(group)].astype(str)))
    if group is None or num_groups >= MIN_CLUSTERS:
        return group, ""
    noun = "group" if num_groups == 1 else "groups"
    return (
        None,
        (
            f"Only {num_groups} {noun} in these rows: the interval is over rows of these {noun} and"
            " says nothing about others."
        ),
    )


def group_table(
    declaration: Declaration,
    group: np.ndarray | None,
    predictions: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    labels: Targets = (),
    threshold: float = HALF,
) -> tuple[dict[str, Any], ...]:
    """Return metrics of the 30 largest groups with at least 10 rows, largest first.

    With several labels, they are those over all labels.
    """
    if group is None:
        return ()
    names, counts = np.unique(group[~pd.isna(group)].astype(str), return_counts=True)
    largest = sorted(zip(-counts, names, strict=True))[:MAX_GROUPS]
    rows: list[dict[str, Any]] = []
    task, declared = declaration.task.kind, declared_measures(declaration)
    for negative, name in largest:
        if -negative >= MIN_GROUP_ROWS:
            mine = group == name
            found: Metrics = compute_predictions(
                task,
                predictions[mine],
                target[mine],
                None if weight is None else weight[mine],
                labels,
                threshold,
                declared,
            )
            rows.append(
                {
                    "group": str(name),
                    "rows": int(-negative),
                    **{metric: found[metric] for metric in (*METRICS[task], *declared)},
                }
            )
    return tuple(rows)
