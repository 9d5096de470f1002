"""Importance finds the columns that carry the score and gives none to noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from schemas.reason_records import Reasons
from schemas.records import RunSpec
from tests.training.test_evaluate import trained_run
from tests.training.toys import declare, make_arrays, make_statistics, write_run
from training.data.arrays.apply import transform_numeric
from training.evaluation.closer import look_closer
from training.evaluation.feature_groups import association, features_of, group_features
from training.evaluation.importance import find_reasons, with_question
from training.evaluation.partial_curves import in_units
from training.evaluation.slice_scores import Rows
from training.objectives.metrics import predict, targets
from training.report.reason_section import importance_bars, partial_dependence
from training.serving.reference_network import in_double, reference_network, scores_of

PLANTED = {"x0", "x1", "color"}
OPTIONS = {"group": None, "weight": None, "resamples": 200, "confidence": 0.95, "seed": 0}
OPTIONS |= {"labels": (), "threshold": 0.5}


class Known(nn.Module):
    """A network whose score is known: some columns of the numeric block with weights."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights), requires_grad=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores [B, 1]."""
        return (batch["numeric"] @ self.weights)[:, None]


def reasons_of(run: RunSpec, network: nn.Module, constant: float = 0.5) -> Reasons:
    task = run.declaration["task"]["kind"]
    declaration = declare(task)
    arrays = {n: np.load(ref.path) for n, ref in run.arrays.test.arrays.items()}
    label = arrays.pop("label")
    found = predict(declaration, run.statistics, scores_of(network, arrays))
    rows = Rows(declaration, found, targets(declaration, run.statistics, label), OPTIONS)
    return find_reasons(run, network, rows, constant)


@pytest.mark.req("P8")
@pytest.mark.parametrize(
    "task",
    [
        "binary",
        pytest.param("multiclass", marks=pytest.mark.long),
        pytest.param("regression", marks=pytest.mark.long),
    ],
)
def test_planted_columns_count_and_noise_does_not(tmp_path: Path, task: str) -> None:
    run, weights = trained_run(tmp_path, task, rows=1200)
    found = reasons_of(run, reference_network(run, weights))
    assert {group.columns[0] for group in found.groups if group.counts} == PLANTED
    assert len(found.groups) == 7 and found.rows == 600
    assert [curve.column for curve in found.curves[:1]] == [found.groups[0].columns[0]]
    assert "<svg" in importance_bars(found).svg and "<svg" in partial_dependence(found.curves).svg


@pytest.mark.long
@pytest.mark.req("P8")
def test_noise_counts_in_few_of_100_models(tmp_path: Path) -> None:
    wrong = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        run = noisy_run(tmp_path / str(seed), rng, columns=12)
        # the model learned something of every column, as an overfitted one has
        network = Known([1.0, *rng.normal(0, 0.3, 11)])
        found = reasons_of(run, in_double(network, run.statistics))
        assert found.groups[0].columns == ("x0",)
        wrong += any(group.counts for group in found.groups[1:])
    assert wrong <= 5


def noisy_run(folder: Path, rng: np.random.Generator, columns: int) -> RunSpec:
    """A run whose label follows from the first column; the others are noise."""
    numeric = rng.normal(size=(600, columns)).astype(np.float32)
    label = (numeric[:, 0] + rng.normal(size=600) > 0).astype(np.int64)
    arrays = {"numeric": numeric, "label": label}
    declaration = declare("binary", {"kind": "linear"})
    run = write_run(folder, declaration, sides=dict.fromkeys(("train", "val", "test"), arrays))
    first = run.statistics.numeric[0]
    numbers = tuple(first.model_copy(update={"name": f"x{i}"}) for i in range(columns))
    statistics = run.statistics.model_copy(update={"numeric": numbers, "categorical": ()})
    return run.model_copy(update={"statistics": statistics})


@pytest.mark.req("P8")
def test_columns_that_say_the_same_are_shuffled_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    run = noisy_run(tmp_path, rng, columns=4)
    arrays = {n: np.load(r.path) for n, r in run.arrays.test.arrays.items() if n != "label"}
    arrays["numeric"][:, 2] = np.exp(arrays["numeric"][:, 0])  # a monotone copy
    np.save(run.arrays.test.arrays["numeric"].path, arrays["numeric"])
    groups = group_features(features_of(run), arrays)
    assert [[f.name for f in group] for group in groups] == [["x0", "x2"], ["x1"], ["x3"]]


@pytest.mark.req("P8")
def test_association_is_1_for_copies_and_small_for_noise_of_any_kind() -> None:
    rng = np.random.default_rng(0)
    number, noise = rng.normal(size=(2, 1000))
    code, other = np.digitize(number, [-0.5, 0.5]), rng.integers(0, 40, 1000)
    found = association(
        [
            (number, False),
            (-(number**3), False),
            (code, True),
            (other, True),
            (noise, False),
            (2 - code, True),
        ]
    )
    assert found[0, 1] == pytest.approx(1) and found[2, 5] == pytest.approx(1, abs=1e-3)
    assert found[0, 2] > 0.85
    assert max(found[0, 3], found[2, 3], found[3, 4], found[0, 4]) < 0.2
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.req("P8")
def test_a_column_that_carries_the_score_is_a_question_after_the_verdict(tmp_path: Path) -> None:
    run = noisy_run(tmp_path, np.random.default_rng(1), columns=5)
    found = reasons_of(run, in_double(Known([1.0, 0, 0, 0, 0]), run.statistics))
    assert found.question.startswith(
        "Most of the score rests on x0: with its values shuffled, AUROC"
    )
    assert found.question.endswith("is x0 known when predicting, and what the model should go by?")
    fields = {"verdict": "Better.", "has_skill": True}
    assert with_question(fields, found)["verdict"] == f"Better. {found.question}"
    assert with_question(fields | {"has_skill": False}, found)["verdict"] == "Better."
    spread = in_double(Known([0.1, 1.0, 1.0, 1.0, 1.0]), run.statistics)
    assert reasons_of(run, spread).question == ""


@pytest.mark.long
@pytest.mark.req("P8")
def test_of_many_columns_the_strongest_are_shuffled_apart(tmp_path: Path) -> None:
    run = noisy_run(tmp_path, np.random.default_rng(2), columns=40)
    weights = [0.0] * 40
    weights[0] = weights[37] = 1.0
    found = reasons_of(run, in_double(Known(weights), run.statistics))
    assert len(found.groups) == 31 and "40 groups of columns" in found.note
    assert ("x37",) in [group.columns for group in found.groups]
    assert [group.columns for group in found.groups if group.counts] == [("x0",)]


@pytest.mark.req("P8")
def test_a_curve_is_the_mean_prediction_and_in_the_units_of_the_column(tmp_path: Path) -> None:
    run = noisy_run(tmp_path, np.random.default_rng(3), columns=3)
    number = run.statistics.numeric[0].model_copy(update={"center": 50.0, "scale": 8.0})
    statistics = run.statistics.model_copy(
        update={"numeric": (number, *run.statistics.numeric[1:])}
    )
    run = run.model_copy(update={"statistics": statistics})
    found = reasons_of(run, in_double(Known([1.0, 0, 0]), run.statistics))
    assert found == reasons_of(run, in_double(Known([1.0, 0, 0]), run.statistics))  # of the seed
    (curve,) = found.curves
    scaled = (np.array(curve.numbers) - 50) / 8
    np.testing.assert_allclose(curve.means, 1 / (1 + np.exp(-scaled)), rtol=1e-6)
    assert curve.what == "probability of True"


@pytest.mark.req("P8")
@pytest.mark.parametrize("method", ["smooth", "quantile"])
def test_scaled_values_are_brought_back_to_units(method: str) -> None:
    arrays = make_arrays("binary", 50)
    given = np.linspace(-20, 40, 50)
    statistics = make_statistics("binary", arrays)
    number = statistics.numeric[0].model_copy(
        update={"method": method, "center": 3.0 if method == "smooth" else 0.0, "indicator": False}
        | {"scale": 5.0 if method == "smooth" else 1.0, "knots": tuple(np.linspace(-20, 40, 20))}
    )
    own = statistics.model_copy(update={"numeric": (number,)})
    scaled = transform_numeric(given[:, None], own)[:, 0].astype(np.float64)
    np.testing.assert_allclose(in_units(number, scaled), given, rtol=1e-3, atol=1e-2)


@pytest.mark.req("P8")
def test_few_rows_and_other_sides_have_no_reasons(tmp_path: Path) -> None:
    run, weights = trained_run(tmp_path, "binary", rows=60)
    found = reasons_of(run, reference_network(run, weights))
    assert found.groups == () and "fewer than 100" in found.note
    rows = Rows(declare("binary"), np.zeros((1, 2)), np.zeros(1), OPTIONS)
    assert look_closer(run, nn.Identity(), rows, None, None, {}) == {}  # type: ignore[arg-type]
