"""Resampled metrics equal scikit-learn on the repeated rows; intervals cover, follow groups and
repeat.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import METRICS
from schemas.errors import DataError
from tests.training.toys import CLASSES, declare
from training.objectives.bootstrap import (
    _MAKERS,
    intervals,
    paired_difference,
    resample_counts,
    units_of,
)
from training.objectives.metrics import compute_predictions

DECLARATIONS = {task: declare(task) for task in CLASSES}


def rows(
    task: str, number: int, seed: int = 0, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Predictions on a grid (ties) and targets that they say something about."""
    rng = np.random.default_rng(seed)
    if task == "regression":
        target = rng.normal(size=number) * 3 + 100
        return (target + noise * rng.normal(size=number)).round(1), target
    target = rng.integers(0, len(CLASSES[task]), number)
    odds = np.exp(
        (
            2 * (np.arange(len(CLASSES[task])) == target[:, None])
            + noise * rng.normal(size=(number, len(CLASSES[task])))
        ).round(1)
    )
    return odds / odds.sum(1, keepdims=True), target


@pytest.mark.req("P8")
@settings(max_examples=60, deadline=None)
@given(task=st.sampled_from(sorted(CLASSES)), number=st.integers(1, 40), seed=st.integers(0, 1000))
def test_a_resample_equals_scikit_learn_on_the_repeated_rows(
    task: str, number: int, seed: int
) -> None:
    predictions, target = rows(task, number, seed)
    counts = np.stack(list(resample_counts(number, 4, seed)))
    found = _MAKERS[task](predictions, target)(counts.astype(float))
    for i, repeated in enumerate(np.repeat(np.arange(number), c) for c in counts):
        expected = compute_predictions(task, predictions[repeated], target[repeated])
        for name, value in expected.items():
            assert np.isnan(found[name][i]) == (value is None), name
            if value is not None:
                assert found[name][i] == pytest.approx(value, rel=1e-9, abs=1e-9), name


@pytest.mark.req("P8")
@settings(max_examples=20, deadline=None)
@given(task=st.sampled_from(sorted(CLASSES)), seed=st.integers(0, 1000))
def test_a_weighted_resample_equals_scikit_learn_with_sample_weight(task: str, seed: int) -> None:
    predictions, target = rows(task, 30, seed)
    weight = np.random.default_rng(seed).uniform(0.1, 3, (1, 30))
    found = _MAKERS[task](predictions, target)(weight)
    for name, value in compute_predictions(task, predictions, target, weight[0]).items():
        if value is not None:
            assert found[name][0] == pytest.approx(value, rel=1e-9), name


@pytest.mark.req("P8")
def test_intervals_have_about_the_analytic_width_and_hold_the_value() -> None:
    rng = np.random.default_rng(0)
    hits = rng.random(2000) < 0.8
    predictions = np.stack([np.where(hits, 0.9, 0.1), np.where(hits, 0.1, 0.9)], axis=1)
    found = intervals(DECLARATIONS["binary"], predictions, np.zeros(2000, int), resamples=800)[
        "accuracy"
    ]
    assert found.value == hits.mean()
    assert found.low is not None and found.high is not None and found.low < found.value < found.high
    error = np.sqrt(hits.mean() * (1 - hits.mean()) / 2000)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.12)
    wide = intervals(
        DECLARATIONS["binary"], predictions, np.zeros(2000, int), resamples=800, confidence=0.999
    )["accuracy"]
    assert wide.low is not None and wide.low < found.low


@pytest.mark.req("P8")
def test_copies_within_a_group_add_no_certainty() -> None:
    predictions, target = rows("regression", 200)
    single = intervals(DECLARATIONS["regression"], predictions, target)["rmse"]
    copied = [
        np.repeat(a, 5) for a in (predictions, target, np.arange(200).astype(str).astype(object))
    ]
    grouped = intervals(DECLARATIONS["regression"], copied[0], copied[1], copied[2])["rmse"]
    naive = intervals(DECLARATIONS["regression"], copied[0], copied[1])["rmse"]
    width = {
        k: v.high - v.low for k, v in {"single": single, "grouped": grouped, "naive": naive}.items()
    }  # type: ignore[operator]
    assert width["grouped"] == pytest.approx(width["single"], rel=0.15)
    assert width["naive"] < 0.6 * width["grouped"]


@pytest.mark.req("T12")
def test_draws_depend_on_the_seed_alone() -> None:
    predictions, target = rows("binary", 300)
    first, again, other = (
        intervals(DECLARATIONS["binary"], predictions, target, seed=seed, resamples=50)
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first["auroc"].low != other["auroc"].low
    assert all(c.sum() == 7 for c in itertools.islice(resample_counts(7, 3, 0), 3))


@pytest.mark.req("P8")
def test_rows_without_a_group_are_drawn_alone() -> None:
    units = units_of(np.array(["a", None, "a", None, "b"], dtype=object), 5)
    assert len(set(units)) == 4
    assert units[0] == units[2]
    assert len(set(units_of(np.array([None, None], dtype=object), 2))) == 2
    with pytest.raises(DataError, match="a group for each of 3 rows, got 2"):
        units_of(np.array(["a", "b"]), 3)


@pytest.mark.req("P8")
def test_a_metric_that_most_resamples_lack_has_no_interval() -> None:
    predictions = np.array([[0.4, 0.6], [0.7, 0.3]])
    found = intervals(DECLARATIONS["binary"], predictions, np.array([1, 0]))
    assert (found["pr_auc"].value, found["pr_auc"].low, found["pr_auc"].high) == (1.0, None, None)
    assert (
        found["auroc"].low is not None and found["auroc"].low < 0.25 and found["auroc"].high == 1.0
    )  # by its score interval
    assert intervals(DECLARATIONS["binary"], predictions, np.array([0, 0]))["auroc"].value is None


@pytest.mark.req("R2")
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_a_paired_difference_sees_what_two_intervals_cannot(task: str) -> None:
    declaration, (worse, target) = DECLARATIONS[task], rows(task, 600, noise=2.0)
    better, _ = rows(task, 600, noise=1.9)
    metric = declaration.metric
    found = paired_difference(declaration, metric, better, worse, target)
    assert found.value is not None and found.low is not None and found.high is not None
    a, b = (compute_predictions(task, p, target)[metric] for p in (better, worse))
    assert found.value == pytest.approx(a - b)
    apart = found.low > 0 if METRICS[task][metric] else found.high < 0
    assert apart
    separate = [intervals(declaration, p, target)[metric] for p in (better, worse)]
    assert max(s.low for s in separate) < min(s.high for s in separate)  # type: ignore[type-var]
    same = paired_difference(declaration, metric, worse, worse, target)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    with pytest.raises(DataError, match="metric 'gini' is not one of task"):
        paired_difference(declaration, "gini", better, worse, target)
