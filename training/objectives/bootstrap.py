"""Bootstrap confidence intervals of metrics, by row or group, and of differences of two models.

A resample is a weight per row: how often the row, or its whole group, was drawn. Rows are sorted
once. Every metric of many resamples is then computed from sums and cumulative sums of weights; it
equals scikit-learn on the repeated rows. Draws depend on the seed and the number of units alone.
Shapes: N rows, R resamples, C classes, T runs of equal score.

With few units the percentile interval is too narrow, and for a perfect score it has no width. Below
`FEW_UNITS` it is expanded as Student's t requires, and AUROC and accuracy have at least their exact
or score interval. An interval that still has no width is left out.

Source: percentile intervals as in Efron and Tibshirani 1993, ch. 13; whole groups as in Davison and
Hinkley 1997, sec. 3.8; their expansion as in Hesterberg 2015, sec. 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd

from schemas.config import Declaration
from schemas.errors import DataError
from schemas.evaluate_config import HALF
from schemas.records import Interval
from training.objectives import token_metrics
from training.objectives.label_metrics import (
    Resampled,
    Values,
    resampled_labels,
    with_measures,
)
from training.objectives.measures import (
    Measure,
    class_sums,
    declared_measures,
    mape,
    matthews,
    ratio,
)
from training.objectives.metrics import compute_predictions, predicted_class
from training.objectives.small_samples import at_least, expanded_tail
from training.objectives.targets import Targets

BLOCK_VALUES = 2_000_000  # most weights in memory at a time
FEW_UNITS = 100  # above it the expansion is below 1 % of the width
STREAM = 0x626F6F74  # separates these draws from other uses of the seed


def intervals(
    declaration: Declaration,
    predictions: np.ndarray,
    target: np.ndarray,
    group: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
    labels: Targets = (),
    threshold: float = HALF,
    only: str | None = None,
) -> dict[str, Interval]:
    """Compute every metric of the task with its percentile bootstrap interval.

    Args:
        declaration: Gives the task.
        predictions: Probabilities [N, C] or values [N], as `metrics.predict` gives them.
        target: Class indices or values [N], as `metrics.targets` gives them.
        group: Group of each row [N], None for a row without group: whole groups are drawn. None:
            rows are drawn.
        weight: Sample weights [N].
        resamples: Number R of resamples; `confidence`: coverage of the interval, a fraction.
        seed: Same seed, same draws.
        labels: Labels of a task of several labels; predictions are then [N, K] and targets [N, L].
        threshold: Of a single binary label; `only`: the one metric of a single label to compute.

    Returns:
        `low` and `high` are None if a metric is not defined, on the rows or in more than half of
        the resamples, or if the resamples do not differ and no exact interval is known.

    Raises:
        DataError: no rows, or lengths that differ.
    """
    task = declaration.task.kind
    rest = (labels, threshold, declared_measures(declaration))
    values = compute_predictions(task, predictions, target, weight, *rest, only)
    rule = _resampled(task, predictions, target, *rest)
    resampled = _all_resamples(rule, len(target), group, weight, resamples, seed)
    units = units_of(group, len(target))
    found = {
        name: _interval(value, resampled[name], confidence, int(units.max()) + 1)
        for name, value in values.items()
    }
    if labels:
        return found
    return {
        name: at_least(interval, name, target, units, confidence, FEW_UNITS)
        for name, interval in found.items()
    }


def paired_difference(
    declaration: Declaration,
    metric: str,
    predictions: np.ndarray,
    other: np.ndarray,
    target: np.ndarray,
    group: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    resamples: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
    labels: Targets = (),
    threshold: float = HALF,
    other_decides: tuple[Targets, float] | None = None,
) -> Interval:
    """Compute the metric of `predictions` minus that of `other`, on the same rows and resamples.

    Arguments are those of `intervals`; `other` has the shape of `predictions`. `other_decides`: its
    labels and threshold, if they differ.

    Raises:
        DataError: no rows, lengths that differ, or a metric that the task does not have.
    """
    task = declaration.task.kind
    if metric not in declaration.metrics:
        raise DataError(
            f"metric {metric!r} is not one of task {task!r}: {', '.join(declaration.metrics)}"
        )
    declared = declared_measures(declaration)
    both = (predictions, (labels, threshold)), (other, other_decides or (labels, threshold))
    first, second = (
        compute_predictions(task, p, target, weight, *decides, declared, metric)[metric]
        for p, decides in both
    )
    rules = (_resampled(task, p, target, *decides, declared) for p, decides in both)
    a, b = (
        _all_resamples(rule, len(target), group, weight, resamples, seed)[metric] for rule in rules
    )
    value = None if first is None or second is None else first - second
    found = _interval(value, a - b, confidence, int(units_of(group, len(target)).max()) + 1)
    return (
        Interval(value=0.0, low=0.0, high=0.0)
        if value == 0 and not np.nan_to_num(a - b).any()
        else found
    )


# --------------------------------------------------------------------------------------- resamples


def resample_counts(num_units: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each unit is drawn, int [units], per resample: n draws with replacement from
    n.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM])))
    for _ in range(resamples):
        yield np.bincount(generator.integers(0, num_units, num_units), minlength=num_units)


def units_of(group: np.ndarray | None, num_rows: int) -> np.ndarray:
    """Return the unit of each row [N]: its group's, or its own for a row without group."""
    if group is None:
        return np.arange(num_rows)
    if len(group) != num_rows:
        raise DataError(f"expected a group for each of {num_rows} rows, got {len(group)}")
    alone = np.asarray(pd.isna(group))
    codes = np.full(num_rows, -1)
    if not alone.all():
        codes[~alone] = np.unique(np.asarray(group)[~alone].astype(str), return_inverse=True)[1]
    codes[alone] = codes.max() + 1 + np.arange(alone.sum())
    return codes


def _all_resamples(
    values: Resampled,
    num_rows: int,
    group: np.ndarray | None,
    weight: np.ndarray | None,
    resamples: int,
    seed: int,
) -> Values:
    """Compute the metrics of all resamples in blocks of limited memory."""
    units = units_of(group, num_rows)
    rows_weight = np.ones(num_rows) if weight is None else np.asarray(weight, dtype=np.float64)
    per_block = max(1, BLOCK_VALUES // num_rows)
    counts = resample_counts(int(units.max()) + 1, resamples, seed)
    blocks = []
    for start in range(0, resamples, per_block):
        drawn = np.stack([next(counts) for _ in range(min(per_block, resamples - start))])
        blocks.append(values(drawn[:, units] * rows_weight))
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _interval(
    value: float | None, resampled: np.ndarray, confidence: float, units: int
) -> Interval:
    """Return the percentile interval, expanded if units are few; none without width.

    An interval without width would wrongly mean certainty.
    """
    defined = resampled[~np.isnan(resampled)]
    if value is None or len(defined) * 2 <= len(resampled):
        return Interval(value=value)
    tail = expanded_tail(confidence, units) if units < FEW_UNITS else (1 - confidence) / 2
    low, high = (float(v) for v in np.quantile(defined, [tail, 1 - tail]))
    if high - low <= 1e-12 * max(1.0, abs(value)):
        return Interval(value=value)
    return Interval(
        value=value,
        low=min(low, value) if units < FEW_UNITS else low,
        high=max(high, value) if units < FEW_UNITS else high,
    )


# ----------------------------------------------------------------------------------------- metrics


def _resampled(
    task: str,
    predictions: np.ndarray,
    target: np.ndarray,
    labels: Targets,
    threshold: float,
    declared: Mapping[str, Measure],
) -> Resampled:
    """Compute the metrics of a task for many resamples, with `unexplained` for a single label."""
    if labels:
        return resampled_labels(task, predictions, target, labels, _MAKERS)
    own = _MAKERS[task](predictions, target, threshold)
    return with_measures(own, declared, predictions, target, threshold)


def one_resample(
    declaration: Declaration,
    metric: str,
    predictions: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    labels: Targets,
    threshold: float = HALF,
) -> float:
    """Compute a metric of the rows as they are; NaN if it is not defined.

    It is faster than `metrics.compute_predictions`.
    """
    return every_metric(declaration, predictions, target, weight, labels, threshold)[metric]


def every_metric(
    declaration: Declaration,
    predictions: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    labels: Targets,
    threshold: float = HALF,
) -> dict[str, float]:
    """Compute every metric like `one_resample`."""
    whole = np.ones(len(target)) if weight is None else np.asarray(weight, dtype=np.float64)
    task, declared = declaration.task.kind, declared_measures(declaration)
    rule = _resampled(task, predictions, target, labels, threshold, declared)
    return {name: float(found[0]) for name, found in rule(whole[None]).items()}


def _classification(
    probabilities: np.ndarray, target: np.ndarray, threshold: float = HALF
) -> Resampled:
    """Compute metrics that need no order: log loss, accuracy, balanced accuracy, F1 of each
    class.
    """
    guess = predicted_class(probabilities, threshold)
    hit = guess == target
    tiny = np.finfo(np.float64).eps
    surprise = -np.log(np.clip(probabilities[np.arange(len(target)), target], tiny, 1 - tiny))
    num_classes = probabilities.shape[1]

    def values(weights: np.ndarray) -> Values:
        total = weights.sum(1)
        true, guessed = (
            class_sums(weights, target, num_classes),
            class_sums(weights, guess, num_classes),
        )
        correct = class_sums(weights[:, hit], target[hit], num_classes)
        recall = ratio(correct, true, 0.0)
        f1 = ratio(2 * correct, true + guessed, 0.0)
        shares = ratio(true, total[:, None])
        entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1)
        log_loss = ratio(weights @ surprise, total)
        return {
            "log_loss": log_loss,
            "unexplained": np.where((true > 0).sum(1) > 1, ratio(log_loss, entropy), np.nan),
            "accuracy": ratio(correct.sum(1), total),
            "balanced_accuracy": ratio(recall.sum(1), (true > 0).sum(1)),
            "macro_f1": ratio(f1.sum(1), (true + guessed > 0).sum(1)),
            "f1": np.where(total > 0, f1[:, 1], np.nan),
            "mcc": matthews(true, guessed, correct.sum(1)),
        }

    return values


def _binary(probabilities: np.ndarray, target: np.ndarray, threshold: float = HALF) -> Resampled:
    """Compute metrics of two classes.

    AUROC and average precision use cumulative weights over runs of equal score.
    """
    unordered = _classification(probabilities, target, threshold)
    order = np.argsort(-probabilities[:, 1], kind="stable")
    ranked = probabilities[order, 1]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    positive = target[order] == 1
    squared = (probabilities[:, 1] - target) ** 2

    def values(weights: np.ndarray) -> Values:
        ordered = weights[:, order]
        # weight of positives and negatives in each run of equal score, from the highest score: [R,
        # T]
        up = np.add.reduceat(ordered * positive, starts, axis=1)
        down = np.add.reduceat(ordered * ~positive, starts, axis=1)
        above = np.cumsum(up, axis=1)
        positives, negatives = above[:, -1], down.sum(1)
        pairs = (down * (above - up / 2)).sum(1)
        precision = ratio(above, above + np.cumsum(down, axis=1), 0.0)
        found = unordered(weights)
        return {
            **{
                name: found[name]
                for name in (
                    "log_loss",
                    "unexplained",
                    "accuracy",
                    "balanced_accuracy",
                    "f1",
                    "mcc",
                )
            },
            "auroc": ratio(pairs, positives * negatives),
            "pr_auc": ratio((up * precision).sum(1), positives),
            "brier": ratio(weights @ squared, weights.sum(1)),
        }

    return values


def _regression(predictions: np.ndarray, target: np.ndarray, threshold: float = HALF) -> Resampled:
    error = predictions - target
    centered = target - target.mean()  # exact variance for labels far from 0
    relative = mape(predictions, target)
    columns = np.stack([error**2, np.abs(error), centered, centered**2], axis=1)

    def values(weights: np.ndarray) -> Values:
        total = weights.sum(1)
        squared, absolute, first, second = (
            ratio(column, total) for column in (weights @ columns).T
        )
        variance = np.where(second - first**2 > 1e-12 * second, second - first**2, 0.0)
        unexplained = ratio(squared, variance)
        return {
            "rmse": np.sqrt(squared),
            "mae": absolute,
            "r2": 1 - unexplained,
            "unexplained": unexplained,
            "mape": relative(weights),
        }

    return values


_MAKERS: dict[str, Callable[[np.ndarray, np.ndarray, float], Resampled]] = {
    "binary": _binary,
    "multiclass": _classification,
    "regression": _regression,
    "causal_lm": lambda predictions, target, _: token_metrics.resampled(predictions, target),
}
