"""Temperatures and thresholds of a network's labels, from scores of rows that are given.

N rows, K scores, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import nn

from schemas.calibration_records import Calibration, ThresholdChoice, thresholds_of
from schemas.config import Declaration
from schemas.load import declare
from schemas.records import RunSpec, Statistics
from training.data.arrays.shards import load_arrays
from training.evaluation.baselines import baseline_predictions
from training.models.temperature import temperature_of
from training.objectives.calibration import fit_temperature, reliability
from training.objectives.metrics import predict, targets
from training.objectives.targets import Targets, decided, targets_of
from training.objectives.thresholds import choose_threshold

Decides = tuple[Targets, float]  # several labels with thresholds, or the threshold of a single one


class Known(NamedTuple):
    """Rows of one class label that are known, in the form of a single label.

    `name`, `kind`: of the label. `scores` [M, K], `target` [M], `weight` [M] or None.
    """

    name: str
    kind: str
    scores: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    declaration: Declaration
    statistics: Statistics

    @property
    def is_empty(self) -> bool:
        """True if no row counts."""
        return not len(self.target) or (self.weight is not None and not self.weight.any())

    def probabilities(self, temperature: float = 1.0) -> np.ndarray:
        """Return probabilities [M, C] of the scores divided by a temperature."""
        return predict(self.declaration, self.statistics, self.scores / temperature)


def class_labels(
    run: RunSpec, scores: np.ndarray, target: np.ndarray, weight: np.ndarray | None
) -> Iterator[Known]:
    """Yield each class label with its known rows.

    Args:
        run: The trained run.
        scores: [N, K].
        target: [N], or for several labels [N, L] with NaN where unknown.
        weight: Sample weights [N].
    """
    declaration = declare(run.declaration)
    each = targets_of(declaration, run.statistics)
    if not each and declaration.task.kind in ("binary", "multiclass"):
        kind = declaration.task.kind
        yield Known(run.spec.label, kind, scores, target, weight, declaration, run.statistics)
    for i, t in enumerate(each):
        if t.kind != "regression":
            rows = np.flatnonzero(~np.isnan(target[:, i]))
            yield Known(
                t.name,
                t.kind,
                scores[rows][:, t.columns],
                target[rows, i].astype(np.int64),
                None if weight is None else np.asarray(weight)[rows],
                t.declaration,
                t.statistics,
            )


def calibrated(known: Known, temperature: float | None = None) -> Calibration:
    """Return the reliability of a label's rows before and after its temperature.

    Args:
        known: Rows with scores from before the temperature; at least one counts.
        temperature: None: fit it on these rows.
    """
    chosen = temperature or fit_temperature(known.scores, known.target, known.weight)
    before, after = (
        reliability(known.kind, known.probabilities(t), known.target, known.weight)
        for t in (1.0, chosen)
    )
    return Calibration(
        label=known.name,
        temperature=chosen,
        kept=after.log_loss < before.log_loss,
        rows=len(known.target),
        before=before,
        after=after,
    )


def calibration_words(found: Calibration, on_val: bool = True) -> str:
    """Describe a temperature in one line, with the figures of val or of test rows."""
    kept = "" if found.kept or not on_val else ", not kept as log loss does not fall"
    return (
        f"{found.label}: temperature {found.temperature:.4g}{kept}; log loss"
        f" {found.before.log_loss:.4f} → {found.after.log_loss:.4f}, calibration error"
        f" {found.before.ece:.4f} → {found.after.ece:.4f}"
    )


def calibration_of(
    run: RunSpec,
    network: nn.Module,
    scores: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
) -> tuple[Calibration, ...]:
    """Return the reliability of rows before and after the network's temperature; () without one.

    Args:
        run: The trained run.
        network: Divides its scores by the temperature.
        scores: Its scores [N, K].
        target: See `class_labels`.
        weight: Sample weights [N].
    """
    temperature = temperature_of(network)
    if temperature is None:
        return ()
    divisors = temperature.divisors().double().numpy()
    before = np.asarray(scores, dtype=np.float64) * divisors
    each = targets_of(declare(run.declaration), run.statistics)
    first = {t.name: t.columns.start for t in each}
    return tuple(
        calibrated(known, float(divisors[first.get(known.name, 0)]))
        for known in class_labels(run, before, target, weight)
        if not known.is_empty
    )


def choose_thresholds(
    run: RunSpec, predictions: np.ndarray, target: np.ndarray, weight: np.ndarray | None
) -> tuple[ThresholdChoice, ...]:
    """Return the declared threshold of each binary label, chosen on the given rows.

    Args:
        run: The trained run.
        predictions: Of `metrics.predict`.
        target: Of `metrics.targets`.
        weight: Sample weights [N].
    """
    declaration = declare(run.declaration)
    how, each = declaration.evaluate.threshold, targets_of(declaration, run.statistics)
    if not each:
        return (choose_threshold(run.spec.label, how, predictions[:, 1], target, weight),)
    found = []
    for i, t in enumerate(each):
        if t.kind == "binary":
            rows = np.flatnonzero(~np.isnan(target[:, i]))
            weights = None if weight is None else np.asarray(weight)[rows]
            own, truth = t.of(predictions)[rows, 1], target[rows, i].astype(np.int64)
            found.append(choose_threshold(t.name, how, own, truth, weights))
    return tuple(found)


def baseline_decisions(run: RunSpec, decides: bool) -> dict[str, Decides]:
    """Return how each baseline decides: by the declared rule on the same validation rows.

    The network's threshold would be unfair to a baseline, and 0.5 unfair to the network.

    Args:
        run: The trained run.
        decides: False: nothing is declared, and every baseline decides at 0.5.
    """
    if not decides:
        return {}
    declaration, statistics = declare(run.declaration), run.statistics
    data = load_arrays(run.arrays.val)
    target = targets(declaration, statistics, data["label"])
    # fitted once more, which only runs with a threshold pay for
    others = baseline_predictions(declaration, statistics, run.arrays, "val")
    labels = targets_of(declaration, statistics)
    return {
        name: decided(labels, thresholds_of(choose_thresholds(run, p, target, data.get("weight"))))
        for name, p in others.items()
    }
