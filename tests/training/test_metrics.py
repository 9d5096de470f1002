"""Metrics equal scikit-learn's for any number of rows, and predictions are probabilities or the
user's units.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from schemas.config import METRICS
from schemas.errors import DataError
from tests.training.toys import CENTER, CLASSES, SCALE, Toy, make_toy
from training.objectives.metrics import (
    compute,
    compute_predictions,
    predict,
    predicted_class,
    targets,
)

TOYS = {task: make_toy(task, rows=90) for task in CLASSES}


def rows(
    task: str, number: int, seed: int, weighted: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Scores, labels as stored, weights; scores on a grid, so that there are ties."""
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=(number, 3 if task == "multiclass" else 1)) * 4).round() / 2
    label = (
        rng.normal(size=number).astype(np.float32)
        if task == "regression"
        else rng.integers(0, len(CLASSES[task]), number)
    )
    return scores.astype(np.float32), label, rng.integers(0, 4, number) / 2 if weighted else None


def reference(
    toy: Toy, scores: np.ndarray, label: np.ndarray, w: np.ndarray | None
) -> dict[str, float | None]:
    """The same by scikit-learn alone, from predictions written out by hand."""
    scores = scores.astype(np.float64)
    task = toy.declaration.task.kind
    if task == "regression":
        y, p = label.astype(np.float64) * SCALE + CENTER, scores[:, 0] * SCALE + CENTER
        return {
            "rmse": math.sqrt(sk.mean_squared_error(y, p, sample_weight=w)),
            "mae": sk.mean_absolute_error(y, p, sample_weight=w),
            "r2": sk.r2_score(y, p, sample_weight=w) if len(y) > 1 else None,
            "mape": sk.mean_absolute_percentage_error(y, p, sample_weight=w),
        }
    if task == "binary":
        p = 1 / (1 + np.exp(-scores[:, 0]))
        both = len(set(label)) == 2
        hard = (p > 0.5).astype(int)
        return {
            "auroc": sk.roc_auc_score(label, p, sample_weight=w) if both else None,
            "pr_auc": (
                sk.average_precision_score(label, p, sample_weight=w) if label.any() else None
            ),
            "log_loss": sk.log_loss(label, p, labels=[0, 1], sample_weight=w),
            "brier": sk.brier_score_loss(label, p, labels=[0, 1], sample_weight=w),
            "accuracy": sk.accuracy_score(label, hard, sample_weight=w),
            "balanced_accuracy": np.mean(
                [
                    np.average(hard[label == c] == c, weights=None if w is None else w[label == c])
                    for c in set(label)
                ]
            ),
            "f1": sk.f1_score(label, hard, sample_weight=w, zero_division=0.0),
            "mcc": sk.matthews_corrcoef(label, hard, sample_weight=w),
        }
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    hard = p.argmax(1)
    return {
        "macro_f1": sk.f1_score(label, hard, average="macro", sample_weight=w, zero_division=0.0),
        "accuracy": sk.accuracy_score(label, hard, sample_weight=w),
        "balanced_accuracy": np.mean(
            [
                np.average(hard[label == c] == c, weights=None if w is None else w[label == c])
                for c in set(label)
            ]
        ),
        "log_loss": sk.log_loss(label, p, labels=[0, 1, 2], sample_weight=w),
        "mcc": sk.matthews_corrcoef(label, hard, sample_weight=w),
    }


@pytest.mark.req("T9")
@settings(max_examples=120, deadline=None)
@given(
    task=st.sampled_from(sorted(CLASSES)),
    number=st.integers(1, 64),
    seed=st.integers(0, 10_000),
    weighted=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:A single label")
def test_metrics_equal_scikit_learn(task: str, number: int, seed: int, weighted: bool) -> None:
    toy, (scores, label, weight) = TOYS[task], rows(task, number, seed, weighted)
    found = compute(toy.declaration, toy.statistics, scores, label, weight)
    assert list(found) == list(METRICS[task])
    kept = np.ones(number, bool) if weight is None else weight > 0
    if not kept.any():
        assert set(found.values()) == {None}
        return
    expected = reference(toy, scores[kept], label[kept], None if weight is None else weight[kept])
    for name, value in expected.items():
        assert (found[name] is None) == (value is None), name
        if value is not None:
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


@pytest.mark.req("T9")
def test_what_is_not_defined_is_none() -> None:
    one_class = compute_predictions("binary", np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([0, 0]))
    assert one_class["auroc"] is None
    assert one_class["pr_auc"] is None
    assert one_class["accuracy"] == 0.5
    assert compute_predictions("regression", np.array([1.0]), np.array([3.0])) == {
        "rmse": 2.0,
        "mae": 2.0,
        "r2": None,
        "mape": pytest.approx(2 / 3),
    }
    assert (
        compute_predictions("regression", np.array([1.0, 2.0]), np.array([3.0, 3.0]))["r2"] is None
    )


@pytest.mark.req("T9")
def test_rows_of_weight_zero_are_no_rows() -> None:
    toy, (scores, label, _) = TOYS["multiclass"], rows("multiclass", 20, 0)
    weight = np.r_[np.ones(12), np.zeros(8)]
    assert compute(toy.declaration, toy.statistics, scores, label, weight) == compute(
        toy.declaration, toy.statistics, scores[:12], label[:12], np.ones(12)
    )


@pytest.mark.req("S2")
def test_no_rows_or_unequal_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="at least one, got 0 and 0"):
        compute_predictions("regression", np.zeros(0), np.zeros(0))
    with pytest.raises(DataError, match="got 3 and 2"):
        compute_predictions("regression", np.zeros(3), np.zeros(2))


@pytest.mark.req("R1")
def test_predictions_are_probabilities_or_values_in_the_labels_units() -> None:
    toy = TOYS["binary"]
    both = predict(
        toy.declaration, toy.statistics, np.array([[0.0], [1000.0], [-1000.0], [-30.0]], np.float32)
    )
    assert both.dtype == np.float64
    np.testing.assert_allclose(both.sum(1), 1, rtol=1e-15)
    np.testing.assert_allclose(
        both[:, 1], [0.5, 1.0, 0.0, math.exp(-30) / (1 + math.exp(-30))], rtol=1e-12
    )
    toy = TOYS["multiclass"]
    several = predict(toy.declaration, toy.statistics, np.array([[1000.0, 1000.0, -1000.0]]))
    np.testing.assert_allclose(several, [[0.5, 0.5, 0.0]])
    assert predicted_class(several).tolist() == [0]
    toy = TOYS["regression"]
    np.testing.assert_allclose(
        predict(toy.declaration, toy.statistics, np.array([[0.5]])), [CENTER + 0.5 * SCALE]
    )
    np.testing.assert_allclose(
        targets(toy.declaration, toy.statistics, np.array([0.5], np.float32)),
        [CENTER + 0.5 * SCALE],
    )


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_one_metric_alone_is_that_of_all_to_the_bit(task: str) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, {"binary": 2, "multiclass": 3}.get(task, 9), 80)
    columns = {"binary": 2, "multiclass": 3}.get(task)
    predictions = rng.dirichlet([1.0] * columns, 80) if columns else rng.normal(size=80)
    weight = rng.uniform(size=80)
    whole = compute_predictions(task, predictions, target, weight)
    for name, value in whole.items():
        assert compute_predictions(task, predictions, target, weight, only=name) == {name: value}
