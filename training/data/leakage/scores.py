"""Strength with which one column predicts the label: learned on rows A, scored on rows B.

The standard error is over groups of rows. Shapes: A and B rows, K targets, C codes of a column.
Strength: 2 AUROC - 1 of a class (of several, their mean by share), and the explained share of
variance of a number's ranks: 0 for no information, 1 for full information.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from training.data.dependence.strength import clustered_error, explained, gini
from training.data.leakage.sampled import Codes, Flags, Floats, Label, Sampled

BINS = 64
# rows of the overall mean that are added to those of a code
LEAST_SHRINKAGE, MOST_SHRINKAGE = (0.1, 100.0)


class Score(NamedTuple):
    """Strength on B and its standard error, clustered by group; `rows` of B that know the label."""

    strength: float
    error: float
    rows: int

    @property
    def z(self) -> float:
        """Return the strength in standard errors."""
        return self.strength / max(self.error, 1e-9)


class Halves(NamedTuple):
    """Train rows as two parts like those of the declared way of splitting: masks [N]."""

    a: Flags
    b: Flags


def halves(rows: Sampled, kind: str, is_timed: bool) -> Halves:
    """Divide train in two by the user's own rule.

    Whole groups stay together if groups are kept whole; the parts are earlier and later rows if
    time decides.

    Args:
        rows: the sample; its order is that of hashed ids, so that every second row or group is a
            draw by hash.
        kind: `split.kind`.
        is_timed: True if the splits are ordered in time.
    """
    train = np.flatnonzero(rows.train)
    if is_timed and np.isfinite(rows.time[train]).all() and len(train):
        later = rows.time > np.median(rows.time[train])
        return Halves(rows.train & ~later, rows.train & later)
    _, place = first_seen(rows.group[train])
    second = np.zeros(len(rows.train), dtype=bool)
    second[train] = place % 2 == 1
    return Halves(rows.train & ~second, rows.train & second)


def first_seen(codes: Codes) -> tuple[int, Codes]:
    """Return the number of values, and for each row the number of its value.

    Values are numbered in the order in which they appear.
    """
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return len(first), np.argsort(np.argsort(first))[inverse]


def column_codes(rows: Sampled, name: str, known: Flags) -> Codes:
    """Return codes [N] of a column; 0 is null.

    They are quantile bins of a number, cut on the rows `known`, or values of a category.
    """
    if name in rows.category:
        return rows.category[name] + 1
    return number_codes(rows.numeric[name], known)


def number_codes(values: Floats, known: Flags, bins: int = BINS) -> Codes:
    """Return bins [N] of equal size on the rows `known`, from 1; 0 where the value is NaN.

    A value that many rows share is its own bin.
    """
    present = values[known & ~np.isnan(values)]
    if not len(present):
        return np.where(np.isnan(values), 0, 1).astype(np.int64)
    bins = max(4, min(bins, len(present) // 30))
    found = np.unique(present)
    edges = (
        found
        if len(found) <= bins
        else np.unique(np.quantile(present, np.arange(1, bins) / bins, method="lower"))
    )
    # odd at an edge, even between two
    place = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right")
    return np.where(np.isnan(values), 0, 1 + place).astype(np.int64)


def learned(codes: Codes, targets: Floats, part: Flags) -> Floats:
    """Return the mean target [C, K] of each code over a part, shrunk to the overall mean.

    A code that the part lacks gets the overall mean. The shrinkage is estimated as in a one-way
    analysis of variance: by the spread within codes over the spread between them.
    """
    size = int(codes.max(initial=0)) + 1
    counts = np.bincount(codes[part], minlength=size).astype(np.float64)
    return np.stack([_shrunk(counts, codes[part], column[part]) for column in targets.T], axis=1)


def _shrunk(counts: Floats, codes: Codes, target: Floats) -> Floats:
    """Return the means [C] of one target, shrunk to the overall mean.

    The null hypothesis is that codes do not differ.
    """
    rows, mean = len(target), target.mean()
    sums = np.bincount(codes, weights=target - mean, minlength=len(counts))
    between = (sums**2 / np.maximum(counts, 1)).sum()
    filled = int((counts > 0).sum())
    within = max(((target - mean) ** 2).sum() - between, 0.0) / max(rows - filled, 1)
    spread = (between - (filled - 1) * within) / max(rows - (counts**2).sum() / rows, 1.0)
    weight = (
        float(np.clip(within / max(spread, 1e-12), LEAST_SHRINKAGE, MOST_SHRINKAGE))
        if rows > filled
        else MOST_SHRINKAGE
    )
    return np.asarray(mean + sums / (counts + weight))


def score_codes(codes: Codes, label: Label, halves: Halves, group: Codes) -> Score:
    """Return the strength of a column, given as codes."""
    known = ~np.isnan(label.targets[:, 0])
    a, b = halves.a & known, halves.b & known
    if a.sum() < 2 or b.sum() < 2:
        return Score(0.0, 1.0, int(b.sum()))
    means, own = learned(codes, label.targets, a), codes[b]
    if label.kind == "regression":
        return _explained(means[own, 0], label.targets[b, 0], group[b])
    return score_predictions(means, label.targets[b], label.kind, group[b], own)


def score_predictions(
    predicted: Floats, targets: Floats, kind: str, group: Codes, codes: Codes | None = None
) -> Score:
    """Return the strength of predictions [B, K] for targets [B, K].

    With `codes` [B] of a class's rows, predictions are those of each code [C, K].
    """
    if kind == "regression":
        return _explained(predicted[:, 0], targets[:, 0], group)
    weights = targets.mean(axis=0) * (1 - targets.mean(axis=0))
    if not weights.sum():
        return Score(0.0, 1.0, len(targets))
    weights = weights / weights.sum()
    strength, influence = 0.0, np.zeros(len(targets))
    for k in np.flatnonzero(weights):
        own, moved = gini(predicted[:, k], targets[:, k] > 0.5, codes)
        strength, influence = strength + weights[k] * own, influence + weights[k] * moved
    return Score(float(strength), clustered_error(influence, group), len(targets))


def _explained(predicted: Floats, target: Floats, group: Codes) -> Score:
    if target.min() == target.max():
        return Score(0.0, 1.0, len(target))
    share, missed = explained(predicted, target)
    return Score(share, clustered_error(missed, group), len(target))
