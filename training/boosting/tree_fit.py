"""Fit scikit-learn's HistGradientBoosting, stopped early on validation rows.

The baseline `boosting` and `model.kind: boosting` are this same fit. N rows, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

PATIENCE = 20  # iterations without a lower validation loss


@dataclass(frozen=True)
class TreeRows:
    """Rows of a fit: `features` float32 [N, D], `label` [N] as stored, `weight` [N] or None."""

    features: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None

    def of(self, rows: np.ndarray) -> TreeRows:
        """Return the chosen rows."""
        weight = None if self.weight is None else self.weight[rows]
        return TreeRows(self.features[rows], self.label[rows], weight)


def fit_boosting(
    train: TreeRows, val: TreeRows, native: list[int], regression: bool, **options: Any
) -> Any:
    """Return the fitted scikit-learn model with the lowest validation loss.

    Categories are fitted as sets of values and by the order of their codes, since sets can overfit
    columns with many values; the better fit on validation is returned. Validation rows of a class
    that no train row has are left out.

    Args:
        train: rows that the trees are fitted on.
        val: rows that stop the fit and choose between the two.
        native: columns whose codes may be split into sets.
        regression: numbers, otherwise classes.
        options: of the scikit-learn class.
    """
    make = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    held_out = val if regression else val.of(np.isin(val.label, train.label))
    given = {"X_val": held_out.features, "y_val": held_out.label}
    if held_out.weight is not None:
        given["sample_weight_val"] = held_out.weight
    fitted = []
    for categories in [native, None] if native else [None]:
        model = make(
            categorical_features=categories,
            early_stopping=True,
            **{"n_iter_no_change": PATIENCE, **options},
        )
        fitted.append(model.fit(train.features, train.label, sample_weight=train.weight, **given))
    return max(fitted, key=lambda m: float(np.max(m.validation_score_)))


def best_iteration(model: Any) -> int:
    """Return the iterations up to the lowest validation loss, at least one."""
    return max(1, int(np.argmax(model.validation_score_)))
