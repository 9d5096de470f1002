"""Rows that baselines are fitted on, and predictions of fitted ones in chunks.

N rows, D columns, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from schemas.config import Declaration
from schemas.records import Statistics
from training.boosting.tree_inputs import Arrays, matrix, num_columns
from training.objectives.metrics import in_label_units

Predict = Callable[[Arrays], np.ndarray]
MAX_TREE_VALUES = 100_000_000  # most rows x columns for fitting trees
MAX_CHUNK_VALUES = 20_000_000  # rows x columns predicted at a time


def first_rows(statistics: Statistics, values: int) -> slice:
    """Return the first rows whose inputs fit a number of values.

    Rows are in the order of a hash, so the first ones are a random sample.
    """
    return slice(0, max(1000, values // num_columns(statistics)))


def weight_of(arrays: Arrays, rows: slice) -> np.ndarray | None:
    """Return the sample weights of the rows, or None."""
    return arrays["weight"][rows] if "weight" in arrays else None


def predictor(
    declaration: Declaration,
    statistics: Statistics,
    model: Any,
    inputs_of: Callable[[Statistics, Arrays, slice], Any] = matrix,
) -> Predict:
    """Return predictions like `metrics.predict`, in chunks.

    A class that the fitted rows lacked has probability 0.

    Args:
        declaration: Gives the task.
        statistics: Fitted on train.
        model: Fitted; its classes are class indices.
        inputs_of: Makes what the model takes from arrays.
    """

    def chunk(rows: Arrays, some: slice) -> np.ndarray:
        inputs = inputs_of(statistics, rows, some)
        if declaration.task.kind == "regression":
            return in_label_units(statistics, np.asarray(model.predict(inputs), dtype=np.float64))
        probabilities = np.zeros((inputs.shape[0], len(statistics.classes)))
        probabilities[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(inputs)
        # scikit-learn's may be float32
        return np.asarray(probabilities / probabilities.sum(axis=1, keepdims=True))

    def predict(rows: Arrays) -> np.ndarray:
        step = first_rows(statistics, MAX_CHUNK_VALUES).stop
        return np.concatenate(
            [
                chunk(rows, slice(start, start + step))
                for start in range(0, len(rows["label"]), step)
            ]
        )

    return predict
