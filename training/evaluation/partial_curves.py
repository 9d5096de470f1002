"""Partial dependence: the mean prediction of some rows when a column is set to each of its values.

Source: Friedman 2001, Greedy function approximation, sec. 8.2. N rows, V values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas.reason_records import PartialCurve
from schemas.records import NumericStats, Statistics
from training.data.arrays.apply import SMOOTH_BOUND, quantile_points
from training.evaluation.feature_groups import Feature
from training.evaluation.scored_sample import Sample
from training.formatting import number, plain
from training.models.shape import FIRST_VALUE
from training.objectives.targets import targets_of

MOST_CURVES, MOST_ROWS, POINTS, MOST_CATEGORIES = 5, 200, 12, 12


def partial_curves(sample: Sample, features: Sequence[Feature]) -> tuple[PartialCurve, ...]:
    """Return the curves of the first features that are a single number or category."""
    single = [f for f in features if f.places[0][1] is not None and " + " not in f.name]
    found = (_curve(sample, feature) for feature in single[:MOST_CURVES])
    return tuple(curve for curve in found if curve is not None)


def _curve(sample: Sample, feature: Feature) -> PartialCurve | None:
    (name, place), *others = feature.places
    if place is None or any(other[0] != name for other in others) or len(others) > 1:
        return None  # parts of a date lie on circles
    column = sample.arrays[name][:, place]
    if name == "numeric":
        values = np.unique(np.quantile(column, np.linspace(0.01, 0.99, POINTS)))
        given = in_units(sample.run.statistics.numeric[place], values.astype(np.float64))
        texts, numbers = tuple(number(v) for v in given), tuple(float(v) for v in given)
    else:
        codes, counts = np.unique(column, return_counts=True)
        values = codes[np.argsort(-counts, kind="stable")][:MOST_CATEGORIES]
        known = sample.run.statistics.categorical[place].values
        texts, numbers = tuple(_category(known, int(code)) for code in values), ()
    if len(values) < 2:
        return None
    means = _means(sample, feature, values)
    is_binary = sample.rows.declaration.task.kind == "binary"
    which = 1 if is_binary else int(np.argmax(np.ptp(means, axis=0)))
    what = predicted_names(sample.rows.declaration, sample.run.statistics)[which]
    return PartialCurve(
        column=feature.name, what=what, at=texts, numbers=numbers, means=tuple(means[:, which])
    )


def _means(sample: Sample, feature: Feature, values: np.ndarray) -> np.ndarray:
    """Return the mean predictions at each value [V, outputs]; indicators of nulls are off."""
    (name, place), *indicators = feature.places
    count = min(MOST_ROWS, len(sample.rows.target))
    repeated = {
        key: np.concatenate([block[:count]] * len(values)) for key, block in sample.arrays.items()
    }
    repeated[name][:, place] = np.repeat(values, count)
    for _, other in indicators:
        repeated[name][:, other] = 0
    found = sample.predictions(repeated)
    wide = found.reshape(len(values), count, -1)
    return np.asarray(wide.mean(axis=1))


def predicted_names(declaration: Any, statistics: Statistics) -> list[str]:
    """Name each column of the predictions."""
    if several := targets_of(declaration, statistics):
        return [
            name
            for label in several
            for name in (label.probability_columns or [label.prediction_column])
        ]
    if statistics.classes:
        return [f"probability of {plain(value, 40)}" for value in statistics.classes]
    return ["prediction"]


def _category(values: Sequence[str], code: int) -> str:
    names = {0: "unknown", 1: "missing"}
    return names.get(code) or plain(values[code - FIRST_VALUE], 40)


def in_units(column: NumericStats, scaled: np.ndarray) -> np.ndarray:
    """Return scaled values of a column in its own units."""
    if column.method == "smooth":
        part = np.clip(scaled / SMOOTH_BOUND, -0.999, 0.999)
        scaled = scaled / np.sqrt(1 - part * part)
    elif column.method == "quantile":
        knots, scores = quantile_points(column)
        scaled = np.interp(scaled, scores, knots)
    return np.asarray(scaled * column.scale + column.center)
