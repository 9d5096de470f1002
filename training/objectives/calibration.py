"""Temperature and reliability of class probabilities, from scores and labels that are given.

N rows, K scores, C classes, B bins. Source: temperature as in Guo et al. 2017, On calibration of
modern neural networks; bins of equal size as in Nguyen and O'Connor 2015.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from schemas.calibration_records import Reliability
from training.objectives.metrics import compute_predictions

Floats = NDArray[np.float64]
COLDEST, HOTTEST = 0.05, 20.0  # separable rows would ask for 0, rows without signal for infinity
BINS = 10


def fit_temperature(
    scores: Floats, target: NDArray[np.int64], weight: Floats | None = None
) -> float:
    """Return the temperature that minimises log loss, rounded to float32, from 0.05 to 20.

    Log loss is convex in 1 / temperature, so the root of its slope is the minimum.

    Args:
        scores: Log odds [N, 1] of the positive class, or logits [N, C].
        target: Class indices [N].
        weight: Sample weights [N]; not all 0.
    """
    from scipy.optimize import brentq

    logits = (
        np.concatenate([np.zeros_like(scores), scores], axis=1) if scores.shape[1] == 1 else scores
    )
    whole = np.ones(len(target)) if weight is None else np.asarray(weight, dtype=np.float64)
    right = logits[np.arange(len(target)), target]

    def slope(inverse: float) -> float:
        """Return the derivative of log loss by 1 / temperature."""
        shifted = inverse * (logits - logits.max(axis=1, keepdims=True))
        odds = np.exp(shifted)
        expected = (odds * logits).sum(axis=1) / odds.sum(axis=1)
        return float(np.average(expected - right, weights=whole))

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(low) >= 0:  # log loss grows from the start
        return HOTTEST if slope(low) > 0 else 1.0  # 0: the scores do not differ within a row
    inverse = high if slope(high) <= 0 else float(brentq(slope, low, high, xtol=1e-14))
    return float(np.float32(1 / inverse))


def reliability(
    kind: str,
    probabilities: Floats,
    target: NDArray[np.int64],
    weight: Floats | None = None,
    bins: int = BINS,
) -> Reliability:
    """Return log loss, expected calibration error and the reliability curve.

    Args:
        kind: binary or multiclass.
        probabilities: [N, C].
        target: Class indices [N].
        weight: Sample weights [N]; not all 0.
        bins: Number of bins of equally many rows; fewer if there are fewer rows.
    """
    whole = np.ones(len(target)) if weight is None else np.asarray(weight, dtype=np.float64)
    kept = np.flatnonzero(whole > 0)
    if kind == "binary":
        said, seen = probabilities[:, 1], target == 1
    else:
        said, seen = probabilities.max(axis=1), probabilities.argmax(axis=1) == target
    order = kept[np.argsort(said[kept], kind="stable")]
    parts = [part for part in np.array_split(order, min(bins, len(order))) if len(part)]
    mean_said, mean_seen = (
        np.array([np.average(values[part], weights=whole[part]) for part in parts])
        for values in (said, seen)
    )
    mass = [whole[part].sum() for part in parts]
    log_loss = compute_predictions(kind, probabilities, target, weight)["log_loss"]
    return Reliability(
        log_loss=float("nan") if log_loss is None else log_loss,
        ece=float(np.average(np.abs(mean_said - mean_seen), weights=mass)),
        said=tuple(mean_said.tolist()),
        seen=tuple(mean_seen.tolist()),
    )
