"""Estimators of `evaluate.against`: fitted like by hand on train rows, compared, never decisive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import metrics as sk
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression

from schemas.comparison_records import YardstickResult, yardstick_figures
from schemas.config import METRICS
from schemas.digest import file_ref
from schemas.errors import ConfigError, IntegrityError
from schemas.load import declare as load
from schemas.records import CategoryStats, EvaluationReport, NumericStats, RunSpec, digest_of
from tests.training.odd_estimators import Recorder
from tests.training.test_evaluate import trained_run
from tests.training.toys import CENTER, SCALE, declare, make_arrays, make_statistics, write_run
from training.boosting.tree_inputs import matrix
from training.data.arrays.shards import load_arrays
from training.evaluation.evaluate import evaluate
from training.evaluation.feature_frame import column_names, feature_frame
from training.evaluation.yardstick_class import build_estimator, require_yardsticks
from training.evaluation.yardstick_words import yardstick_words
from training.evaluation.yardsticks import fit_yardstick
from training.objectives.bootstrap import paired_difference
from training.report.blocks import Badge, Callout, Table
from training.report.yardstick_section import yardstick_blocks

ODD = "tests.training.odd_estimators"
FOREST = {
    "path": "sklearn.ensemble:RandomForestClassifier",
    "options": {"n_estimators": 10, "n_jobs": 1},
    "name": "forest",
}


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "sklearn, tests")


def with_yardsticks(run: RunSpec, *against: Any, **evaluate: Any) -> RunSpec:
    """The run with yardsticks declared, and nothing else changed."""
    tree = run.declaration | {"evaluate": run.declaration["evaluate"] | {"against": against}}
    tree["evaluate"] |= {"baselines": ["constant"]} | evaluate
    return run.model_copy(update={"declaration": load(tree).model_dump(mode="json")})


def evaluated(
    folder: Path, task: str, *against: Any, sides: Any = None, **options: Any
) -> EvaluationReport:
    run, weights = trained_run(folder, task, sides=sides)
    return evaluate(with_yardsticks(run, *against, **options), weights, "test", folder / "out")


def by_hand(task: str) -> np.ndarray:
    """Predictions of a forest that is fitted by hand on the same rows."""
    train, test = make_arrays(task, 400, 0), make_arrays(task, 200, 2)
    statistics = make_statistics(task, train)
    model = RandomForestRegressor if task == "regression" else RandomForestClassifier
    fitted = model(n_estimators=10, random_state=0).fit(matrix(statistics, train), train["label"])
    if task == "regression":
        return np.asarray(fitted.predict(matrix(statistics, test)) * SCALE + CENTER)
    return np.asarray(fitted.predict_proba(matrix(statistics, test)))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_it_equals_a_fit_by_hand_and_its_metrics_those_of_scikit_learn(
    tmp_path: Path, task: str
) -> None:
    kind = "Regressor" if task == "regression" else "Classifier"
    forest = FOREST | {"path": f"sklearn.ensemble:RandomForest{kind}"}
    report = evaluated(tmp_path, task, forest)
    (found,), expected, test = report.against, by_hand(task), make_arrays(task, 200, 2)
    assert (found.name, found.rows, found.problem, found.note) == ("forest", 400, "", "")
    assert found.seconds > 0 and list(found.metrics) == list(METRICS[task])
    if task == "regression":
        target = test["label"].astype(np.float64) * SCALE + CENTER
        mine = {
            "rmse": sk.root_mean_squared_error(target, expected),
            "mae": sk.mean_absolute_error(target, expected),
        }
    else:
        eps = np.finfo(np.float64).eps
        clipped = np.clip(expected, eps, 1 - eps)
        chosen = clipped[np.arange(200), test["label"]]
        mine = {
            "log_loss": float(-np.log(chosen).mean()),
            "accuracy": sk.accuracy_score(test["label"], expected.argmax(1)),
        }
    if task == "binary":
        mine["auroc"] = sk.roc_auc_score(test["label"], expected[:, 1])
    for name, value in mine.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-6), name


def test_differences_are_paired_and_the_standing_follows_from_them(tmp_path: Path) -> None:
    dummy = "sklearn.dummy:DummyClassifier"
    report = evaluated(tmp_path, "binary", FOREST, dummy)
    declaration = declare("binary", evaluate={"bootstrap": 60})
    table = pq.read_table(report.predictions.path).to_pandas()
    own = table[["probability_False", "probability_True"]].to_numpy()
    target = make_arrays("binary", 200, 2)["label"]
    forest, constant = report.against
    for metric in ("auroc", "log_loss"):
        expected = paired_difference(
            declaration, metric, own, by_hand("binary"), target, resamples=60
        )
        assert forest.differences[metric] == expected
        gap = report.metrics[metric].value - forest.metrics[metric]  # type: ignore[operator]
        assert forest.differences[metric].value == pytest.approx(gap)
    low, high = forest.differences["auroc"].low, forest.differences["auroc"].high
    assert low is not None and high is not None
    place = "ahead" if low > 0 else "behind" if high < 0 else "level"
    assert (forest.standing, constant.standing, constant.name) == (
        place,
        "ahead",
        "DummyClassifier",
    )
    assert yardstick_figures(report.against)["against/forest/auroc"] == forest.metrics["auroc"]


def test_a_yardstick_that_is_ahead_is_said_and_decides_nothing(tmp_path: Path) -> None:
    """A network whose weights are all 0 knows nothing."""
    run, weights = trained_run(tmp_path, "binary")
    without = evaluate(run, weights, "test", tmp_path / "a")
    state = {name: torch.zeros_like(v) for name, v in torch.load(weights).items()}
    torch.save(state, weights)
    report = evaluate(with_yardsticks(run, FOREST), weights, "test", tmp_path / "b")
    plain = evaluate(with_yardsticks(run), weights, "test", tmp_path / "c")
    (found,) = report.against
    assert found.standing == "behind"
    declaration = load(with_yardsticks(run, FOREST).declaration)
    assert "forest is ahead of the model" in yardstick_words(declaration, found)
    blocks = yardstick_blocks(declaration, ["auroc", "log_loss"], report)
    (callout,) = [b for b in blocks if isinstance(b, Callout)]
    assert callout.title == "A yardstick is ahead of the model" and "forest" in callout.text
    # nothing that the gate reads differs
    paths = {"predictions", "against"}
    assert report.model_dump(exclude=paths) == plain.model_dump(exclude=paths)
    assert yardstick_blocks(load(run.declaration), ["auroc"], without) == []


def test_without_yardsticks_the_bytes_stay_what_they_were(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary")
    evaluate(run, weights, "test", tmp_path / "out")
    assert "against" not in json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert "against" not in run.declaration["evaluate"]
    empty = with_yardsticks(run, baselines=["constant", "linear", "boosting"])
    assert digest_of(load(empty.declaration)) == digest_of(load(run.declaration))


def test_only_train_rows_are_fitted(tmp_path: Path) -> None:
    noise = {side: make_arrays("binary", 200, 9) for side in ("val", "test")}
    for arrays in noise.values():
        arrays["numeric"] *= -7
        arrays["label"] = 1 - arrays["label"]
    seen = []
    for folder, sides in (("a", None), ("b", noise)):
        evaluated(tmp_path / folder, "binary", f"{ODD}:Recorder", sides=sides)
        seen.append(dict(Recorder.seen))
    assert seen[0]["X"].equals(seen[1]["X"]) and list(seen[0]["X"].dtypes) == list(
        seen[1]["X"].dtypes
    )
    np.testing.assert_array_equal(seen[0]["y"], seen[1]["y"])
    train = make_arrays("binary", 400, 0)
    np.testing.assert_array_equal(
        seen[0]["X"].astype(np.float32), matrix(make_statistics("binary", train), train)
    )
    np.testing.assert_array_equal(seen[0]["y"], train["label"])


def test_an_estimator_that_changes_its_inputs_changes_no_array(tmp_path: Path) -> None:
    run = write_run(
        tmp_path, declare("binary", evaluate={"against": [f"{ODD}:Recorder"]}), weight=True
    )
    train = load_arrays(run.arrays.train)
    fit_yardstick(run, load(run.declaration).evaluate.against[0], train)
    for name, array in make_arrays("binary", 400, 0, weight=True).items():
        np.testing.assert_array_equal(train[name], array)


def test_weights_are_given_to_a_fit_that_takes_them(tmp_path: Path) -> None:
    against = [f"{ODD}:Recorder", f"{ODD}:NoWeights"]
    run = write_run(tmp_path, declare("binary", evaluate={"against": against}), weight=True)
    train = load_arrays(run.arrays.train)
    takes, ignores = load(run.declaration).evaluate.against
    assert fit_yardstick(run, takes, train).note == ""
    np.testing.assert_array_equal(Recorder.seen["weight"], train["weight"])
    assert fit_yardstick(run, ignores, train).note == "its fit takes no sample weights"


def test_one_that_fails_has_a_line_and_stops_nothing(tmp_path: Path) -> None:
    names = ("Fails", "NotFinite", "TwoColumns")
    report = evaluated(tmp_path, "regression", *(f"{ODD}:{n}" for n in names))
    fails, not_finite, two = report.against
    assert fails.problem == "RuntimeError: no licence at https://***@host"
    assert not_finite.problem.startswith("DataError: expected finite predictions")
    assert two.problem == "DataError: expected predictions of shape (200,), got (200, 1)"
    assert all(f.metrics == {} and f.standing == "unknown" for f in report.against)
    assert yardstick_figures(report.against) == {} and report.has_skill
    declaration = declare("regression")
    assert yardstick_words(declaration, fails).startswith("Fails has no figures: RuntimeError")
    blocks = yardstick_blocks(declaration, ["rmse", "mae"], report)
    (callout,) = [b for b in blocks if isinstance(b, Callout)]
    assert "no licence" in callout.text and "secret" not in callout.text
    (table,) = [b for b in blocks if isinstance(b, Table)]
    assert [row[-1] for row in table.rows[1:]] == [Badge("info", "failed")] * 3
    assert {len(row) for row in table.rows} == {len(table.headers)}
    assert EvaluationReport.model_validate_json(report.model_dump_json()) == report


def test_a_class_that_train_lacks_has_probability_0(tmp_path: Path) -> None:
    train = make_arrays("multiclass", 400, 0)
    train["label"] = train["label"].clip(max=1)
    report = evaluated(tmp_path, "multiclass", FOREST, sides={"train": train})
    (found,) = report.against
    assert found.problem == "" and found.metrics["log_loss"] is not None


def test_arrays_that_were_changed_are_no_fault_of_the_yardstick(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary")
    run = with_yardsticks(run, FOREST, baselines=[])
    path = Path(run.arrays.train.arrays["numeric"].path)
    np.save(path, np.load(path) + 1)
    with pytest.raises(IntegrityError):
        evaluate(run, weights, "test", tmp_path / "out")


def test_each_yardstick_decides_by_its_own_threshold(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary")
    run = with_yardsticks(run, FOREST, threshold={"for": "f1"})
    report = evaluate(run, file_ref(weights), "test", tmp_path / "out", {"y": 0.9})
    val, test = make_arrays("binary", 200, 1), make_arrays("binary", 200, 2)
    train = make_arrays("binary", 400, 0)
    statistics = make_statistics("binary", train)
    forest = RandomForestClassifier(n_estimators=10, random_state=0)
    forest.fit(matrix(statistics, train), train["label"])
    of_val, of_test = (forest.predict_proba(matrix(statistics, a))[:, 1] for a in (val, test))
    cuts = (np.arange(11) - 0.5) / 10  # between the values that ten trees can give
    on_val = [sk.f1_score(val["label"], of_val > c) for c in cuts]
    possible = {
        round(sk.f1_score(test["label"], of_test > c), 9)
        for c, f1 in zip(cuts, on_val, strict=True)
        if f1 >= max(on_val) - 1e-9
    }
    assert round(report.against[0].metrics["f1"] or 0, 9) in possible


# ------------------------------------------------------------------------------------------ inputs


def test_the_frame_has_the_columns_of_the_matrix_with_types() -> None:
    arrays = make_arrays("binary", 60, 0, tensor=True)
    statistics = make_statistics("binary", arrays)
    frame = feature_frame(statistics, arrays)
    np.testing.assert_array_equal(frame.astype(np.float32), matrix(statistics, arrays))
    assert list(frame.columns)[:7] == ["x0", "x1", "x2", "x3", "x4", "x4_null", "picture_0"]
    assert list(frame.columns)[-2:] == ["color", "shape"]
    assert frame["color"].cat.categories.tolist() == [0, 1, 2, 3, 4]
    few = feature_frame(statistics, arrays, slice(0, 3))
    assert few.dtypes.equals(frame.dtypes) and few.equals(frame.iloc[:3])


def test_names_are_plain_and_differ() -> None:
    statistics = make_statistics("binary", make_arrays("binary", 60, 0)).model_copy(
        update={
            "numeric": tuple(
                NumericStats(name=n, method="none", indicator=n == "a b")
                for n in ("a b", "a:b", "a_b_null", 'größe["x"]')
            ),
            "categorical": (CategoryStats(name="a[b", values=("p",), counts=(1,)),),
        }
    )
    names = column_names(statistics)
    assert names == ["a_b", "a_b_1", "a_b_null", "größe__x__", "a_b_null_4", "a_b_5"]


def test_boosting_of_scikit_learn_takes_the_categories(tmp_path: Path) -> None:
    arrays = make_arrays("regression", 400, 0)
    frame = feature_frame(make_statistics("regression", arrays), arrays)
    model = HistGradientBoostingRegressor(max_iter=3).fit(frame, arrays["label"])
    assert model.is_categorical_.tolist() == [False] * 6 + [True] * 2
    LogisticRegression(max_iter=500).fit(frame, arrays["label"] > 0)


# ----------------------------------------------------------------------------------------- refusals


def against(*entries: Any, task: str = "binary") -> Any:
    return declare(task, evaluate={"against": list(entries)})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "os:system",
            r"evaluate\.against 'os:system': package 'os' is not allowed.*=sklearn,tests,os",
        ),
        ("sklearn.nothing:Thing", r"cannot be imported \(ModuleNotFoundError"),
        ("sklearn.ensemble:Thing", r"cannot be imported \(AttributeError"),
        (f"{ODD}:NUMBER", r"expected a class, got 5"),
        (f"{ODD}:NoPredict", r"got one without predict, predict_proba"),
        ("sklearn.linear_model:Ridge", r"got one without predict_proba"),
        (
            FOREST | {"options": {"tres": 5}, "name": "bad"},
            r"constructed with options \['tres'\] \(TypeError",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_yardsticks(against(FOREST, entry))
    require_yardsticks(against(FOREST))


def test_a_class_for_numbers_needs_no_probabilities() -> None:
    require_yardsticks(against("sklearn.linear_model:Ridge", task="regression"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["forest"], r"evaluate\.against\.0\.path"),
        ([FOREST, FOREST | {"name": "Forest"}], r"expected different names, got 'Forest' twice"),
        ([FOREST | {"name": "linear"}], r"the name 'linear' is that of the model or a baseline"),
        ([FOREST | {"name": "a/b"}], r"evaluate\.against\.0\.name"),
        ([FOREST | {"option": 1}], r"against\.0\.option: unknown key; did you mean 'options'"),
    ],
)
def test_a_bad_declaration_is_refused_by_name(entries: list[Any], message: str) -> None:
    tree = declare("binary").model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ConfigError, match=message):
        load(tree | {"evaluate": {"against": entries}})
    load(tree | {"evaluate": {"against": [FOREST]}})


def test_several_labels_have_no_yardsticks() -> None:
    tree = declare("binary").model_dump(mode="json", exclude_unset=True)
    tree["task"] = {"kind": "multilabel", "labels": {"a": {}, "b": {}}}
    tree["data"]["columns"] = {"a": "label", "b": "label", "*": "feature"}
    load(tree)
    with pytest.raises(ConfigError, match=r"estimators of a single label, got task\.kind 'multi"):
        load(tree | {"evaluate": {"against": [FOREST]}})


def test_the_seed_is_that_of_training_unless_one_is_given() -> None:
    declaration = declare("binary", train={"seed": 7}, evaluate={"against": [FOREST]})
    (yardstick,) = declaration.evaluate.against
    assert build_estimator(yardstick, declaration).random_state == 7
    given = yardstick.model_copy(update={"options": {"random_state": 3}})
    assert build_estimator(given, declaration).random_state == 3


def test_a_result_needs_no_figures() -> None:
    assert YardstickResult(name="a", path="b:C").standing == "unknown"
