"""Evaluation of several labels on the scored rows: true values, predictions, figures per label. N
rows, L labels, K columns of predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from training.objectives.bootstrap import intervals
from training.objectives.label_metrics import known
from training.objectives.measures import declared_measures
from training.objectives.metrics import compute_predictions, predicted_class
from training.objectives.targets import Target, Targets


def numbers(column: pd.Series) -> np.ndarray:
    """Return a column of any type of number as float64 [N], NaN for null.

    Whole numbers beyond 2^53 are rounded, as everywhere that numbers are learned from.
    """
    found = pa.array(column, from_pandas=True)
    return np.asarray(
        found.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64
    )


def given_values(labels: Targets, stored: np.ndarray, given: pd.DataFrame) -> np.ndarray:
    """Return true values float64 [N, L], NaN if unknown: class indices as stored, values as given.

    Stored values are scaled and rounded.

    Args:
        labels: the labels.
        stored: the label array [N, L].
        given: columns `label_<name>` of the same rows.
    """
    columns = [
        (numbers(given[f"label_{t.name}"]) if t.kind == "regression" else stored[:, i])
        for i, t in enumerate(labels)
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def prediction_columns(labels: Targets, predictions: np.ndarray) -> dict[str, pa.Array]:
    """Return the registered model's columns.

    Each label has the predicted class or value, then its probabilities.
    """
    columns: dict[str, pa.Array] = {}
    for t in labels:
        own = t.of(predictions)
        if t.kind == "regression":
            columns[t.prediction_column] = pa.array(own)
            continue
        columns[t.prediction_column] = pa.array(list(t.statistics.classes)).take(
            pa.array(predicted_class(own, t.threshold))
        )
        shown = own[:, 1:] if t.kind == "binary" else own
        columns |= {name: pa.array(shown[:, i]) for i, name in enumerate(t.probability_columns)}
    return columns


def base_rates(labels: Targets, target: np.ndarray, weight: np.ndarray | None) -> dict[str, float]:
    """Return the fraction of positives, of each class, or the mean, of each label's known rows.

    Labels without known rows are left out.
    """
    found: dict[str, float] = {}
    for i, t in enumerate(labels):
        rows = np.flatnonzero(~np.isnan(target[:, i]))
        if not len(rows):
            continue
        weights = None if weight is None else weight[rows]
        if t.kind == "regression":
            found[f"{t.name}, mean"] = float(np.average(target[rows, i], weights=weights))
            continue
        counts = np.bincount(
            target[rows, i].astype(np.int64), weights=weights, minlength=len(t.statistics.classes)
        )
        shares = (counts / counts.sum()).tolist()
        found |= (
            {t.name: shares[1]}
            if t.kind == "binary"
            else {
                f"{t.name} = {name}": s
                for name, s in zip(t.statistics.classes, shares, strict=True)
            }
        )
    return found


def label_table(
    labels: Targets,
    predictions: np.ndarray,
    target: np.ndarray,
    baselines: Mapping[str, np.ndarray],
    resampling: Mapping[str, Any],
) -> tuple[dict[str, Any], ...]:
    """Return for each label known rows, base rate, main metric with interval and baselines, others.

    Args:
        labels: the labels.
        predictions: [N, K].
        target: [N, L], NaN if unknown.
        baselines: name to predictions [N, K] of the same rows.
        resampling: arguments of `bootstrap.intervals`.
    """
    return tuple(
        _row(t, predictions, target[:, i], baselines, resampling) for i, t in enumerate(labels)
    )


def _row(
    label: Target,
    predictions: np.ndarray,
    target: np.ndarray,
    baselines: Mapping[str, np.ndarray],
    resampling: Mapping[str, Any],
) -> dict[str, Any]:
    group, weight = resampling["group"], resampling["weight"]
    rows, own, values, weights = known(label, predictions, target, weight)
    facts: dict[str, Any] = {"label": label.name, "kind": label.kind, "known": len(rows)}
    if label.kind == "binary":
        facts["positive"] = float(np.average(values, weights=weights)) if len(rows) else None
    metric, declared = label.declaration.metric, declared_measures(label.declaration)
    facts["metric"] = metric
    if not len(rows) or (weights is not None and not weights.sum()):
        return facts
    settings = {
        **resampling,
        "group": None if group is None else group[rows],
        "weight": weights,
        "labels": (),
        "threshold": label.threshold,
    }
    found = intervals(label.declaration, own, values, **settings)
    facts |= {"value": found[metric].value, "low": found[metric].low, "high": found[metric].high}
    facts |= {
        f"baseline {name}": compute_predictions(
            label.kind, label.of(p)[rows], values, weights, declared=declared
        )[metric]
        for name, p in baselines.items()
    }
    return facts | {name: interval.value for name, interval in found.items() if name != metric}
