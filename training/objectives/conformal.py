"""Split conformal intervals: how far the truth lies from predictions, on rows that are given.

The margin of a prediction is a quantile of errors on validation rows. Rows of one group are alike,
so that groups count, not rows: each group's rows share its weight, and one more group that is not
seen counts as an error without bound.

Source: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World (2005); Lei et al.,
Distribution-Free Predictive Inference for Regression (2018); Sadinle, Lei & Wasserman, Least
Ambiguous Set-Valued Classifiers (2019); Lee, Barber & Willett, Distribution-Free Inference with
Hierarchical Data (2023), for groups. N rows, C classes.
"""

from __future__ import annotations

import numpy as np

VALUE, LOG, LOG1P, PROBABILITY = "value", "log", "log1p", "probability"
SCALES = {"none": VALUE, "log": LOG, "log1p": LOG1P}  # transform of a label to scale of its margin


def errors_of(predictions: np.ndarray, target: np.ndarray, scale: str) -> np.ndarray:
    """Return how far each prediction is from the truth, float64 [N], on the margin's scale.

    Args:
        predictions: values [N] in the label's units, or probabilities [N, C].
        target: values [N] in the label's units, or class indices [N].
        scale: value, log, log1p, or probability: one minus that of the true class.
    """
    if scale == PROBABILITY:
        return np.asarray(1 - predictions[np.arange(len(target)), target.astype(np.int64)])
    if scale != VALUE:
        change = np.log if scale == LOG else np.log1p
        target, predictions = change(target), change(predictions)
    return np.asarray(np.abs(target - predictions))


def margin(errors: np.ndarray, coverage: float, group: np.ndarray | None = None) -> float | None:
    """Return the error that a new row exceeds with a chance of at most 1 - coverage.

    None if the rows, or their groups, are too few to bound it: at 0.9 that is fewer than nine.

    Args:
        errors: float64 [N].
        coverage: between 0 and 1.
        group: group of each row [N]; None: each row is one of its own.

    >>> margin(np.arange(1.0, 20.0), 0.9), margin(np.arange(8.0), 0.9)
    (18.0, None)
    """
    if not len(errors):
        return None
    if group is None:
        weights = np.ones(len(errors))
        groups = len(errors)
    else:
        _, places, sizes = np.unique(group, return_inverse=True, return_counts=True)
        weights, groups = 1 / sizes[places], len(sizes)
    order = np.argsort(errors, kind="stable")
    reached = np.cumsum(weights[order]) >= coverage * (groups + 1) * (1 - 1e-12)
    return float(errors[order][np.argmax(reached)]) if reached.any() else None


def covered(
    predictions: np.ndarray, target: np.ndarray, scale: str, found: float | None
) -> np.ndarray:
    """Return for each row whether its interval or set holds the truth, bool [N].

    See `errors_of` for the arguments; `found` is the margin. The most probable class is always in
    the set.
    """
    if found is None:
        return np.ones(len(target), dtype=bool)
    held = errors_of(predictions, target, scale) <= found
    return held | (predictions.argmax(axis=1) == target) if scale == PROBABILITY else held


def sizes(predictions: np.ndarray, scale: str, found: float | None) -> np.ndarray:
    """Return the width of each interval in the label's units, or the classes in each set [N]."""
    if scale == PROBABILITY:
        if found is None:
            return np.full(len(predictions), float(predictions.shape[1]))
        return np.asarray(np.maximum(1.0, (1 - predictions <= found).sum(axis=1)))
    if found is None:
        return np.full(len(predictions), np.inf)
    if scale == VALUE:
        return np.full(len(predictions), 2 * found)
    base = predictions if scale == LOG else predictions + 1
    return np.asarray(base * (np.exp(found) - np.exp(-found)))
