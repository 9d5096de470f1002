"""What a verdict on several labels adds: labels that nothing could score, and the log loss.

The metric of a multilabel model ranks rows (macro AUROC), and is as good where every probability is
far too high. So its log loss is compared with that of the constant prediction as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.config import Declaration
from schemas.records import Interval
from training.formatting import number
from training.objectives.bootstrap import paired_difference

LOSS = "log_loss"


def add_labels(
    declaration: Declaration,
    compared: dict[str, Any],
    left_out: str,
    predictions: np.ndarray,
    constant: np.ndarray | None,
    target: np.ndarray,
    metrics: dict[str, Interval],
    resampling: dict[str, Any],
) -> dict[str, Any]:
    """Return the fields of a report with what its verdict lacks about the labels.

    Args:
        declaration: gives the task and the metric.
        compared: fields of the report, with `verdict` and `baselines`; empty without baselines.
        left_out: sentence on labels that the means leave out; empty if none.
        predictions: [N, K] of the model.
        constant: [N, K] of the constant prediction; None without one.
        target: [N, L], NaN where unknown.
        metrics: of the model, with intervals.
        resampling: arguments of `bootstrap.paired_difference`.
    """
    if not compared:
        return compared
    added = [left_out] if left_out else []
    ranked = declaration.task.kind == "multilabel" and declaration.metric != LOSS
    if ranked and constant is not None and compared["has_skill"]:
        apart = paired_difference(declaration, LOSS, predictions, constant, target, **resampling)
        own, other = metrics[LOSS].value, compared["baselines"]["constant"][LOSS]
        added += loss_note(own, other, apart)
    return compared | {"verdict": " ".join([compared["verdict"], *added])}


def loss_note(own: float | None, constant: float | None, apart: Interval) -> list[str]:
    """Return a sentence on a log loss that is not below the constant prediction's; else none.

    Args:
        own: log loss of the model.
        constant: log loss of the constant prediction.
        apart: the first minus the second, on the same rows.
    """
    if apart.low is None or apart.high is None or apart.high < 0:
        return []
    words = "above" if apart.low > 0 else "not distinguishable from"
    return [
        f"Its log loss {number(own)} is {words} that of the constant prediction"
        f" ({number(constant)}): it ranks rows, but its probabilities are no better than the base"
        " rates; declare evaluate.calibrate: temperature, or use the ranks alone."
    ]
