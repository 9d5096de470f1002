"""Estimators of scikit-learn behind the baselines, each with the loss of the declaration.

N rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge, TweedieRegressor

from schemas.config import Declaration
from schemas.task_metrics import LOG_MEAN_LOSSES
from training.objectives.constants import weighted_quantile
from training.objectives.losses import declared_quantile


class QuantileRidge(Ridge):
    """Ridge regression moved by the quantile of its residuals, so that this share lies below.

    It costs a sort; a linear program for each quantile would not end on many rows.
    """

    def __init__(self, quantile: float = 0.5) -> None:
        super().__init__()
        self.quantile = quantile

    def fit(self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None = None) -> QuantileRidge:
        """Fit by least squares, then move the intercept."""
        super().fit(X, y, sample_weight=sample_weight)
        weights = np.ones(len(y)) if sample_weight is None else sample_weight
        self.intercept_ += weighted_quantile(y - self.predict(X), weights, self.quantile)
        return self


def best_constant(declaration: Declaration, target: np.ndarray, weight: np.ndarray | None) -> float:
    """Return the weighted mean of labels [N], or their quantile with loss quantile."""
    if declaration.loss_kind == "quantile":
        weights = np.ones(len(target)) if weight is None else weight
        return weighted_quantile(target, weights, declared_quantile(declaration))
    return float(np.average(target, weights=weight))


def linear_estimator(declaration: Declaration, rows: int, steps: int) -> Any:
    """Return an unfitted linear model: logistic, ridge, or with a log link, after the loss.

    Args:
        declaration: Gives task and loss.
        rows: Rows of the fit; the penalty of all of them weighs as 1 row.
        steps: Most iterations.
    """
    if declaration.task.kind != "regression":
        return LogisticRegression(max_iter=steps)
    if declaration.loss_kind in LOG_MEAN_LOSSES:
        return TweedieRegressor(power=_power(declaration), alpha=1 / rows, max_iter=steps)
    if declaration.loss_kind == "quantile":
        return QuantileRidge(declared_quantile(declaration))
    return Ridge()


def boosting_loss(declaration: Declaration) -> dict[str, Any]:
    """Return the option of boosting that is nearest to the declared loss; none for its default.

    Trees have no Tweedie loss: they take Poisson's, whose minimum is the mean as well.
    """
    if declaration.task.kind != "regression":
        return {}
    if declaration.loss_kind in LOG_MEAN_LOSSES:
        return {"loss": "poisson"}
    if declaration.loss_kind == "quantile":
        return {"loss": "quantile", "quantile": declared_quantile(declaration)}
    return {}


def _power(declaration: Declaration) -> float:
    return 1.0 if declaration.loss_kind == "poisson" else declaration.loss.power
