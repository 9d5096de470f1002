"""Intervals hold the declared share of new rows and groups, and are served as they are measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from training.objectives.conformal import covered, errors_of, margin, sizes
from training.serving.serving import bounds_of, interval_columns

pytestmark = pytest.mark.req("T5")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("count", [9, 10, 57, 400])
def test_the_margin_is_the_smallest_that_the_theorem_allows(count: int) -> None:
    errors = RNG.normal(size=count) ** 2
    rank = int(np.ceil(0.9 * (count + 1)))
    assert margin(errors, 0.9) == np.sort(errors)[rank - 1]
    assert margin(errors, 0.9, np.arange(count)) == margin(errors, 0.9)
    assert margin(errors[:8], 0.9) is None and margin(errors[:0], 0.9) is None


def test_a_group_with_many_rows_weighs_like_any_other() -> None:
    errors = np.concatenate([np.full(500, 100.0), np.arange(1.0, 40.0)])
    group = np.concatenate([np.zeros(500, dtype=int), np.arange(1, 40)])
    assert margin(errors, 0.9, group) == 37.0  # 0.9 of 41, one of which is not seen
    assert margin(errors, 0.9) == 100.0
    assert margin(errors, 0.9, np.minimum(group, 7)) is None  # eight groups


def test_intervals_hold_for_new_groups_within_two_points_over_50_tables() -> None:
    rng, held = np.random.default_rng(1), []
    for _ in range(50):
        effect = rng.normal(size=400)  # every group has its own level, which no model knows
        group = np.repeat(np.arange(400), rng.integers(1, 12, 400))
        error = np.abs(effect[group] + 0.3 * rng.normal(size=len(group)))
        fitted = group < 200
        found = margin(error[fitted], 0.9, group[fitted])
        assert found is not None
        inside = pd.Series(error[~fitted] <= found).groupby(group[~fitted]).mean()
        held.append(inside.mean())
    assert abs(np.mean(held) - 0.9) < 0.02


@pytest.mark.parametrize("classes", [2, 5])
def test_sets_hold_the_declared_share_and_never_are_empty(classes: int) -> None:
    rng = np.random.default_rng(2)
    odds = np.exp(rng.normal(size=(6000, classes)) * 2)
    chance = odds / odds.sum(axis=1, keepdims=True)
    truth = (rng.random((6000, 1)) > chance.cumsum(axis=1)).sum(axis=1)
    found = margin(errors_of(chance[:3000], truth[:3000], "probability"), 0.9)
    inside = covered(chance[3000:], truth[3000:], "probability", found)
    assert 0.88 < inside.mean() < 0.93
    assert sizes(chance, "probability", found).min() >= 1


def served(kind: str, scale: str, found: float | None, columns: dict[str, Any]) -> pd.DataFrame:
    classes = ["a", "b"] if kind != "regression" else []
    label = {
        "kind": kind,
        "prediction": "prediction",
        "probabilities": [f"probability_{c}" for c in classes],
        "possible": [f"possible_{c}" for c in classes],
        "interval": {"coverage": 0.9, "scale": scale, "margin": found},
    }
    return bounds_of(label, pd.DataFrame(columns))


@pytest.mark.parametrize("scale", ["value", "log", "log1p"])
@pytest.mark.parametrize("found", [0.7, None])
def test_served_bounds_hold_exactly_the_rows_that_were_counted(
    scale: str, found: float | None
) -> None:
    value, truth = np.exp(RNG.normal(size=500)), np.exp(RNG.normal(size=500))
    bounds = served("regression", scale, found, {"prediction": value})
    inside = (bounds["prediction_low"] <= truth) & (truth <= bounds["prediction_high"])
    assert (inside == covered(value, truth, scale, found)).all()
    width = bounds["prediction_high"] - bounds["prediction_low"]
    if found is not None:
        np.testing.assert_allclose(width, sizes(value, scale, found), rtol=1e-12)


def test_served_sets_are_those_that_were_counted() -> None:
    chance = RNG.random(300)
    both = np.stack([1 - chance, chance], axis=1)
    sets = served(
        "binary", "probability", 0.8, {"probability_a": 1 - chance, "probability_b": chance}
    )
    truth = RNG.integers(0, 2, 300)
    inside = sets.to_numpy()[np.arange(300), truth]
    assert (inside == covered(both, truth, "probability", 0.8)).all()
    np.testing.assert_array_equal(sets.sum(axis=1), sizes(both, "probability", 0.8))


def test_a_model_without_intervals_has_no_such_columns() -> None:
    spec = {"task": "regression", "labels": [], "classes": [], "probability_columns": []}
    assert interval_columns(spec) == []
    with_one = {**spec, "interval": {"coverage": 0.9, "scale": "value", "margin": 1.0}}
    assert interval_columns(with_one) == ["prediction_low", "prediction_high"]
