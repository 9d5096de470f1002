"""Metrics from sums over rows, for many weightings at once: those that a declaration adds, MCC and
MAPE.

A measure takes predictions and targets, as `metrics.predict` and `metrics.targets` give them, and
returns a function of weights [R, N] → values [R], NaN where not defined. One weighting gives the
metric of the rows; many give the resamples of its interval. Each equals scikit-learn's with sample
weights.
Shapes: N rows, R weightings, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from schemas.config import Declaration
from schemas.label_config import CostMatrix, ErrorCosts
from schemas.task_metrics import (
    LOG_MEAN_LOSSES,
    LOSS_METRICS,
    TRANSFORM_METRICS,
    top_k_metric,
)
from training.objectives.constants import weighted_quantile

Weighed = Callable[[np.ndarray], np.ndarray]
Measure = Callable[[np.ndarray, np.ndarray], Weighed]
ROUNDED = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float64).tiny)


def ratio(numerator: np.ndarray, denominator: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    """Divide where the denominator is above 0, and return `otherwise` elsewhere."""
    return np.asarray(
        np.divide(
            numerator,
            denominator,
            out=np.full(np.broadcast(numerator, denominator).shape, otherwise),
            where=denominator > 0,
        )
    )


def class_sums(weights: np.ndarray, codes: np.ndarray, num_classes: int) -> np.ndarray:
    """Sum weights by class: [R, N] and class codes [N] → [R, C]."""
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    sums = np.zeros((len(weights), num_classes))
    if len(present):
        sums[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return sums


def single(measure: Measure) -> Callable[..., float | None]:
    """Return a measure as a metric of the rows: targets, predictions and weights [N] → value."""

    def value(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
        weights = np.ones(len(y)) if w is None else np.asarray(w, dtype=np.float64)
        found = float(measure(p, y)(weights[None])[0])
        return None if np.isnan(found) else found

    return value


def declared_measures(declaration: Declaration) -> dict[str, Measure]:
    """Return the measures of a single label that its loss, `evaluate.top_k` or `evaluate.costs`
    add.
    """
    evaluate, loss = declaration.evaluate, declaration.loss_kind
    found: dict[str, Measure] = {}
    if loss in LOSS_METRICS:
        found[LOSS_METRICS[loss]] = (
            quadratic_kappa if loss == "ordinal" else mean_of(row_loss(declaration))
        )
    if (transform := declaration.task.transform) != "none":
        found[TRANSFORM_METRICS[transform]] = root_mean_square_of_logs(transform)
    if evaluate.top_k is not None:
        found[top_k_metric(evaluate.top_k)] = top_k_accuracy(evaluate.top_k)
    if evaluate.costs is not None:
        found["cost"] = cost(evaluate.costs)
    return found


def unexplained(declaration: Declaration) -> Measure | None:
    """Return the loss over that of the best constant on the same rows, for a regression label whose
    loss is not about squares; None for any other.

    1 - unexplained is D², as `sklearn.metrics.d2_pinball_score` and `d2_tweedie_score`.
    """
    if declaration.loss_kind not in ("quantile", *LOG_MEAN_LOSSES):
        return None
    loss, level = row_loss(declaration), declaration.loss.quantile

    def measure(predictions: np.ndarray, target: np.ndarray) -> Weighed:
        own = mean_of(loss)(predictions, target)

        def of_constant(weights: np.ndarray) -> float:
            """Return the loss [] of the best constant under weights [N]; NaN without one."""
            total = weights.sum()
            if not total > 0:
                return np.nan
            best = (
                weighted_quantile(target, weights, level)
                if level is not None and declaration.loss_kind == "quantile"
                else weights @ target / total
            )
            # labels of 0 alone have deviance 0 from their mean
            return (
                float(weights @ loss(np.full(len(target), best), target) / total)
                if best or level
                else 0.0
            )

        return lambda weights: ratio(own(weights), np.array([of_constant(w) for w in weights]))

    return measure


# ------------------------------------------------------------------------------------- regression


def row_loss(declaration: Declaration) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the loss of each row [N] from predictions and targets [N] in the user's units.

    It is the pinball loss, or the deviance: twice what is trained. A mean of 0, which a baseline
    may predict, counts as the smallest number above it.
    """
    from scipy.special import xlogy

    loss = declaration.loss
    if declaration.loss_kind == "poisson":
        return lambda p, y: 2 * (xlogy(y, y / np.maximum(p, TINY)) - y + p)
    if declaration.loss_kind == "tweedie":
        a, b = 1 - loss.power, 2 - loss.power
        return lambda p, y: 2 * (y**b / (a * b) - y * np.maximum(p, TINY) ** a / a + p**b / b)
    level = loss.quantile or 0.5
    return lambda p, y: np.maximum(level * (y - p), (level - 1) * (y - p))


def mean_of(loss: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Measure:
    """Return the measure that is the weighted mean of a value of each row."""

    def measure(predictions: np.ndarray, target: np.ndarray) -> Weighed:
        rows = loss(predictions, target)
        return lambda weights: ratio(weights @ rows, weights.sum(1))

    return measure


def root_mean_square_of_logs(transform: str) -> Measure:
    """Return the root mean squared difference of the logarithms of predictions and labels.

    log: of log(y), so that 0.1 means about 10 %; log1p: of log(1 + y), as
    `sklearn.metrics.root_mean_squared_log_error`. A prediction of 0 or less, which a yardstick may
    make, counts as the smallest number that has a logarithm.
    """

    def logs(values: np.ndarray) -> np.ndarray:
        if transform == "log":
            return np.asarray(np.log(np.maximum(values, TINY)))
        return np.asarray(np.log1p(np.maximum(values, ROUNDED - 1)))

    def measure(predictions: np.ndarray, target: np.ndarray) -> Weighed:
        rows = (logs(predictions) - logs(target)) ** 2
        return lambda weights: np.sqrt(ratio(weights @ rows, weights.sum(1)))

    return measure


def mape(predictions: np.ndarray, target: np.ndarray) -> Weighed:
    """Mean absolute error over the absolute label, a fraction; not defined where a label is 0.

    A stored label is scaled and rounded to float32, so that a 0 comes back as a tiny number.
    """
    zero = np.abs(target) <= 2 * ROUNDED * np.abs(target).mean()
    rows = np.abs(predictions - target) / np.where(zero, 1.0, np.abs(target))

    def values(weights: np.ndarray) -> np.ndarray:
        found = ratio(weights @ rows, weights.sum(1))
        return np.where(weights @ zero > 0, np.nan, found)

    return values


# ---------------------------------------------------------------------------------------- classes


def mcc(probabilities: np.ndarray, target: np.ndarray) -> Weighed:
    """Matthews correlation coefficient of labels and predicted classes; 0 if either has only one
    class.

    Source: Gorodkin 2004 (R_K), as `sklearn.metrics.matthews_corrcoef`.
    """
    guess, num_classes = probabilities.argmax(axis=1), probabilities.shape[1]
    hit = guess == target

    def values(weights: np.ndarray) -> np.ndarray:
        true, guessed = (class_sums(weights, c, num_classes) for c in (target, guess))
        return matthews(true, guessed, (weights * hit).sum(1))

    return values


def matthews(true: np.ndarray, guessed: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return MCC [R] from weights of true and of predicted classes [R, C] and of right rows [R]."""
    # each by its own sum: of a single class the difference is exactly 0
    spread = [s.sum(1) ** 2 - (s**2).sum(1) for s in (true, guessed)]
    together = right * true.sum(1) - (true * guessed).sum(1)
    found = ratio(together, np.sqrt(spread[0] * spread[1]), 0.0)
    return np.where(true.sum(1) > 0, found, np.nan)


def quadratic_kappa(probabilities: np.ndarray, target: np.ndarray) -> Weighed:
    """Cohen's kappa of ordered classes, errors weighed by their squared distance.

    Source: Cohen 1968, as `sklearn.metrics.cohen_kappa_score` with weights quadratic.
    """
    guess, num_classes = probabilities.argmax(axis=1), probabilities.shape[1]
    squares = (np.subtract.outer(np.arange(num_classes), np.arange(num_classes))) ** 2.0
    rows = squares[target, guess]

    def values(weights: np.ndarray) -> np.ndarray:
        true, guessed = (class_sums(weights, c, num_classes) for c in (target, guess))
        by_chance = ((true @ squares) * guessed).sum(1)  # [R, C] x [C, C]
        return 1 - ratio(weights @ rows * weights.sum(1), by_chance)

    return values


def top_k_accuracy(k: int) -> Measure:
    """Return the measure of rows whose class is among the k most probable; lower index at a tie."""

    def right(probabilities: np.ndarray, target: np.ndarray) -> np.ndarray:
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
        return np.asarray((best == target[:, None]).any(axis=1), dtype=np.float64)

    return mean_of(right)


def cost(costs: ErrorCosts | CostMatrix) -> Measure:
    """Return the measure of the mean cost of the predicted class."""
    matrix = np.array(
        ((0.0, costs.false_positive), (costs.false_negative, 0.0))
        if isinstance(costs, ErrorCosts)
        else costs
    )
    return mean_of(lambda p, y: matrix[y, p.argmax(axis=1)])
