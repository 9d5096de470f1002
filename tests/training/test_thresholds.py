"""A threshold is the best of all that scikit-learn can be asked about, and metrics decide by it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from schemas.calibration_records import ThresholdChoice
from schemas.evaluate_config import HALF, ThresholdConfig
from schemas.load import declare
from tests.training.toys import declare as declare_toy
from training.objectives.bootstrap import intervals, paired_difference
from training.objectives.metrics import DECIDED, compute_predictions, predicted_class
from training.objectives.thresholds import candidates, choose_threshold

COSTS = {"false_positive": 1.0, "false_negative": 7.0}
RULES: dict[str, dict[str, Any]] = {
    "f1": {"for": "f1"},
    "balanced_accuracy": {"for": "balanced_accuracy"},
    "youden": {"for": "youden"},
    "cost": {"for": "cost", "costs": COSTS},
    "recall": {"for": "recall", "at": 0.8},
    "precision": {"for": "precision", "at": 0.8},
}


def measured(name: str, y: np.ndarray, guess: np.ndarray, w: np.ndarray) -> float:
    """The objective by scikit-learn."""
    recalls = sk.recall_score(y, guess, labels=[0, 1], average=None, sample_weight=w)
    if name == "cost":
        (_, wrong), (missed, _) = sk.confusion_matrix(y, guess, labels=[0, 1], sample_weight=w)
        return float((wrong * COSTS["false_positive"] + missed * COSTS["false_negative"]) / w.sum())
    return {
        "f1": lambda: sk.f1_score(y, guess, sample_weight=w, zero_division=0.0),
        "recall": lambda: recalls[1],
        "precision": lambda: sk.precision_score(y, guess, sample_weight=w, zero_division=0.0),
        "balanced_accuracy": lambda: sk.balanced_accuracy_score(y, guess, sample_weight=w),
        "youden": lambda: recalls.sum() - 1,
    }[name]()


def everywhere(p: np.ndarray) -> list[float]:
    """Thresholds that decide in every way that is possible."""
    distinct = sorted({0.0, *p.tolist(), 1.0})
    return [
        *distinct,
        HALF,
        *((a + b) / 2 for a, b in pairwise(distinct)),
    ]


def draw(seed: int, rows: int, digits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = np.round(rng.beta(1, 2, rows), digits)
    y = (rng.random(rows) < p).astype(np.int64)
    y[:2] = (0, 1)
    return p, y, np.round(rng.uniform(0.5, 2, rows), 2)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 12), digits=st.integers(1, 6))
def test_no_threshold_is_better_by_scikit_learn(
    name: str, seed: int, rows: int, digits: int
) -> None:
    p, y, w = draw(seed, rows, digits)
    rule = ThresholdConfig.model_validate(RULES[name])
    found = choose_threshold("y", rule, p, y, w)

    def of(metric: str, t: float) -> float:
        return measured(metric, y, (p > t).astype(int), w)

    assert found.score == pytest.approx(of(name, found.value))
    assert found.at_half == pytest.approx(of(name, HALF))
    all_of = {t: of(name, t) for t in everywhere(p)}
    if rule.at is None:
        best = min(all_of.values()) if name == "cost" else max(all_of.values())
        assert found.score == pytest.approx(best)
        as_good = [t for t, v in all_of.items() if v == pytest.approx(best)]
        assert found.value in as_good or min(abs(t - HALF) for t in as_good) <= abs(
            found.value - HALF
        )
    elif max(all_of.values()) < rule.at - 1e-9:
        assert "no threshold reaches" in found.note
        assert found.score == pytest.approx(max(all_of.values()))
    else:
        other = "precision" if name == "recall" else "recall"
        assert found.score >= rule.at - 1e-9 and not found.note
        reached = [of(other, t) for t, v in all_of.items() if v >= rule.at]
        assert of(other, found.value) == pytest.approx(max(reached))


@given(seed=st.integers(0, 10**6))
def test_cost_is_never_above_that_of_a_half(seed: int) -> None:
    p, y, w = draw(seed, 60, 3)
    found = choose_threshold("y", ThresholdConfig.model_validate(RULES["cost"]), p, y, w)
    assert found.score is not None and found.at_half is not None
    assert found.score <= found.at_half


def test_of_equal_thresholds_the_nearest_to_a_half_is_taken() -> None:
    p, y = np.array([0.1, 0.2, 0.8, 0.9]), np.array([0, 0, 1, 1])
    rule = ThresholdConfig.model_validate(RULES["f1"])
    assert choose_threshold("y", rule, p, y).value == HALF
    assert choose_threshold("y", rule, p / 4, y).value == pytest.approx(0.125)


def test_neighbouring_floats_and_certain_rows_can_be_told_apart() -> None:
    above = np.nextafter(0.3, 1)
    p = np.array([0.3, above, 1.0])
    assert [int((p > t).sum()) for t in candidates(p)] == [3, 2, 1, 0]
    assert HALF in candidates(p)


def test_rows_of_one_class_and_rows_of_weight_0_choose_nothing() -> None:
    rule = ThresholdConfig.model_validate(RULES["f1"])
    p, y = np.array([0.2, 0.9, 0.3]), np.array([0, 0, 1])
    found = choose_threshold("y", rule, p, y, np.array([1.0, 1.0, 0.0]))
    assert (found.value, found.rows, found.score) == (HALF, 2, None)
    assert "of one class" in found.note


def test_a_number_is_taken_as_it_is() -> None:
    found = choose_threshold("y", 0.3, np.array([0.2]), np.array([1]))
    assert found == ThresholdChoice(label="y", value=0.3, objective="given", rows=1)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.73])
def test_metrics_and_their_intervals_decide_by_the_threshold(threshold: float) -> None:
    p, y, w = draw(1, 300, 6)
    both = np.stack([1 - p, p], axis=1)
    guess = (p > threshold).astype(int)
    found = compute_predictions("binary", both, y, w, threshold=threshold)
    at_half = compute_predictions("binary", both, y, w)
    assert predicted_class(both, threshold).tolist() == guess.tolist()
    assert found["f1"] == pytest.approx(sk.f1_score(y, guess, sample_weight=w))
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y, guess, sample_weight=w))
    assert found["balanced_accuracy"] == pytest.approx(
        sk.balanced_accuracy_score(y, guess, sample_weight=w)
    )
    assert {k: v for k, v in found.items() if k not in DECIDED} == {
        k: v for k, v in at_half.items() if k not in DECIDED
    }
    declaration = declare_toy("binary", {"kind": "linear"})
    ranges = intervals(declaration, both, y, weight=w, resamples=50, threshold=threshold)
    for name, value in found.items():
        interval = ranges[name]
        assert interval.value == value
        assert interval.low is not None and interval.high is not None
        assert interval.low <= value <= interval.high  # type: ignore[operator]
    difference = paired_difference(
        declaration, "f1", both, both, y, w, resamples=50, threshold=threshold
    )
    assert difference.value == 0
    apart = paired_difference(
        declaration,
        "f1",
        both,
        both,
        y,
        weight=w,
        resamples=50,
        threshold=threshold,
        other_decides=((), HALF),
    )
    assert apart.value == pytest.approx(found["f1"] - at_half["f1"])  # type: ignore[operator]


BASE: dict[str, Any] = {
    "name": "t",
    "data": {"uri": "x.parquet", "columns": {"y": "label", "x*": "numeric"}},
    "split": {"kind": "random"},
}


@pytest.mark.parametrize(
    ("task", "evaluate", "message"),
    [
        ("regression", {"calibrate": "temperature"}, "needs a class label"),
        ("regression", {"threshold": {"for": "f1"}}, "needs a binary label"),
        ("multiclass", {"threshold": 0.3}, "needs a binary label"),
        ("binary", {"threshold": {"for": "recall"}}, "for: recall needs at"),
        ("binary", {"threshold": {"for": "f1", "at": 0.5}}, "for: f1 takes no at"),
        ("binary", {"threshold": {"for": "cost"}}, "for: cost needs costs"),
        ("binary", {"threshold": {"for": "cost", "costs": dict.fromkeys(COSTS, 0)}}, "above 0"),
        ("binary", {"threshold": 1.2}, "less than or equal to 1"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(
    task: str, evaluate: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        declare(BASE | {"task": {"kind": task}, "evaluate": evaluate})


def test_ordered_scores_have_no_temperature() -> None:
    tree = BASE | {"task": {"kind": "multiclass"}, "loss": {"kind": "ordinal"}}
    declare(tree)
    with pytest.raises(ValueError, match="scores of loss ordinal are neither"):
        declare(tree | {"evaluate": {"calibrate": "temperature"}})


def test_a_declared_rule_survives_its_json() -> None:
    tree = BASE | {"task": {"kind": "binary"}, "evaluate": {"threshold": RULES["cost"]}}
    declared = declare(tree)
    assert declare(declared.model_dump(mode="json", by_alias=True)) == declared
    assert not declare(BASE | {"task": {"kind": "binary"}}).evaluate.is_finished_after_training
