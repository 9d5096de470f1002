"""Permutation test: probability that scores independent of the labels do as well as these.

Labels are permuted over the rows, whole groups if rows have them, and the metric is computed again.
This holds for any metric and any number of rows. A bootstrap of few rows gives intervals that are
too narrow or have no width. Some metrics make the constant prediction easy to beat (macro F1 of one
class only). N rows, K values per row.

Source: p-values that are never 0 as in Phipson and Smyth 2010; an early end where chance suffices
as in Besag and Clifford 1991.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from schemas.config import Declaration
from schemas.evaluate_config import HALF
from schemas.task_metrics import TRANSFORM_METRICS
from training.data.leakage.arrangements import (
    ENOUGH_UNITS,
    shortage,
    shortage_of_class,
    shortage_of_signs,
    tail,
)
from training.objectives.bootstrap import one_resample, units_of
from training.objectives.targets import Targets

FEWEST_DRAWS, MOST_DRAWS = 99, 999
MOST_VALUES = 20_000_000  # most rows x draws
# above it the bootstrap holds, for metrics where a constant equals scores without skill
MANY_UNITS = 2000
# scores without skill beat a constant that always predicts one class, or the mean
# (in the label's units also the constant that is best for its logarithm)
UNFAIR_TO_CONSTANTS = ("f1", "macro_f1", "cost", "mape")
STREAM = 0x7065726D  # separates these draws from other uses of the seed


def too_few_units(declaration: Declaration, target: np.ndarray, group: np.ndarray | None) -> str:
    """Return why no scores could show skill on these rows; empty if some could.

    Args:
        declaration: Gives task and confidence.
        target: Targets from `metrics.targets`; for documents any array [N, 2].
        group: Group of each row [N]; None: each row is a unit.
    """
    units = units_of(group, len(target))
    unit = (
        "group"
        if group is not None
        else "document"
        if declaration.task.kind == "causal_lm"
        else "row"
    )
    # each document's loss against a model without context: signs, not orders
    if declaration.task.kind == "causal_lm":
        return shortage_of_signs(int(units.max()) + 1, unit, declaration.evaluate.confidence)
    if units.max() + 1 >= ENOUGH_UNITS:
        return _too_few_of_class(declaration, np.asarray(target), units)
    rows = pd.DataFrame(np.asarray(target).reshape(len(target), -1))
    labels = rows.groupby(units, sort=True).apply(
        lambda part: part.to_numpy().tobytes(), include_groups=False
    )
    return shortage(labels.value_counts().tolist(), unit, declaration.evaluate.confidence)


def permutation_chance(
    declaration: Declaration,
    predictions: np.ndarray,
    target: np.ndarray,
    group: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    labels: Targets = (),
    seed: int = 0,
    always: bool = False,
    threshold: float = HALF,
) -> float | None:
    """Return the fraction of permutations in which the declared metric is at least as good.

    The unpermuted rows count as one.

    Args:
        declaration: Gives metric, task and confidence.
        predictions: From `metrics.predict`.
        target: From `metrics.targets`.
        group: Group of each row [N], None for a row without group.
        weight: Sample weights [N].
        labels: Labels of a task of several labels.
        seed: Same seed, same draws.
        always: Also with many rows.
        threshold: Of a single binary label.

    Returns:
        None if the bootstrap is enough: many units, and a metric in which a constant is not worse
        than chance.
    """
    metric = declaration.metric
    units = units_of(group, len(target))
    bootstrap_holds = _has_many(target, units, labels) and not _is_unfair(declaration)
    if declaration.task.kind == "causal_lm" or (bootstrap_holds and not always):
        return None
    sign = 1.0 if declaration.greater_is_better else -1.0

    def measured(labels_of_rows: np.ndarray) -> float:
        found = sign * one_resample(
            declaration, metric, predictions, labels_of_rows, weight, labels, threshold
        )
        return found if math.isfinite(found) else math.inf  # not defined: no evidence of skill

    observed = measured(target)
    if not math.isfinite(observed):
        return 1.0
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM])))
    draws = _num_draws(target.size, declaration.evaluate.confidence)
    slack = 1e-12 * max(1.0, abs(observed))
    as_good, limit = 0, 1 + math.floor(draws * tail(declaration.evaluate.confidence))
    for number, order in enumerate(permutations(units, draws, generator), start=1):
        as_good += measured(target[order]) >= observed - slack
        if as_good > limit:
            return as_good / number
    return (1 + as_good) / (1 + draws)


def permutations(
    units: np.ndarray, draws: int, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield for each draw the row [N] that gives each row its label. All rows of a unit get labels
    of one other unit, repeated if that has fewer rows.
    """
    order = np.argsort(units, kind="stable")
    sizes = np.bincount(units)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(len(units)) - np.repeat(starts, sizes)  # position within its unit

    for _ in range(draws):
        other = generator.permutation(len(sizes))
        found = np.empty(len(units), dtype=np.int64)
        found[order] = order[
            np.repeat(starts[other], sizes) + place % np.repeat(sizes[other], sizes)
        ]
        yield found


def _num_draws(values: int, confidence: float) -> int:
    least = max(FEWEST_DRAWS, math.ceil(2 / tail(confidence)))
    return max(min(MOST_VALUES // values, MOST_DRAWS), least)


def _has_many(target: np.ndarray, units: np.ndarray, labels: Targets) -> bool:
    """Return True if there are many units, also of the rarer class."""
    if units.max() + 1 < MANY_UNITS:
        return False
    if labels or target.dtype.kind == "f":
        return True
    counts = [len(np.unique(units[target == value])) for value in np.unique(target)]
    return min(counts) >= 30


def _is_unfair(declaration: Declaration) -> bool:
    """Return True if scores without skill may be better than the constant in the metric."""
    own = TRANSFORM_METRICS.get(declaration.task.transform, declaration.metric)
    return declaration.metric in UNFAIR_TO_CONSTANTS or declaration.metric != own


def _too_few_of_class(declaration: Declaration, target: np.ndarray, units: np.ndarray) -> str:
    """Say that the rarer class of a binary label has too few rows or groups."""
    if declaration.task.kind != "binary":
        return ""
    # [units of the negative, of the positive class]
    each = [len(np.unique(units[target == code])) for code in (0, 1)]
    rarer = int(np.argmin(each))
    what = ("negative", "positive")[rarer] + ("" if each[rarer] == 1 else "s")
    return shortage_of_class(each[rarer], int(units.max()) + 1, what)
