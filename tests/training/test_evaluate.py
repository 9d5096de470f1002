"""An evaluation scores every row once, and its figures follow from the predictions that it
leaves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score, root_mean_squared_error

from schemas.config import METRICS
from schemas.digest import file_ref
from schemas.errors import IntegrityError, NonFiniteError
from schemas.records import EvaluationReport, RunSpec
from tests.training.toys import CLASSES, declare, make_arrays, write_run
from training.evaluation.by_group import group_table
from training.evaluation.evaluate import base_rate, evaluate
from training.evaluation.label_evaluation import numbers
from training.models.build import build_model
from training.objectives.losses import make_loss
from training.objectives.metrics import predict


def trained_run(folder: Path, task: str, **options: Any) -> tuple[RunSpec, Path]:
    """A run and weights after some steps."""
    declaration = declare(task, {"kind": "mlp", "hidden": [32]}, evaluate={"bootstrap": 60})
    run = write_run(folder, declaration, **options)
    network, loss = (
        build_model(declaration, run.statistics).train(),
        make_loss(declaration, run.statistics),
    )
    arrays = {name: torch.from_numpy(a) for name, a in make_arrays(task, 400).items()}
    label = arrays.pop("label")
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        loss(network(arrays), label).backward()
        optimizer.step()
    torch.save(network.state_dict(), folder / "model.pt")
    return run, folder / "model.pt"


@pytest.mark.req("T9")
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_the_report_follows_from_the_predictions_on_disk(tmp_path: Path, task: str) -> None:
    run, weights = trained_run(tmp_path, task)
    report = evaluate(run, file_ref(weights), "test", tmp_path / "evaluation")
    assert (
        EvaluationReport.model_validate_json(
            (tmp_path / "evaluation" / "evaluation.json").read_text()
        )
        == report
    )
    table = pq.read_table(report.predictions.path)
    assert table["__id"].to_pylist() == [f"test-{i}" for i in range(200)]
    assert (report.rows, report.side, report.resampled_by) == (200, "test", "row")
    assert list(report.metrics) == list(METRICS[task])
    frame = table.to_pandas()
    if task == "regression":
        assert report.metrics["rmse"].value == pytest.approx(
            root_mean_squared_error(frame["label"], frame["prediction"]), rel=1e-12
        )
    else:
        probabilities = frame[[f"probability_{c}" for c in CLASSES[task]]].to_numpy()
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
        assert frame["prediction"].tolist() == [CLASSES[task][i] for i in probabilities.argmax(1)]
        assert report.metrics["accuracy"].value == pytest.approx(
            (frame["prediction"] == frame["label"]).mean(), rel=1e-12
        )
    if task == "binary":
        assert report.metrics["auroc"].value == pytest.approx(
            roc_auc_score(frame["label"], frame["probability_True"]), rel=1e-12
        )
    assert all(
        m.low is not None and m.high is not None and m.low <= m.value <= m.high
        for m in report.metrics.values()
        if m.value is not None
    )  # type: ignore[operator]
    assert report.has_skill and list(report.baselines) == ["constant", "linear", "boosting"]
    assert report.verdict.startswith("The network's ")


@pytest.mark.req("R1")
def test_predictions_are_those_of_the_network_in_float64(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "regression")
    report = evaluate(run, weights, "val", tmp_path / "evaluation")
    declaration = declare("regression", {"kind": "mlp", "hidden": [32]})
    network = build_model(declaration, run.statistics)
    network.load_state_dict(torch.load(weights, weights_only=True))
    arrays = {
        name: torch.from_numpy(a)
        for name, a in make_arrays("regression", 200, 1).items()
        if name != "label"
    }
    with torch.inference_mode():
        scores = network.eval().double()({**arrays, "numeric": arrays["numeric"].double()}).numpy()
    found = pq.read_table(report.predictions.path)["prediction"].to_numpy()
    np.testing.assert_allclose(found, predict(declaration, run.statistics, scores), rtol=1e-12)


@pytest.mark.req("P8")
def test_groups_are_resampled_and_shown_largest_first(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary", groups=7)
    report = evaluate(run, weights, "test", tmp_path / "evaluation")
    assert report.resampled_by == "group"
    assert [g["rows"] for g in report.by_group] == [29, 29, 29, 29, 28, 28, 28]
    assert report.by_group[0]["group"] == "g0"
    mine = pq.read_table(report.predictions.path).to_pandas().query("__group == 'g0'")
    assert report.by_group[0]["accuracy"] == pytest.approx(
        (mine["prediction"] == mine["label"]).mean()
    )


@pytest.mark.req("P8")
def test_too_few_groups_give_intervals_over_rows_and_say_so(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary", groups=3)
    report = evaluate(run, weights, "test", tmp_path / "evaluation")
    assert report.resampled_by == "row"
    assert "Only 3 groups" in report.interval_note
    assert len(report.by_group) == 3


@pytest.mark.req("P8")
def test_small_groups_are_left_out_of_the_table() -> None:
    group = np.array(["a"] * 12 + ["b"] * 9 + [None] * 15, dtype=object)
    predictions, target = np.zeros(36), np.ones(36)
    (row,) = group_table(declare("regression"), group, predictions, target, None)
    assert row == {"group": "a", "rows": 12, "rmse": 1.0, "mae": 1.0, "r2": None, "mape": 1.0}


@pytest.mark.req("P8")
def test_validation_has_neither_baselines_nor_a_verdict(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary")
    report = evaluate(run, weights, "val", tmp_path / "evaluation")
    assert (report.baselines, report.verdict, report.has_skill) == ({}, "", True)


@pytest.mark.req("P8")
def test_an_untrained_network_has_no_skill(tmp_path: Path) -> None:
    declaration = declare("binary", {"kind": "mlp"}, evaluate={"bootstrap": 60})
    run = write_run(tmp_path, declaration)
    network = build_model(declaration, run.statistics)
    torch.nn.init.zeros_(network.body.head.weight)
    torch.save(network.state_dict(), tmp_path / "model.pt")
    report = evaluate(run, tmp_path / "model.pt", "test", tmp_path / "evaluation")
    assert not report.has_skill
    assert "no skill" in report.verdict


@pytest.mark.req("P8")
def test_sample_weights_count(tmp_path: Path) -> None:
    test = {
        **make_arrays("binary", 200, 2),
        "weight": np.r_[np.ones(100), np.zeros(100)].astype(np.float32),
    }
    sides = {
        side: make_arrays("binary", 400, i, weight=True) for i, side in enumerate(("train", "val"))
    }
    run, weights = trained_run(tmp_path, "binary", sides={**sides, "test": test})
    report = evaluate(run, weights, "test", tmp_path / "evaluation")
    frame = pq.read_table(report.predictions.path).to_pandas()
    counted = frame.iloc[:100]
    assert report.metrics["accuracy"].value == pytest.approx(
        (counted["prediction"] == counted["label"]).mean()
    )
    assert report.base_rate["True"] == pytest.approx(counted["label"].mean())


@pytest.mark.req("P8")
def test_base_rate_is_weighted_share_or_moments(tmp_path: Path) -> None:
    statistics = write_run(tmp_path, declare("regression")).statistics
    assert base_rate(statistics, np.array([1.0, 3.0]), np.array([3.0, 1.0])) == {
        "mean": 1.5,
        "standard deviation": pytest.approx(0.75**0.5),
    }


@pytest.mark.req("C3")
def test_changed_weights_and_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary")
    recorded = file_ref(weights)
    state = torch.load(weights, weights_only=True)
    state["body.head.bias"] = torch.tensor([float("nan")])
    torch.save(state, weights)
    with pytest.raises(IntegrityError, match="the file was changed after it was written"):
        evaluate(run, recorded, "test", tmp_path / "evaluation")
    with pytest.raises(
        NonFiniteError,
        match=r"scores of 200 of 200 rows are not finite \(first ids: test-0, test-1",
    ):
        evaluate(run, weights, "test", tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()


def test_given_labels_of_any_type_are_numbers_and_large_ones_are_rounded() -> None:
    types = pa.int64(), pa.float32(), pa.decimal128(25, 2), pa.uint8()
    for kind in types:
        column = pa.array([1, None, 3], pa.int64()).cast(kind)
        found = numbers(pd.Series(column, dtype=pd.ArrowDtype(kind)))
        np.testing.assert_array_equal(found, [1, np.nan, 3])
    large = pd.Series(pa.array([2**55 + 1, -(2**53) - 1]), dtype=pd.ArrowDtype(pa.int64()))
    np.testing.assert_array_equal(numbers(large), [float(2**55 + 1), float(-(2**53) - 1)])
