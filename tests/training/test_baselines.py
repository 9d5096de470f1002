"""Baselines see what the network sees, are fitted on train alone, and are compared in plain
words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge

from schemas.config import METRICS
from schemas.records import Interval, RunSpec
from tests.training.toys import CENTER, CLASSES, SCALE, declare, make_arrays, write_run
from training.boosting.tree_inputs import matrix
from training.evaluation.baselines import baseline_metrics, baseline_predictions, verdict
from training.objectives.metrics import compute_predictions, targets


def run_of(folder: Path, task: str, **options: Any) -> tuple[Any, RunSpec]:
    declaration = declare(task)
    return declaration, write_run(folder, declaration, **options)


@pytest.mark.req("P8")
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_learned_baselines_beat_the_constant(tmp_path: Path, task: str, weight: bool) -> None:
    declaration, run = run_of(tmp_path, task, weight=weight)
    found = baseline_metrics(declaration, run.statistics, run.arrays)
    assert list(found) == ["constant", "linear", "boosting"]
    assert all(list(values) == list(METRICS[task]) for values in found.values())
    better = np.greater if METRICS[task][declaration.metric] else np.less
    for name in ("linear", "boosting"):
        assert better(found[name][declaration.metric], found["constant"][declaration.metric])


@pytest.mark.req("P8")
def test_the_constant_is_the_weighted_base_rate(tmp_path: Path) -> None:
    for task in CLASSES:
        declaration, run = run_of(tmp_path / task, task, weight=True)
        train = make_arrays(task, 400, 0, weight=True)
        found = baseline_predictions(declaration, run.statistics, run.arrays)["constant"]
        if task == "regression":
            np.testing.assert_allclose(
                found,
                np.average(train["label"], weights=train["weight"]) * SCALE + CENTER,
                rtol=1e-6,
            )
        else:
            shares = np.bincount(train["label"], weights=train["weight"]) / train["weight"].sum()
            np.testing.assert_allclose(found, np.tile(shares, (200, 1)), rtol=1e-6)


@pytest.mark.req("P8")
def test_the_linear_model_is_that_of_scikit_learn_on_one_hot_columns(tmp_path: Path) -> None:
    def columns(arrays: dict[str, np.ndarray]) -> np.ndarray:
        codes = arrays["categorical"]
        present = [np.unique(make_arrays("binary", 400, 0)["categorical"][:, i]) for i in range(2)]
        return np.concatenate(
            [*(codes[:, i, None] == present[i] for i in range(2)), arrays["numeric"]], axis=1
        ).astype(np.float64)

    for task, model in (("binary", LogisticRegression(max_iter=500)), ("regression", Ridge())):
        declaration, run = run_of(tmp_path / task, task)
        train, test = make_arrays(task, 400, 0), make_arrays(task, 200, 2)
        model.fit(columns(train), train["label"])
        found = baseline_predictions(declaration, run.statistics, run.arrays)["linear"]
        if task == "binary":
            np.testing.assert_allclose(found, model.predict_proba(columns(test)), atol=5e-3)
        else:
            np.testing.assert_allclose(
                found, model.predict(columns(test)) * SCALE + CENTER, atol=1e-3
            )


@pytest.mark.req("P8")
def test_boosting_is_as_good_as_scikit_learn_used_plainly(tmp_path: Path) -> None:
    declaration, run = run_of(tmp_path, "binary", rows=2000)
    train, test = make_arrays("binary", 2000, 0), make_arrays("binary", 1000, 2)
    plain = HistGradientBoostingClassifier(categorical_features=[6, 7], random_state=0)
    plain.fit(matrix(run.statistics, train), train["label"])
    expected = compute_predictions(
        "binary", plain.predict_proba(matrix(run.statistics, test)), test["label"]
    )["auroc"]
    found = baseline_metrics(declaration, run.statistics, run.arrays)["boosting"]["auroc"]
    assert found is not None and expected is not None and found > expected - 0.01


@pytest.mark.req("D7")
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_rows_of_other_sides_change_no_fit(tmp_path: Path, task: str) -> None:
    """Test rows never count; val rows say only when boosting stops."""
    declaration, run = run_of(tmp_path / "a", task)
    shuffled = make_arrays(task, 200, 2)
    shuffled["label"] = shuffled["label"][::-1].copy()
    _, other = run_of(tmp_path / "b", task, sides={"test": shuffled})
    _, third = run_of(tmp_path / "c", task, sides={"val": make_arrays(task, 200, 9)})
    first, second = (
        baseline_predictions(declaration, r.statistics, r.arrays) for r in (run, other)
    )
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    for name in ("constant", "linear"):
        np.testing.assert_array_equal(
            first[name], baseline_predictions(declaration, third.statistics, third.arrays)[name]
        )


@pytest.mark.req("S2")
def test_a_class_that_val_alone_has_or_train_lacks_is_no_obstacle(tmp_path: Path) -> None:
    declaration = declare("multiclass")
    train, val = make_arrays("multiclass", 400, 0), make_arrays("multiclass", 200, 1)
    train["label"] = train["label"].clip(max=1)
    run = write_run(tmp_path, declaration, sides={"train": train, "val": val})
    found = baseline_predictions(declaration, run.statistics, run.arrays)
    for predictions in found.values():
        assert predictions.shape == (200, 3)
        assert not predictions[:, 2].any()
        np.testing.assert_allclose(predictions.sum(1), 1)


@pytest.mark.req("P8")
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_pictures_are_flattened_and_scaled(tmp_path: Path, task: str) -> None:
    declaration, run = run_of(tmp_path, task, tensor=True)
    test = make_arrays(task, 200, 2, tensor=True)
    joined = matrix(run.statistics, test)
    stats = run.statistics.tensor[0]
    assert joined.shape == (200, 6 + 63 + 2)
    np.testing.assert_allclose(
        joined[:, 6:69],
        ((test["tensor_picture"] - stats.mean[0]) / stats.std[0]).reshape(200, -1),
        rtol=1e-5,
        atol=1e-5,
    )
    found = baseline_predictions(declaration, run.statistics, run.arrays)
    target = targets(declaration, run.statistics, test["label"])
    direction = 1 if METRICS[task][declaration.metric] else -1
    values = {
        name: direction * (compute_predictions(task, p, target)[declaration.metric] or 0)
        for name, p in found.items()
    }
    assert values["boosting"] > values["constant"]


@pytest.mark.req("P8")
@pytest.mark.parametrize("keys", [("numeric",), ("categorical",)])
def test_any_kind_of_column_may_be_absent(tmp_path: Path, keys: tuple[str, ...]) -> None:
    declaration = declare("multiclass")
    sides = {
        side: {k: a for k, a in make_arrays("multiclass", 1000, i).items() if k in (*keys, "label")}
        for i, side in enumerate(("train", "val", "test"))
    }
    run = write_run(tmp_path, declaration, sides=sides)
    absent = {k: () for k in ("numeric", "categorical") if k not in keys}
    found = baseline_metrics(declaration, run.statistics.model_copy(update=absent), run.arrays)
    assert all(
        values["log_loss"] < found["constant"]["log_loss"]
        for name, values in found.items()
        if name != "constant"
    )  # type: ignore[operator]


@pytest.mark.req("S2")
def test_one_class_alone_leaves_the_constant(tmp_path: Path) -> None:
    declaration = declare("binary")
    run = write_run(
        tmp_path,
        declaration,
        sides={"train": {**make_arrays("binary", 100), "label": np.ones(100, np.int64)}},
    )
    found = baseline_predictions(declaration, run.statistics, run.arrays)
    for predictions in found.values():
        np.testing.assert_array_equal(predictions, found["constant"])


# ----------------------------------------------------------------------------------------- verdict


def judge(
    value: float | None,
    bounds: tuple[float, float] | None,
    baselines: dict[str, float | None],
    differences: dict[str, tuple[float, float]] | None = None,
    task: str = "binary",
) -> tuple[bool, str]:
    declaration = declare(task, {"kind": "mlp"})
    low, high = bounds or (None, None)
    found = {b: Interval(value=0.0, low=lo, high=hi) for b, (lo, hi) in (differences or {}).items()}
    return verdict(
        declaration,
        {declaration.metric: Interval(value=value, low=low, high=high)},
        {b: {declaration.metric: v} for b, v in baselines.items()},
        found,
    )


@pytest.mark.req("P8")
def test_the_verdict_says_which_baselines_are_beaten() -> None:
    assert judge(0.671, (0.660, 0.682), {"constant": 0.5, "linear": 0.65, "boosting": 0.69}) == (
        True,
        (
            "The network's AUROC 0.6710 [0.6600, 0.6820] is better than the constant prediction"
            " (0.5000) and the linear model (0.6500), behind gradient boosting (0.6900): set"
            " model: {kind: boosting}, or improve the features or the network."
        ),
    )
    assert judge(0.7, (0.68, 0.72), {"constant": 0.5, "linear": 0.65, "boosting": 0.66}) == (
        True,
        (
            "The network's AUROC 0.7000 [0.6800, 0.7200] is better than the constant prediction"
            " (0.5000) and the linear model (0.6500) and gradient boosting (0.6600)."
        ),
    )
    _, level = judge(0.7, (0.68, 0.72), {"constant": 0.5, "linear": 0.69, "boosting": 0.66})
    assert level.endswith(
        "not distinguishable from the linear model (0.6900): the linear model does as well and is"
        " simpler."
    )


@pytest.mark.req("P8")
def test_no_skill_is_said_plainly_in_both_directions() -> None:
    skill, sentence = judge(0.51, (0.48, 0.54), {"constant": 0.5})
    assert not skill
    assert "not distinguishable from the constant prediction (0.5000): no skill" in sentence
    skill, sentence = judge(
        21.0, (20.0, 22.0), {"constant": 19.0, "linear": 25.0}, task="regression"
    )
    assert not skill
    assert (
        "better than the linear model (25.00), behind the constant prediction (19.00): no skill"
        in sentence
    )
    assert judge(18.0, (17.0, 18.5), {"constant": 19.0}, task="regression")[0]


@pytest.mark.req("P8")
def test_paired_differences_decide_where_they_are_known() -> None:
    assert judge(
        0.7, (0.65, 0.75), {"constant": 0.5, "boosting": 0.69}, {"boosting": (0.002, 0.02)}
    )[1].endswith("gradient boosting (0.6900).")
    assert (
        "behind gradient boosting (0.7100)"
        in judge(
            0.7, (0.65, 0.75), {"constant": 0.5, "boosting": 0.71}, {"boosting": (-0.02, -0.002)}
        )[1]
    )
    assert (
        "behind gradient boosting (17.00)"
        in judge(
            18.0,
            (15.0, 21.0),
            {"constant": 30.0, "boosting": 17.0},
            {"boosting": (0.5, 1.5)},
            task="regression",
        )[1]
    )


@pytest.mark.req("P8")
def test_a_metric_that_is_not_defined_shows_no_skill() -> None:
    skill, sentence = judge(None, None, {"constant": None})
    assert not skill
    assert sentence.startswith("AUROC is not defined on these rows")
    # a value without an interval is no certainty
    skill, sentence = judge(0.9, None, {"constant": 0.5})
    assert (
        not skill
        and "AUROC 0.9000 is not distinguishable from the constant prediction (0.5000)" in sentence
    )
