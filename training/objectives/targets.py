"""Views of several labels as tasks of one label, each with its columns of the scores.

Code for one label (a loss, a prior, a metric, a baseline) then works for each of several: it gets
the target's own declaration and statistics. Shapes: B rows of a batch, N rows, L labels, C classes
of a label, K columns: C for each multiclass label, one for any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from schemas.config import Declaration, LossConfig, TaskConfig
from schemas.evaluate_config import HALF
from schemas.label_config import LabelKind
from schemas.records import LabelStats, Statistics

FITTED = (
    "classes",
    "class_counts",
    "class_weights",
    "label_mean",
    "label_std",
    "label_quantile",
    "target_center",
    "target_scale",
)


@dataclass(frozen=True)
class Target:
    """One label of several.

    Attributes:
        name: Name of its column.
        kind: binary, multiclass or regression.
        weight: Its weight among the labels.
        share: Weight of its known train rows as a fraction of all (see `LabelStats`).
        columns: Its columns of the raw scores [B, K], and of the predictions [N, K]: the
            probability of the positive class, one of each class, or the value.
        declaration: As if this label were the only one.
        statistics: As if this label were the only one.
        threshold: Its positive class begins above it (binary).
    """

    name: str
    kind: LabelKind
    weight: float
    share: float
    columns: slice
    declaration: Declaration
    statistics: Statistics
    threshold: float = HALF

    @property
    def width(self) -> int:
        """Number of its columns."""
        return int(self.columns.stop - self.columns.start)

    @property
    def prediction_column(self) -> str:
        """Name of the column of its predicted class or value."""
        return f"prediction_{self.name}"

    @property
    def probability_columns(self) -> list[str]:
        """Names of its probabilities: of the positive class, or of each class; none for a
        regression.
        """
        if self.kind == "binary":
            return [f"probability_{self.name}"]
        return [f"probability_{self.name}_{value}" for value in self.statistics.classes]

    def of(self, predictions: np.ndarray) -> np.ndarray:
        """Return this label's predictions, probabilities [N, C] or values [N], from all [N, K]."""
        own = predictions[:, self.columns]
        if self.kind == "regression":
            return own[:, 0]
        return np.concatenate([1 - own, own], axis=1) if self.kind == "binary" else own

    def stored(self, predictions: np.ndarray) -> np.ndarray:
        """Invert `of`: [N, C] or [N] → this label's columns."""
        if self.kind == "regression":
            return predictions[:, None]
        return predictions[:, 1:] if self.kind == "binary" else predictions


Targets = tuple[Target, ...]


def targets_of(declaration: Declaration, statistics: Statistics) -> Targets:
    """Return the labels of a task in the order of the label array; empty for a single label."""
    widths = [
        len(label.classes) if label.kind == "multiclass" else 1 for label in statistics.labels
    ]
    ends = list(accumulate(widths))
    places = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    return tuple(
        _target(declaration, statistics, label, place)
        for label, place in zip(statistics.labels, places, strict=True)
    )


def decided(labels: Targets, thresholds: Mapping[str, float]) -> tuple[Targets, float]:
    """Return several labels with their thresholds, and the threshold of a single label.

    Args:
        labels: Labels of a task of several labels; empty for a single one.
        thresholds: Label to threshold; 0.5 for a label that is not in it.
    """
    several = tuple(replace(t, threshold=thresholds.get(t.name, HALF)) for t in labels)
    return several, HALF if labels else next(iter(thresholds.values()), HALF)


def _target(
    declaration: Declaration, statistics: Statistics, label: LabelStats, place: slice
) -> Target:
    declared = declaration.task.label(label.name)
    fitted = {name: getattr(label, name) for name in FITTED}
    single = {
        "task": TaskConfig(kind=label.kind, positive=declared.positive),
        "loss": _loss(declaration.loss, label.kind, declared.loss, declared.pos_weight),
        "train": declaration.train.model_copy(update={"metric": None}),
    }
    return Target(
        name=label.name,
        kind=label.kind,
        weight=declared.weight,
        share=label.share,
        columns=place,
        declaration=declaration.model_copy(update=single),
        statistics=statistics.model_copy(update={**fitted, "rows": label.known, "labels": ()}),
    )


def _loss(shared: LossConfig, kind: LabelKind, own: str, pos_weight: object) -> LossConfig:
    """Return the loss options that apply to a label of this kind: shared ones and its own."""
    if kind == "regression":
        return LossConfig(
            kind=own, delta=shared.delta, quantile=shared.quantile, power=shared.power
        )
    if kind == "multiclass":
        return LossConfig(
            class_weights=shared.class_weights, label_smoothing=shared.label_smoothing
        )
    return LossConfig(
        class_weights=shared.class_weights,
        pos_weight=shared.pos_weight if pos_weight is None else pos_weight,
    )
