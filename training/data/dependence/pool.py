"""Rows that ties are looked for in, and the quick, fixed learner that is scored on them.

Shapes: N rows, D features.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from training.data.dependence.strength import Codes, Floats, clustered_error, explained, gini

FOLDS = 3
# of the learner: few steps, and leaves so small that it can repeat the rows of one person
LEARNER = {
    "max_iter": 30,
    "learning_rate": 0.3,
    "max_leaf_nodes": 31,
    "min_samples_leaf": 3,
    "early_stopping": False,
    "random_state": 0,
}


class Pool(NamedTuple):
    """Rows of train and validation in an order that no file decides.

    `features` [N, D], NaN for null, categories as codes; `categories` are their names; `target`
    [N] is 0 or 1, or ranks from 0 to 1; `unit` [N] codes of rows that the declared split keeps
    together.
    """

    names: tuple[str, ...]
    categories: frozenset[str]
    features: Floats
    target: Floats
    is_class: bool
    unit: Codes

    def column(self, name: str) -> Floats:
        """Return the values [N] of a feature."""
        return self.features[:, self.names.index(name)]

    def of(self, rows: Codes) -> Pool:
        """Return the chosen rows."""
        return self._replace(
            features=self.features[rows], target=self.target[rows], unit=self.unit[rows]
        )


def compact(codes: Codes) -> Codes:
    """Return codes [N] from 0 without gaps."""
    return np.asarray(np.unique(codes, return_inverse=True)[1], dtype=np.int64)


def ranks(values: Floats) -> Floats:
    """Return ranks [N] from 0 to 1; equal values share the middle."""
    order = np.sort(values)
    both = np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right")
    return np.asarray(both / (2 * len(values)))


def folds_of(group: Codes, seed: int) -> Codes:
    """Return the fold [N] of each row: groups stay whole, folds are as equal as groups allow."""
    sizes = np.bincount(group)
    order = np.random.default_rng(seed).permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load, fold = [0] * FOLDS, np.zeros(len(sizes), dtype=np.int64)
    for place in order:
        fold[place] = smallest = load.index(min(load))
        load[smallest] += int(sizes[place])
    return fold[group]


def predict(pool: Pool, train: Codes, held_out: Codes) -> Floats:
    """Return predictions of the held-out rows by a learner of the train rows.

    Source: scikit-learn's HistGradientBoosting, after Ke et al. 2017.
    """
    from sklearn.ensemble import (  # a second to import, which most drafts do not need
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    given, wanted = pool.features[train], pool.target[train]
    if wanted.min() == wanted.max():
        return np.full(len(held_out), wanted[0])
    # sums of several threads are rounded in another order, and so small a fit gains nothing by them
    with _threads().limit(limits=1, user_api="openmp"), warnings.catch_warnings():
        # a column that is null in every row of a fold
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        if pool.is_class:
            model = HistGradientBoostingClassifier(**LEARNER).fit(given, wanted.astype(np.int64))
            return np.asarray(model.predict_proba(pool.features[held_out])[:, 1], dtype=np.float64)
        fitted = HistGradientBoostingRegressor(**LEARNER).fit(given, wanted)
        return np.asarray(fitted.predict(pool.features[held_out]), dtype=np.float64)


@cache
def _threads() -> ThreadpoolController:
    """Return the threads of the libraries, once the learner's are loaded."""
    return ThreadpoolController()


def out_of_fold(pool: Pool, fold: Codes, which: Sequence[int] = range(FOLDS)) -> Floats:
    """Return predictions [N] of each row by a learner of the other folds; NaN in other folds."""
    predicted = np.full(len(fold), np.nan)
    for number in which:
        held_out, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if len(held_out) and len(train):
            predicted[held_out] = predict(pool, train, held_out)
    return predicted


def strength_of(pool: Pool, predicted: Floats) -> tuple[float, Floats]:
    """Return the strength of predictions and the influence [N] of each row; 0 of other folds."""
    known = ~np.isnan(predicted)
    target, influence = pool.target[known], np.zeros(len(predicted))
    if not known.any() or target.min() == target.max():
        return 0.0, influence
    if pool.is_class:
        strength, moved = gini(predicted[known], target > 0.5)
    else:
        strength, taken = explained(predicted[known], target)
        moved = -taken
    influence[known] = moved
    return strength, influence


def fall_error(one: Floats, other: Floats, group: Codes) -> float:
    """Return the standard error of the difference of two strengths, by groups of rows."""
    return max(clustered_error(one - other, group), 1e-9)
