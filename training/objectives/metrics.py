"""Predictions from raw scores, and metrics on all gathered rows with scikit-learn.

Rank metrics are never averaged over batches or ranks. With several labels each is measured on its
known rows, see label_metrics.py. Shapes: N rows, K scores per row, C classes, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from schemas.config import METRICS, Declaration
from schemas.errors import DataError
from schemas.evaluate_config import HALF
from schemas.records import Statistics
from training.objectives import token_metrics
from training.objectives.link import inverse_transform, link_of
from training.objectives.measures import Measure, declared_measures, mape, mcc, single
from training.objectives.targets import Targets, targets_of

Metrics = dict[str, float | None]
Metric = Callable[[np.ndarray, np.ndarray, np.ndarray | None], float | None]
DECIDED = ("accuracy", "balanced_accuracy", "f1", "mcc", "cost")  # of a binary label: by class


def _sklearn() -> Any:
    from sklearn import metrics  # half a second, which no process needs before its first metric

    return metrics


def predict(declaration: Declaration, statistics: Statistics, scores: np.ndarray) -> np.ndarray:
    """Return float64 probabilities [N, C] (binary: C = 2) or values [N] from raw scores [N, K].

    Values have the user's units. For several labels it is [N, K]: the probability of each binary
    label's positive class, probabilities of the others' classes, and values.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if statistics.labels:
        each = targets_of(declaration, statistics)
        return np.concatenate(
            [t.stored(predict(t.declaration, t.statistics, scores[:, t.columns])) for t in each],
            axis=1,
        )
    if (link := link_of(declaration, statistics)) is not None:
        return np.asarray(link(torch.from_numpy(scores)).numpy())
    if declaration.task.kind == "regression":
        return scores[:, 0] * statistics.target_scale + statistics.target_center
    if declaration.task.kind == "binary":
        return np.stack([_sigmoid(-scores[:, 0]), _sigmoid(scores[:, 0])], axis=1)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def targets(declaration: Declaration, statistics: Statistics, label: np.ndarray) -> np.ndarray:
    """Convert stored labels to class indices int64 [N], or float64 values [N] in the user's units.

    For several labels it is float64 [N, L]: indices and values, NaN if unknown.
    """
    if statistics.labels:
        center, scale = (
            np.array([getattr(label, name) for label in statistics.labels])
            for name in ("target_center", "target_scale")
        )
        return np.asarray(np.asarray(label, dtype=np.float64) * scale + center)
    if declaration.task.kind == "regression":
        return in_label_units(statistics, np.asarray(label, dtype=np.float64))
    return np.asarray(label, dtype=np.int64)


def in_label_units(statistics: Statistics, scaled: np.ndarray) -> np.ndarray:
    """Return scaled values [N] of a regression label, float64, in the user's units."""
    values = scaled * statistics.target_scale + statistics.target_center
    if statistics.target_transform is None:
        return values
    found = inverse_transform(statistics.target_transform, torch.from_numpy(values))
    return np.asarray(found.numpy())


def compute(
    declaration: Declaration,
    statistics: Statistics,
    scores: np.ndarray,
    label: np.ndarray,
    weight: np.ndarray | None = None,
) -> Metrics:
    """Compute every metric of the task from raw scores [N, K] and stored labels [N]; None if
    undefined.

    Args:
        declaration: Gives the task.
        statistics: Gives classes and label scaling.
        scores: Raw scores, finite.
        label: Class index, or scaled value.
        weight: Sample weights [N], at least 0; None: all rows have equal weight.

    Raises:
        DataError: no rows, or lengths that differ.
    """
    labels = targets_of(declaration, statistics)
    return compute_predictions(
        declaration.task.kind,
        predict(declaration, statistics, scores),
        targets(declaration, statistics, label),
        weight,
        labels,
        declared=declared_measures(declaration),
    )


def compute_predictions(
    task: str,
    predictions: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None = None,
    labels: Targets = (),
    threshold: float = HALF,
    declared: Mapping[str, Measure] = MappingProxyType({}),
    only: str | None = None,
) -> Metrics:
    """Compute every metric of a task from predictions of `predict` and targets of `targets`.

    Args:
        task: Kind of the task.
        predictions: Predictions of N rows; `target`: targets of the same rows.
        weight: Sample weights [N], at least 0; None: all rows have equal weight.
        labels: Labels of a task of several labels, with their thresholds and declared measures.
        threshold: Of a single binary label.
        declared: Measures that the declaration of a single label adds (`declared_measures`).
        only: The one metric of a single label to compute; several labels have all of theirs.

    Raises:
        DataError: no rows, or lengths that differ.
    """
    if len(target) == 0 or len(predictions) != len(target):
        raise DataError(
            f"metrics need as many predictions as labels and at least one, got {len(predictions)}"
            f" and {len(target)}"
        )
    if labels:
        from training.objectives.label_metrics import over_labels  # it uses this function

        return over_labels(task, predictions, target, weight, labels)
    if weight is not None:
        # a row of weight 0 does not count: its class is not present
        counted = weight > 0
        if not counted.any():
            return dict.fromkeys((*METRICS[task], *declared))
        predictions, target = predictions[counted], target[counted]
        weight = np.asarray(weight, dtype=np.float64)[counted]
    classes = decided_classes(predictions, threshold)
    wanted = {name: _METRICS[task][name] for name in METRICS[task]}
    wanted |= {name: single(measure) for name, measure in declared.items()}
    return {
        name: metric(target, classes if name in DECIDED else predictions, weight)
        for name, metric in wanted.items()
        if only in (None, name)
    }


def decided_classes(predictions: np.ndarray, threshold: float) -> np.ndarray:
    """Return 1 for the decided class [N, 2], since metrics take the most probable one.

    Without a threshold, return the predictions.
    """
    return np.eye(2)[predicted_class(predictions, threshold)] if threshold != HALF else predictions


def predicted_class(probabilities: np.ndarray, threshold: float = HALF) -> np.ndarray:
    """Return the most probable class [N] of probabilities [N, C]; the lower index at a tie.

    Of two classes it is the second one if its probability is above the threshold.
    """
    if threshold == HALF:
        return np.asarray(probabilities.argmax(axis=1))
    return np.asarray(probabilities[:, 1] > threshold).astype(np.int64)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    tail = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1.0, tail) / (1.0 + tail))


def _auroc(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return (
        float(_sklearn().roc_auc_score(y, p[:, 1], sample_weight=w))
        if len(np.unique(y)) == 2
        else None
    )


def _pr_auc(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return (
        float(_sklearn().average_precision_score(y, p[:, 1], sample_weight=w)) if y.any() else None
    )


def _log_loss(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return float(_sklearn().log_loss(y, p, sample_weight=w, labels=np.arange(p.shape[1])))


def _brier(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return float(np.average((p[:, 1] - y) ** 2, weights=w))


def _accuracy(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return float(_sklearn().accuracy_score(y, predicted_class(p), sample_weight=w))


def _balanced_accuracy(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Compute the mean recall over present classes, like `balanced_accuracy_score`."""
    return float(
        _sklearn().recall_score(
            y,
            predicted_class(p),
            labels=np.unique(y),
            average="macro",
            sample_weight=w,
            zero_division=0.0,
        )
    )


def _f1(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return float(_sklearn().f1_score(y, predicted_class(p), sample_weight=w, zero_division=0.0))


def _macro_f1(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Compute the mean F1 over classes in labels or predictions (scikit-learn's default labels)."""
    return float(
        _sklearn().f1_score(
            y, predicted_class(p), average="macro", sample_weight=w, zero_division=0.0
        )
    )


def _rmse(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return float(_sklearn().root_mean_squared_error(y, p, sample_weight=w))


def _mae(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    return float(_sklearn().mean_absolute_error(y, p, sample_weight=w))


def _r2(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Compute R²; None if the labels do not vary (fewer than two values)."""
    return float(_sklearn().r2_score(y, p, sample_weight=w)) if len(np.unique(y)) > 1 else None


_METRICS: dict[str, dict[str, Metric]] = {
    "binary": {
        "auroc": _auroc,
        "pr_auc": _pr_auc,
        "log_loss": _log_loss,
        "brier": _brier,
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "f1": _f1,
        "mcc": single(mcc),
    },
    "multiclass": {
        "macro_f1": _macro_f1,
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "log_loss": _log_loss,
        "mcc": single(mcc),
    },
    "regression": {"rmse": _rmse, "mae": _mae, "r2": _r2, "mape": single(mape)},
    "causal_lm": dict(token_metrics.METRICS),
}
