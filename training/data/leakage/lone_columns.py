"""One column that explains nearly all of the label where nothing else explains any of it.

A good lawful predictor has company: other columns explain a part of the label too, or a part of
what the one leaves open, or the label's own past explains as much.
Shapes: A and B rows of the halves of train, N rows of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from training.data.leakage.entity_series import Features, series_of
from training.data.leakage.label_sql import label_numbers
from training.data.leakage.sampled import Flags, Floats, Label, Sampled
from training.data.leakage.sides import Sides

# strength alone, less two errors: of a number a correlation of about 0.9, of a class an AUROC of
# 0.975
LEAST_ALONE = {"regression": 0.8, "binary": 0.95}
MOST_COMPANY = 0.3  # of the label, or of what the column leaves open, by all other columns
KNOTS = 12  # of the curve by which a column predicts a number
SMOOTH = 1e-3
OWN_VALUES = 0.5  # share of the column's values that are labels of other rows: its lag
SAME_VALUES = 0.9  # share of rows in which a column is the label some rows before
LAGS = (1, 2, 3, 7, 12, 24)
LEAST_DIFFERENT = 0.5  # share of distinct labels, below which equal values say nothing


def left_open(rows: Sampled, name: str, label: Label, fitted_on: Flags) -> Label:
    """Return the label less what a smooth curve over one numeric column predicts of it.

    Args:
        rows: the sample.
        name: a numeric column.
        label: of one target: a number's rank, or 0 and 1.
        fitted_on: rows [N] on which the curve is fitted; nulls stand at the column's middle.
    """
    known = fitted_on & ~np.isnan(label.targets[:, 0])
    inputs = _curve(rows.numeric[name], known)
    weights = np.linalg.solve(
        inputs[known].T @ inputs[known] + SMOOTH * known.sum() * np.eye(inputs.shape[1]),
        inputs[known].T @ label.targets[known, 0],
    )
    return label._replace(
        kind="regression", targets=label.targets[:, :1] - (inputs @ weights)[:, None]
    )


def _curve(values: Floats, known: Flags) -> Floats:
    """Return a basis [N, KNOTS + 3] of curves over the rank of a column: bends at equal shares."""
    present = np.sort(values[known & ~np.isnan(values)])
    rank = np.searchsorted(present, values) / max(1, len(present))
    scaled = np.clip((values - present.mean()) / (present.std() or 1.0), -5, 5)
    isnull = np.isnan(values)
    rank, scaled = np.where(isnull, 0.5, rank), np.where(isnull, 0.0, scaled)
    bends = np.maximum(0.0, rank[:, None] - np.arange(KNOTS)[None, :] / KNOTS)
    return np.concatenate(
        [np.ones((len(rank), 1)), scaled[:, None], isnull[:, None].astype(float), bends], axis=1
    )


def holds_labels_of_other_rows(rows: Sampled, name: str, label: Label) -> bool:
    """Return True if most values of a column are labels of the sample: a lag of the label.

    Labels of few different values say nothing.
    """
    values = label.values[~np.isnan(label.values)]
    column = rows.numeric[name]
    column = column[~np.isnan(column)]
    if not len(column) or len(np.unique(values)) < LEAST_DIFFERENT * len(values):
        return False
    return bool(np.isin(column, values).mean() >= OWN_VALUES)


class OwnPast(NamedTuple):
    """What the last values of a label say of the next one; nothing without a declared time.

    Last values are those of the declared group, of the whole table, or of the rows of whatever
    other column may name an entity.
    """

    sides: Sides

    def share(self, name: str) -> float:
        """Return the share of a label's variance that its last value explains, at most."""
        found = 0.0
        for now, last, _ in self._pairs(name, 1):
            if len(now) > 2 and now.std() and last.std():
                found = max(found, float(np.corrcoef(last, now)[0, 1] ** 2))
        return found

    def holds(self, column: str, name: str) -> bool:
        """Return True if a numeric column is a number's value some rows before."""
        if column not in self.sides.spec.numeric:
            return False
        if self.sides.declaration.task.label(name).kind != "regression":
            return False
        return any(
            len(last) > 0 and np.isclose(values([column])[0], last).mean() >= SAME_VALUES
            for lag in LAGS
            for _, last, values in self._pairs(name, lag)
        )

    def _pairs(self, name: str, lag: int) -> Iterator[tuple[Floats, Floats, Features]]:
        """Yield values, those some rows before, and the features of the former, of each entity."""
        if self.sides.spec.time is None:
            return
        for label in label_numbers(self.sides):
            for series in series_of(self.sides, label) if label.name == name else ():
                target, repeats = series.target, series.repeats
                same = (series.entity[lag:] == series.entity[:-lag]) & (
                    repeats[lag:] == repeats[:-lag]
                )
                yield target[lag:][same], target[:-lag][same], _later(series.features, lag, same)


def _later(features: Features, lag: int, chosen: Flags) -> Features:
    """Return features of the rows from `lag` on that are chosen."""
    return lambda names: features(names)[:, lag:][:, chosen]
