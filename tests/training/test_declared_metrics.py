"""Metrics that a declaration adds: equal to scikit-learn's with sample weights, also resampled, and
in every place that reports metrics; and the checks of their declaration and labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn import metrics as sk

from schemas.config import Declaration
from schemas.errors import DataError, SchemaError
from tests.training.cases import declaration_of, make_case, raw_rows, typed
from tests.training.data.chain import declared, validated_of, write_table
from tests.training.data.sides import split_of
from tests.training.toys import declare, make_toy
from training.data.fit.normalize import fit
from training.evaluation.baselines import baseline_metrics, baseline_predictions
from training.evaluation.evaluate import group_table
from training.objectives.bootstrap import intervals, one_resample, paired_difference
from training.objectives.constants import weighted_quantile
from training.objectives.measures import declared_measures, unexplained
from training.objectives.metrics import compute, compute_predictions, predict, targets

QUANTILE = {"kind": "quantile", "quantile": 0.8}
COSTS = ((0.0, 1.0, 4.0), (2.0, 0.0, 1.0), (8.0, 2.0, 0.0))
DECLARED: dict[str, tuple[str, dict[str, Any]]] = {
    "quantile_loss": ("regression", {"loss": QUANTILE}),
    "poisson_deviance": ("regression", {"loss": {"kind": "poisson"}}),
    "tweedie_deviance": ("regression", {"loss": {"kind": "tweedie", "power": 1.7}}),
    "quadratic_kappa": ("multiclass", {"loss": {"kind": "ordinal", "order": ["a", "b", "c"]}}),
    "top_2_accuracy": ("multiclass", {"evaluate": {"top_k": 2}}),
    "cost": ("multiclass", {"evaluate": {"costs": COSTS}}),
}


def rows(task: str, number: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, targets and weights, of which some are 0."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 4, number) / 2
    if task == "regression":
        return rng.gamma(2, 2, number), rng.integers(0, 5, number).astype(float), weight
    odds = rng.gamma(1, 1, (number, 3)) + 1e-3
    return odds / odds.sum(1, keepdims=True), rng.integers(0, 3, number), weight


def reference(name: str, p: np.ndarray, y: np.ndarray, w: np.ndarray) -> float | None:
    """The same by scikit-learn."""
    match name:
        case "quantile_loss":
            return sk.mean_pinball_loss(y, p, sample_weight=w, alpha=0.8)
        case "poisson_deviance":
            return sk.mean_poisson_deviance(y, p, sample_weight=w)
        case "tweedie_deviance":
            return sk.mean_tweedie_deviance(y, p, sample_weight=w, power=1.7)
        case "top_2_accuracy":
            return sk.top_k_accuracy_score(y, p, k=2, sample_weight=w, labels=[0, 1, 2])
        case "cost":
            return np.average(np.array(COSTS)[y, p.argmax(1)], weights=w)
    guess = p.argmax(1)
    if len({*y, *guess}) == 1:
        return None
    return sk.cohen_kappa_score(y, guess, weights="quadratic", sample_weight=w, labels=[0, 1, 2])


@pytest.mark.req("T9")
@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(sorted(DECLARED)), number=st.integers(1, 30), seed=st.integers(0, 999))
def test_metrics_and_their_resamples_equal_scikit_learn(name: str, number: int, seed: int) -> None:
    task, sections = DECLARED[name]
    declaration = declare(task, **sections)
    p, y, w = rows(task, number, seed)
    found = compute_predictions(task, p, y, w, declared=declared_measures(declaration))
    assert list(found) == list(declaration.metrics)
    kept = w > 0
    if not kept.any():
        assert found[name] is None
        return
    expected = reference(name, p[kept], y[kept], w[kept])
    resampled = one_resample(declaration, name, p, y, w, ())
    if expected is None:
        assert found[name] is None and np.isnan(resampled)
        return
    assert found[name] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert resampled == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.req("P8")
@pytest.mark.parametrize("name", sorted(DECLARED))
def test_every_report_has_the_declared_metric(name: str) -> None:
    task, sections = DECLARED[name]
    toy, (p, y, _) = make_toy(task, **sections), rows(task, 60, 1)
    found = intervals(toy.declaration, p, y, resamples=40)
    interval = found[name]
    assert interval.low is not None and interval.low <= interval.value <= interval.high
    difference = paired_difference(toy.declaration, name, p, p[::-1], y, resamples=40)
    assert difference.value != 0
    groups = np.array(["a", "b"] * 30, dtype=object)
    table = group_table(toy.declaration, groups, p, y, None)
    assert [set(row) - {"group", "rows"} for row in table] == [set(toy.declaration.metrics)] * 2
    scores = np.random.default_rng(0).normal(size=(60, {"regression": 1}.get(task, 3)))
    scores = scores[:, : 2 if name == "quadratic_kappa" else None]
    label = y.astype(np.float32) if task == "regression" else y
    assert name in compute(toy.declaration, toy.statistics, scores, label)


@pytest.mark.req("T9")
def test_a_label_of_0_leaves_mape_undefined_also_as_it_is_stored() -> None:
    toy = make_toy("regression")
    stored = np.array([(v - 50.0) / 8.0 for v in (0.0, 41.3, 77.7)], dtype=np.float32)
    y = targets(toy.declaration, toy.statistics, stored)
    p = predict(toy.declaration, toy.statistics, np.zeros((3, 1)))
    assert compute_predictions("regression", p, y)["mape"] is None
    assert compute_predictions("regression", p[1:], y[1:])["mape"] == pytest.approx(
        sk.mean_absolute_percentage_error(y[1:], p[1:])
    )
    assert compute_predictions("regression", p, y, np.array([0.0, 1, 1]))["mape"] is not None


@pytest.mark.req("T9")
def test_errors_of_a_binary_label_have_their_costs() -> None:
    declaration = declare("binary", evaluate={"costs": {"false_negative": 5, "false_positive": 2}})
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    y = np.array([1, 0, 0, 1])
    found = compute_predictions("binary", p, y, declared=declared_measures(declaration))
    assert found["cost"] == (5 + 0 + 2 + 0) / 4


@pytest.mark.req("T9")
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["quantile_loss", "poisson_deviance", "tweedie_deviance"]),
    seed=st.integers(0, 999),
)
def test_what_is_left_unexplained_is_1_minus_d2(name: str, seed: int) -> None:
    declaration = declare("regression", **DECLARED[name][1])
    p, y, w = rows("regression", 25, seed)
    measure = unexplained(declaration)
    assert measure is not None
    found = float(measure(p, y)(w[None])[0])
    if name == "quantile_loss":
        best = np.full(25, weighted_quantile(y, w, 0.8))
        expected = sk.mean_pinball_loss(y, p, sample_weight=w, alpha=0.8)
        expected /= sk.mean_pinball_loss(y, best, sample_weight=w, alpha=0.8)
    else:
        power = {"poisson_deviance": 1, "tweedie_deviance": 1.7}[name]
        expected = 1 - sk.d2_tweedie_score(y, p, sample_weight=w, power=power)
    assert found == pytest.approx(expected, rel=1e-9)


# ----------------------------------------------------------------------- labels and what is fitted


def fitted(folder: Path, label: list[Any], **sections: Any) -> Any:
    """Statistics of a train table with these labels, and the array of the label."""
    declaration = declaration_of("regression", **sections)
    frame = raw_rows(len(label), 0, "regression").assign(y=label)
    table, resolved = typed(frame, declaration)
    columns = {n: table.column(n).combine_chunks() for n in table.column_names}
    split = split_of(folder, train=columns, val=columns, test=columns)
    return fit(split.train, resolved.spec, declaration)  # type: ignore[arg-type]


@pytest.mark.req("D7")
def test_a_mean_is_divided_by_and_a_quantile_is_a_train_value(tmp_path: Path) -> None:
    label = [0.0, 1.0, 2.0, 9.0] * 10
    found = fitted(tmp_path / "a", label, loss={"kind": "poisson"})
    assert (found.target_center, found.target_scale) == (0.0, 3.0)
    found = fitted(tmp_path / "b", label, loss={"kind": "tweedie"}, normalize={"target": "none"})
    assert (found.target_center, found.target_scale) == (0.0, 1.0)
    found = fitted(tmp_path / "c", label, loss={"kind": "quantile", "quantile": 0.9})
    assert found.label_quantile == 9.0 and found.target_center == 3.0
    plain = fitted(tmp_path / "d", label)
    assert plain.label_quantile is None and "label_quantile" not in plain.model_dump()


@pytest.mark.req("D2")
def test_negative_labels_are_refused_by_row_and_again_in_the_fit(tmp_path: Path) -> None:
    table = {"id": [1, 2, 3, 4, 5], "x": [1.0, 2, 3, 4, 5], "y": [2.0, -1.0, 0.0, -3.5, 4.0]}
    path = write_table(tmp_path / "t.parquet", table)
    roles = {"id": "id", "y": "label", "*": "feature"}
    sections = {"task": {"kind": "regression"}, "split": {"kind": "random"}}
    message = (
        r"column 'y': loss poisson expects labels of at least 0, got 2 below, first ids: 2 \(-1\),"
        r" 4 \(-3\.5\); use loss mse"
    )
    with pytest.raises(SchemaError, match=message):
        validated_of(declared(path, roles, **sections, loss={"kind": "poisson"}), tmp_path / "bad")
    validated_of(declared(path, roles, **sections), tmp_path / "good")
    with pytest.raises(DataError, match=r"loss tweedie expects labels of at least 0, got -2\.0"):
        fitted(tmp_path / "fit", [-2.0, 1.0, 3.0], loss={"kind": "tweedie"})


@pytest.mark.req("D7")
def test_ordered_classes_are_as_declared(tmp_path: Path) -> None:
    case = make_case(tmp_path / "a", "multiclass", loss={"kind": "ordinal"})
    assert case.run.statistics.classes == (10, 20, 30)
    turned = make_case(
        tmp_path / "b", "multiclass", loss={"kind": "ordinal", "order": [30, 10, 20]}
    )
    assert turned.run.statistics.classes == (30, 10, 20)
    assert sum(turned.run.statistics.class_counts) == turned.run.statistics.rows
    with pytest.raises(DataError, match=r"loss\.order names '10', '20', but the classes in train"):
        make_case(tmp_path / "c", "multiclass", loss={"kind": "ordinal", "order": [10, 20]})


@pytest.mark.req("D7")
@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"top_k": 3}, r"evaluate\.top_k is 3, and train has 3 classes: every row"),
        ({"costs": [[0, 1], [1, 0]]}, r"a matrix for 2 classes, and train has 3: 10, 20, 30"),
    ],
)
def test_metrics_that_do_not_fit_the_classes_are_refused_before_training(
    tmp_path: Path, evaluate: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make_case(tmp_path, "multiclass", evaluate=evaluate)


# ------------------------------------------------------------------------------------- baselines


@pytest.mark.req("P8")
@pytest.mark.parametrize("kind", ["quantile", "poisson", "tweedie"])
def test_baselines_have_the_loss_and_units_of_the_declaration(tmp_path: Path, kind: str) -> None:
    section = QUANTILE if kind == "quantile" else {"kind": kind}
    case = make_case(tmp_path, "regression", loss=section)
    declaration, statistics, arrays = case.declaration, case.run.statistics, case.run.arrays
    found = baseline_predictions(declaration, statistics, arrays, "train")
    label = case.raw["train"]["y"].to_numpy()
    assert len(set(found["constant"])) == 1
    for name in ("linear", "boosting"):
        assert 0.5 < np.mean(found[name]) / label.mean() < 2, name
        assert kind == "quantile" or (found[name] > 0).all()
    metrics = baseline_metrics(declaration, statistics, arrays, "train")
    main = {name: values[declaration.metric] for name, values in metrics.items()}
    assert main["linear"] < main["constant"] and main["boosting"] < main["constant"]
    if kind == "quantile":
        stored = pq.read_table(arrays.train.ids.file, columns=["label"])["label"].to_numpy()
        below = {name: float((stored <= p + 1e-3).mean()) for name, p in found.items()}
        assert below["constant"] == pytest.approx(0.8, abs=0.02)
        assert below["linear"] == pytest.approx(0.8, abs=0.02)


# ----------------------------------------------------------------------------------- combinations


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("task", "sections", "message"),
    [
        ("binary", {"loss": {"kind": "poisson"}}, r"loss\.kind 'poisson' does not fit task 'bin"),
        ("binary", {"loss": {"kind": "ordinal"}}, r"'ordinal' does not fit task 'binary'"),
        ("regression", {"loss": {"kind": "focal"}}, r"'focal' does not fit task 'regression'"),
        ("regression", {"loss": {"kind": "quantile"}}, r"say which one: set loss\.quantile"),
        ("regression", {"loss": {"quantile": 0.9}}, r"loss\.quantile belongs to loss quantile"),
        ("regression", {"loss": {"power": 1.2}}, r"loss\.power belongs to loss tweedie"),
        ("regression", {"loss": {"kind": "tweedie", "power": 2.0}}, r"less than 2"),
        ("multiclass", {"loss": {"gamma": 1}}, r"loss\.gamma belongs to loss focal"),
        ("multiclass", {"loss": {"order": [1, 2]}}, r"loss\.order belongs to loss ordinal"),
        (
            "multiclass",
            {"loss": {"kind": "ordinal", "order": [1, 1.0, 2]}},
            r"loss\.order names class '1' twice",
        ),
        (
            "multiclass",
            {"loss": {"kind": "focal", "label_smoothing": 0.1}},
            r"label_smoothing is for cross_entropy, not focal",
        ),
        ("binary", {"evaluate": {"top_k": 3}}, r"evaluate\.top_k needs a multiclass task"),
        ("regression", {"evaluate": {"costs": [[0, 1], [1, 0]]}}, r"costs needs one label with cl"),
        ("multiclass", {"evaluate": {"costs": {"false_negative": 2}}}, r"are for a binary task"),
        ("binary", {"evaluate": {"costs": [[0, 1, 1]] * 3}}, r"a right prediction costs nothing"),
        ("multiclass", {"evaluate": {"costs": [[0, 1], [1]]}}, r"expected a square matrix"),
        ("binary", {"evaluate": {"costs": [[0, 1, 1], [1, 0, 1], [1, 1, 0]]}}, r"has 2 classes"),
        ("regression", {"train": {"metric": "quantile_loss"}}, r"unknown metric 'quantile_loss'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    task: str, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        declare(task, **sections)


@pytest.mark.req("P1")
def test_the_metric_follows_the_loss_and_can_be_chosen_and_bounded() -> None:
    for name, (task, sections) in DECLARED.items():
        declaration = declare(task, **sections)
        assert (declaration.metric == name) == ("loss" in sections)
        bounded = declare(
            task, **sections, train={"metric": name}, register={"thresholds": {name: {"max": 1}}}
        )
        assert bounded.metric == name
        assert bounded.greater_is_better == (name in ("quadratic_kappa", "top_2_accuracy"))


@pytest.mark.req("M3")
def test_labels_of_several_have_their_own_loss_link_and_metric() -> None:
    tree: dict[str, Any] = {
        "name": "toy",
        "data": {"uri": "t.parquet", "columns": {"a": "label", "b": "label", "*": "feature"}},
        "task": {
            "kind": "multitask",
            "labels": {"a": {"kind": "regression", "loss": "poisson"}, "b": "regression"},
        },
        "split": {"kind": "random"},
    }
    declaration = Declaration.model_validate(tree)
    assert "a/poisson_deviance" in declaration.metrics
    assert "b/poisson_deviance" not in declaration.metrics
    assert declaration.non_negative_labels == ["a"]
    assert (declaration.label_loss("a"), declaration.label_loss("b")) == ("poisson", "mse")
