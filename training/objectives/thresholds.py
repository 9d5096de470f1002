"""The decision threshold of a binary label, chosen on rows that are given: validation rows alone.

A row is predicted positive if its probability is above the threshold. Between two neighbouring
probabilities all thresholds decide alike, so each such interval is tried once: at 0.5 if it lies in
it, else in its middle. Of equally good ones the nearest to 0.5 is taken, and the greater of two.

N rows, T thresholds. Source: cost and threshold as in Elkan 2001, The foundations of cost-sensitive
learning; Youden's J as in Youden 1950.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.calibration_records import ThresholdChoice
from schemas.evaluate_config import HALF, Objective, ThresholdConfig
from schemas.label_config import ErrorCosts

Floats = NDArray[np.float64]
SLACK = 1e-12  # of sums of weights: scores that differ by less are equal


class Counts(NamedTuple):
    """Weights [T] of the four kinds of rows at each threshold."""

    true_positive: Floats
    false_positive: Floats
    false_negative: Floats
    true_negative: Floats


def choose_threshold(
    label: str,
    declared: float | ThresholdConfig,
    probability: Floats,
    target: NDArray[np.int64],
    weight: Floats | None = None,
) -> ThresholdChoice:
    """Choose the threshold of a binary label by the declared objective.

    Args:
        label: Name of the label, for the record.
        declared: A number is taken as it is.
        probability: Of the positive class [N].
        target: 1 for a positive row, else 0 [N].
        weight: Sample weights [N], at least 0.

    Returns:
        0.5 with a note if the rows have one class only. If no threshold reaches the declared recall
        or precision, the one that comes nearest, with a note.
    """
    if not isinstance(declared, ThresholdConfig):
        return ThresholdChoice(label=label, value=declared, objective="given", rows=len(target))
    whole = np.ones(len(target)) if weight is None else np.asarray(weight, dtype=np.float64)
    rows = whole > 0
    probability, target, whole = np.asarray(probability)[rows], target[rows], whole[rows]
    known = {"label": label, "objective": declared.objective, "rows": len(target)}
    if len(np.unique(target)) < 2:
        note = f"{len(target)} validation rows of one class: nothing to choose a threshold by"
        return ThresholdChoice(value=HALF, note=note, **known)
    tried = candidates(probability)
    counts = count_at(tried, probability, target, whole)
    scores = score(declared.objective, counts, declared.costs)
    ranked, note = _ranked(declared, counts, scores)
    best = np.flatnonzero(ranked >= ranked.max() - SLACK)
    value = min(tried[best].tolist(), key=lambda t: (abs(t - HALF), -t))
    chosen = int(np.flatnonzero(tried == value)[0])
    half = int(np.flatnonzero(tried == HALF)[0])
    return ThresholdChoice(
        value=value, at_half=float(scores[half]), score=float(scores[chosen]), note=note, **known
    )


def candidates(probability: Floats) -> Floats:
    """Return one threshold [T] of each interval between neighbouring probabilities, ascending.

    >>> candidates(np.array([0.2, 0.4, 0.9])).tolist()
    [0.1, 0.30000000000000004, 0.5, 0.95]
    """
    edges = np.unique(np.concatenate([[0.0], probability, [1.0]]))
    low, high = edges[:-1], edges[1:]
    middle = (low + high) / 2
    # of two neighbouring floats the middle is one of them: a threshold on the upper one would not
    # be below it
    inside = np.where(middle < high, middle, low)
    found = np.where((low <= HALF) & (high > HALF), HALF, inside)
    return np.append(found, 1.0) if probability.max() == 1.0 else found


def count_at(
    thresholds: Floats, probability: Floats, target: NDArray[np.int64], weight: Floats
) -> Counts:
    """Return the weights of the four kinds of rows at each threshold."""
    order = np.argsort(probability, kind="stable")
    place = np.searchsorted(probability[order], thresholds, side="right")  # the first row above
    below = [
        np.concatenate([[0.0], np.cumsum(np.where(target[order] == value, weight[order], 0.0))])
        for value in (0, 1)
    ]
    negative, positive = below
    return Counts(
        true_positive=positive[-1] - positive[place],
        false_positive=negative[-1] - negative[place],
        false_negative=positive[place],
        true_negative=negative[place],
    )


def score(objective: Objective, counts: Counts, costs: ErrorCosts | None = None) -> Floats:
    """Return the objective [T]; a ratio without rows is 0, and cost is the mean of a row."""
    hit, wrong, missed, left = counts
    if objective == "cost" and costs is not None:
        paid = costs.false_positive * wrong + costs.false_negative * missed
        return np.asarray(paid / (hit + wrong + missed + left))
    recall, specificity = _ratio(hit, hit + missed), _ratio(left, left + wrong)
    return {
        "f1": _ratio(2 * hit, 2 * hit + wrong + missed),
        "recall": recall,
        "precision": _ratio(hit, hit + wrong),
        "balanced_accuracy": (recall + specificity) / 2,
        "youden": recall + specificity - 1,
    }[objective]


def _ranked(declared: ThresholdConfig, counts: Counts, scores: Floats) -> tuple[Floats, str]:
    """Return what to maximise [T], and why it is not what was asked for."""
    if declared.at is None:
        return (-scores if declared.objective == "cost" else scores), ""
    reached = scores >= declared.at - SLACK
    if not reached.any():
        return scores, (
            f"no threshold reaches {declared.objective} {declared.at:g} on the validation rows;"
            f" the greatest is {scores.max():.4g}"
        )
    other = score("precision" if declared.objective == "recall" else "recall", counts)
    return np.where(reached, other, -1.0), ""


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > SLACK)
