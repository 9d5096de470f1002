"""A verdict on several labels names what it leaves out, and looks at the log loss too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.records import Interval
from tests.training.test_label_metrics import rows_of
from training.evaluation.label_verdict import add_labels, loss_note
from training.objectives.label_metrics import undefined_note
from training.objectives.metrics import compute_predictions

RESAMPLING: dict[str, Any] = {"group": None, "weight": None, "resamples": 200, "seed": 0}


def verdict_of(sharpness: float, has_skill: bool = True, left_out: str = "") -> str:
    """Return the verdict on scores that rank well, as sure of it as `sharpness` says."""
    declaration, _, _, label, _, labels = rows_of(several=False, rows=600)
    scores = np.where(label == 1, 0.5, -0.5) + np.random.default_rng(1).normal(size=label.shape)
    found = 1 / (1 + np.exp(-sharpness * np.nan_to_num(scores)))
    constant = np.broadcast_to(np.nanmean(label, axis=0), label.shape)
    metrics, base = (
        compute_predictions("multilabel", p, label, None, labels) for p in (found, constant)
    )
    fields = {"verdict": "Better.", "has_skill": has_skill, "baselines": {"constant": base}}
    return add_labels(
        declaration, fields, left_out, found, constant, label,
        {name: Interval(value=value) for name, value in metrics.items()},
        RESAMPLING | {"labels": labels},
    )["verdict"]  # fmt: skip


@pytest.mark.req("P8")
def test_ranks_without_probabilities_are_said_and_good_probabilities_are_not() -> None:
    assert verdict_of(1.0) == "Better."
    bad = verdict_of(12.0)
    assert bad.startswith("Better. Its log loss ") and "is above that of the constant" in bad
    assert bad.endswith("declare evaluate.calibrate: temperature, or use the ranks alone.")
    assert verdict_of(12.0, has_skill=False) == "Better."  # nothing more to say


@pytest.mark.req("P8")
def test_only_a_loss_that_is_surely_below_is_silent() -> None:
    assert loss_note(0.3, 0.4, Interval(value=-0.1, low=-0.2, high=-0.01)) == []
    assert loss_note(0.3, 0.4, Interval(value=-0.1)) == []  # no interval, nothing known
    (level,) = loss_note(0.39, 0.4, Interval(value=-0.01, low=-0.2, high=0.1))
    assert "0.3900 is not distinguishable from that of the constant prediction (0.4000)" in level


@pytest.mark.req("P8")
def test_the_verdict_names_labels_that_could_not_be_scored() -> None:
    _, _, predictions, label, _, labels = rows_of(several=False)
    label[:, 1] = 0
    left_out = undefined_note("multilabel", predictions, label, None, labels)
    assert verdict_of(1.0, left_out=left_out) == f"Better. {left_out}"
    assert "over 2 of 3 labels: b has fewer than two values" in left_out
    declaration = rows_of(several=False)[0]
    assert add_labels(declaration, {}, left_out, predictions, None, label, {}, RESAMPLING) == {}
