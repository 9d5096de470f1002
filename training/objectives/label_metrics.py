"""Metrics of several labels: each on its known rows, and means over labels that define them.

Multilabel: `macro_auroc` and `macro_pr_auc` are means over labels, `log_loss` is over all known
labels. Multitask: `<label>/<metric>`, and `unexplained`, the mean over labels (by weight) of the
unexplained part of each: log loss over the entropy of its base rate, mean squared error over its
variance, or for quantile, Poisson and Tweedie its own loss over that of the best constant, on the
same rows. 0 is perfect, and 1 is the best constant on these rows. It has no unit, so labels of
different kinds can be added.

N rows, L labels, R resamples. A label with only one class (or value) on the given rows is left out
of a mean. Source: 1 - unexplained of one label is McFadden's R² (1974), or the coefficient of
determination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from schemas.errors import first_few
from training.formatting import plural
from training.objectives.measures import Measure, declared_measures, single, unexplained
from training.objectives.metrics import (
    DECIDED,
    Metrics,
    compute_predictions,
    decided_classes,
)
from training.objectives.targets import Target, Targets

Values = dict[str, np.ndarray]  # metric -> [R], NaN if not defined
Resampled = Callable[[np.ndarray], Values]  # weights [R, N] -> values
MEANS = {"macro_auroc": "auroc", "macro_pr_auc": "pr_auc"}


def over_labels(
    task: str,
    predictions: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    labels: Targets,
) -> Metrics:
    """Compute every metric of a task of several labels; None if no label defines one.

    Args:
        task: multilabel or multitask.
        predictions: [N, K] as `metrics.predict` gives them.
        target: [N, L] as `metrics.targets` gives them, NaN where unknown.
        weight: Sample weights [N].
        labels: The labels.
    """
    found = [_of_one(t, predictions, target[:, i], weight) for i, t in enumerate(labels)]
    if task == "multitask":
        each = {
            f"{t.name}/{name}": values[name]
            for t, values in zip(labels, found, strict=True)
            for name in t.declaration.metrics
        }
        return {
            "unexplained": _mean([v["unexplained"] for v in found], [t.weight for t in labels]),
            **each,
        }
    means = {
        name: _mean([v[own] for v in found], [1.0] * len(found)) for name, own in MEANS.items()
    }
    return means | {
        "log_loss": _mean([v["log_loss"] for v in found], [v["mass"] or 0.0 for v in found])
    }


def _of_one(
    label: Target, predictions: np.ndarray, target: np.ndarray, weight: np.ndarray | None
) -> Metrics:
    """Compute the metrics of one label on its known rows, with `unexplained` and their weight
    `mass`.
    """
    rows, own, values, weights = known(label, predictions, target, weight)
    mass = float(len(rows) if weights is None else weights.sum())
    if not mass:
        return dict.fromkeys((*label.declaration.metrics, "unexplained")) | {"mass": 0.0}
    declared = declared_measures(label.declaration)
    found = compute_predictions(
        label.kind, own, values, weights, threshold=label.threshold, declared=declared
    )
    of_loss = unexplained(label.declaration)
    left = (
        _unexplained(label, found, values, weights)
        if of_loss is None
        else single(of_loss)(values, own, weights)
    )
    return found | {"mass": mass, "unexplained": left}


def known(
    label: Target, predictions: np.ndarray, target: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Return positions of the rows [M] whose label is known, with predictions, targets and weights.
    They have the form of a single label.
    """
    rows = np.flatnonzero(~np.isnan(target))
    values = target[rows] if label.kind == "regression" else target[rows].astype(np.int64)
    return (
        rows,
        label.of(predictions)[rows],
        values,
        None if weight is None else np.asarray(weight, dtype=np.float64)[rows],
    )


def _unexplained(
    label: Target, found: Metrics, target: np.ndarray, weight: np.ndarray | None
) -> float | None:
    if label.kind == "regression":
        return None if found["r2"] is None else 1 - found["r2"]
    shares = np.bincount(target, weights=weight, minlength=2)
    shares = shares[shares > 0] / shares.sum()
    entropy = float(-(shares * np.log(shares)).sum())
    loss = found["log_loss"]
    return None if loss is None or len(shares) < 2 else loss / entropy


def _mean(values: list[float | None], weights: list[float]) -> float | None:
    """Return the weighted mean of the defined values; None without any."""
    defined = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w > 0]
    return sum(v * w for v, w in defined) / sum(w for _, w in defined) if defined else None


def undefined_note(
    task: str,
    predictions: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    labels: Targets,
) -> str:
    """Describe the labels that the means leave out, with the reason; empty if none."""
    out = [
        t.name
        for i, t in enumerate(labels)
        if _of_one(t, predictions, target[:, i], weight)["unexplained"] is None
    ]
    if not out:
        return ""
    metric = "unexplained" if task == "multitask" else "macro AUROC"
    return (
        f"{metric} is a mean over {len(labels) - len(out)} of {plural(len(labels), 'label')}:"
        f" {first_few(out, limit=12)} {'has' if len(out) == 1 else 'have'} fewer than two values on"
        " these rows."
    )


# ---------------------------------------------------------------------------------------- resamples


def resampled_labels(
    task: str,
    predictions: np.ndarray,
    target: np.ndarray,
    labels: Targets,
    makers: Mapping[str, Callable[..., Resampled]],
) -> Resampled:
    """Compute the metrics of `over_labels` for many resamples at once.

    Args:
        task: multilabel or multitask.
        predictions: [N, K].
        target: [N, L], NaN where unknown.
        labels: The labels.
        makers: For each kind of label, the function that computes its resampled metrics
            (`bootstrap`).
    """
    parts = [(t, *known(t, predictions, target[:, i], None)[:3]) for i, t in enumerate(labels)]
    each = [
        (t, at, _resampled_label(makers, t, own, values)) for t, at, own, values in parts if len(at)
    ]

    def values(weights: np.ndarray) -> Values:
        found = [(t, weights[:, rows].sum(1), one(weights[:, rows])) for t, rows, one in each]
        if task == "multitask":
            absent = {
                f"{t.name}/{name}": np.full(len(weights), np.nan)
                for t in labels
                for name in t.declaration.metrics
            }
            own = {f"{t.name}/{m}": v[m] for t, _, v in found for m in t.declaration.metrics}
            return {
                "unexplained": _means(
                    [v["unexplained"] for *_, v in found], [t.weight for t, *_ in found]
                ),
                **absent,
                **own,
            }
        macro = {
            name: _means([v[own] for *_, v in found], [1.0] * len(found))
            for name, own in MEANS.items()
        }
        return macro | {
            "log_loss": _means([v["log_loss"] for *_, v in found], [mass for _, mass, _ in found])
        }

    return values


def measures_of(label: Target) -> dict[str, Measure]:
    """Return the measures that a label's loss adds, with its own `unexplained` if it has one."""
    own, left = declared_measures(label.declaration), unexplained(label.declaration)
    return own if left is None else own | {"unexplained": left}


def _resampled_label(
    makers: Mapping[str, Callable[..., Resampled]],
    label: Target,
    predictions: np.ndarray,
    target: np.ndarray,
) -> Resampled:
    metrics = makers[label.kind](predictions, target, label.threshold)
    return with_measures(metrics, measures_of(label), predictions, target, label.threshold)


def with_measures(
    metrics: Resampled,
    measures: Mapping[str, Measure],
    predictions: np.ndarray,
    target: np.ndarray,
    threshold: float,
) -> Resampled:
    """Return the resampled metrics of a label with its measures, which replace those of their
    name.
    """
    if not measures:
        return metrics
    classes = decided_classes(predictions, threshold)
    made = {
        name: measure(classes if name in DECIDED else predictions, target)
        for name, measure in measures.items()
    }
    return lambda weights: metrics(weights) | {name: m(weights) for name, m in made.items()}


def _means(values: list[np.ndarray], weights: list[np.ndarray] | list[float]) -> np.ndarray:
    """Compute `_mean` by resample: [R] each → [R], NaN if no label defines it."""
    table = np.stack(values)
    share = np.stack([np.broadcast_to(w, table.shape[1]) for w in weights]) * ~np.isnan(table)
    total = share.sum(0)
    return np.asarray(
        np.divide(
            (np.nan_to_num(table) * share).sum(0),
            total,
            out=np.full(table.shape[1], np.nan),
            where=total > 0,
        )
    )
