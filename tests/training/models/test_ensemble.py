"""The ensemble's scores: their prediction is the weighted mean of the members' predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.config import Declaration
from schemas.load import declare
from schemas.members import member_seed, members_of
from schemas.records import LabelStats, Statistics
from schemas.task_metrics import LOG_MEAN_LOSSES, TASK_LOSSES
from tests.training.runs import declaration_tree, statistics
from tests.training.toys import make_toy
from training.models.build import build_model
from training.models.ensemble import Ensemble, build_ensemble
from training.models.members import member_mean
from training.objectives.link import ordered_log_probabilities, ordered_scores
from training.objectives.mean_prediction import combine, label_columns
from training.objectives.metrics import predict
from training.serving.reference_network import blank_batch, in_double

SEVERAL = {
    "kind": "multitask",
    "labels": {
        "a": {},
        "b": {"kind": "multiclass"},
        "c": {"kind": "regression"},
        "d": {"kind": "regression", "loss": "poisson"},
    },
}
EVERY = [
    (task, loss) for task in ("binary", "multiclass", "regression") for loss in TASK_LOSSES[task]
]


def task_of(task: str, loss: str = "auto") -> tuple[Declaration, Statistics]:
    """Declaration and statistics of a task, of several labels for `multitask`."""
    if task != "multitask":
        section = {"kind": loss} | ({"quantile": 0.9} if loss == "quantile" else {})
        scaled = {"target_scale": 2.0} if task == "regression" else {}
        declaration = declare(declaration_tree(task, loss=section))
        return declaration, statistics(task).model_copy(update=scaled)
    columns = {"id": "id", "a": "label", "b": "label", "c": "label", "d": "label", "x*": "numeric"}
    tree = declaration_tree(task=SEVERAL, data={"uri": "n.parquet", "columns": columns})
    tree["task"] = SEVERAL
    each = (
        LabelStats(
            name="a", kind="binary", known=50, share=1.0, classes=(0, 1), class_counts=(25, 25)
        ),
        LabelStats(
            name="b",
            kind="multiclass",
            known=50,
            share=1.0,
            classes=(0, 1, 2),
            class_counts=(9, 9, 9),
        ),
        LabelStats(
            name="c", kind="regression", known=50, share=1.0, target_center=7.0, target_scale=3.0
        ),
        LabelStats(name="d", kind="regression", known=50, share=1.0, target_scale=3.0),
    )
    return declare(tree), statistics("regression").model_copy(update={"labels": each})


def width_of(task: str, loss: str) -> int:
    return {"multitask": 6, "multiclass": 2 if loss == "ordinal" else 3}.get(task, 1)


@pytest.mark.parametrize(("task", "loss"), [*EVERY, ("multitask", "auto")])
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 3.0, 30.0, 600.0]))
def test_the_prediction_of_the_scores_is_the_mean_of_the_predictions(
    task: str, loss: str, seed: int, scale: float
) -> None:
    declaration, stats = task_of(task, loss)
    columns, rng = label_columns(declaration, stats), np.random.default_rng(seed)
    scores = rng.normal(scale=scale, size=(3, 7, width_of(task, loss)))
    weights = rng.dirichlet(np.ones(3))
    weights[seed % 3] *= seed % 2  # a member of weight 0 now and then
    weights /= weights.sum()
    found = combine(columns, torch.from_numpy(scores), torch.from_numpy(weights)).numpy()
    wanted = sum(w * predict(declaration, stats, s) for w, s in zip(weights, scores, strict=True))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(predict(declaration, stats, found), wanted, rtol=1e-12, atol=1e-12)
    joined = member_mean(declaration, stats)(torch.from_numpy(scores).transpose(0, 1)).numpy()
    wanted = sum(predict(declaration, stats, s) for s in scores) / 3
    np.testing.assert_allclose(predict(declaration, stats, joined), wanted, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), classes=st.integers(2, 6))
def test_ordered_scores_are_found_again_from_their_probabilities(seed: int, classes: int) -> None:
    scores = torch.from_numpy(np.random.default_rng(seed).normal(scale=5, size=(9, classes - 1)))
    found = ordered_scores(ordered_log_probabilities(scores))
    torch.testing.assert_close(found, scores, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("task", "loss"), EVERY)
def test_a_mean_of_scores_is_not_the_mean_of_predictions(task: str, loss: str) -> None:
    """The planted fault: what a mean of raw scores would say, which is right for values alone."""
    declaration, stats = task_of(task, loss)
    size = (2, 50, width_of(task, loss))
    scores = np.random.default_rng(0).normal(scale=3.0, size=size)
    wanted = sum(predict(declaration, stats, s) for s in scores) / 2
    off = np.abs(predict(declaration, stats, scores.mean(axis=0)) - wanted).max()
    assert (off < 1e-12) == (task == "regression" and loss not in LOG_MEAN_LOSSES)


def ensemble_of(task: str, model: dict[str, Any], **sections: Any) -> tuple[Any, Ensemble]:
    toy = make_toy(task, model, **sections)
    numbers = [1, 2] if "ensemble" in sections else [1, 3]
    return toy, build_ensemble(toy.declaration, toy.statistics, numbers).eval()


AUTO = {"kind": "auto", "candidates": ["linear", "mlp", {"kind": "resmlp", "width": 8, "depth": 1}]}


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize(
    ("model", "sections"), [(AUTO, {}), ({"kind": "linear"}, {"ensemble": {"members": 2}})]
)
def test_an_exported_ensemble_equals_the_network_and_the_mean_of_its_members(
    task: str, model: dict[str, Any], sections: dict[str, Any]
) -> None:
    toy, network = ensemble_of(task, model, **sections)
    network.weights.copy_(torch.tensor([0.3, 0.7], dtype=torch.float64))
    with torch.no_grad():
        for parameter in network.parameters():  # away from their careful start
            parameter += torch.randn(parameter.shape, generator=torch.manual_seed(1))
    double = in_double(network, toy.statistics)
    assert isinstance(double, Ensemble) and float(double.weights.sum()) == 1.0
    batch = {k: v.double() if v.is_floating_point() else v for k, v in toy.batch(16)[0].items()}
    blank = blank_batch(toy.statistics, torch.float64)
    free = ({name: {0: torch.export.Dim.DYNAMIC} for name in blank},)
    program = torch.export.export(double, (blank,), dynamic_shapes=free).module()
    with torch.inference_mode():
        scores = double(batch)
        each = [predict(toy.declaration, toy.statistics, m(batch).numpy()) for m in double.members]
        again = program(batch)
    assert scores.dtype == torch.float64 and torch.equal(scores, again)
    found = predict(toy.declaration, toy.statistics, scores.numpy())
    np.testing.assert_allclose(found, 0.3 * each[0] + 0.7 * each[1], rtol=1e-12, atol=1e-12)


def test_members_differ_in_their_seed_and_the_first_is_the_network_without_an_ensemble() -> None:
    toy, network = ensemble_of("binary", {"kind": "linear"}, ensemble={"members": 2})
    plain = make_toy("binary", {"kind": "linear"})
    first, second = (member.state_dict() for member in network.members)
    alone = build_model(plain.declaration, plain.statistics).state_dict()
    assert all(torch.equal(first[name], alone[name]) for name in alone)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    seeds = [one.train.seed for one in members_of(toy.declaration)]
    assert seeds == [0, member_seed(0, 2)] and all(
        one.ensemble is None for one in members_of(toy.declaration)
    )
    assert len({member_seed(seed, n) for seed in range(20) for n in range(2, 20)}) == 20 * 18


def test_a_portfolio_is_built_from_its_candidates_alone(tmp_path: Path) -> None:
    toy, network = ensemble_of("binary", AUTO)
    assert [type(m.body).__name__ for m in network.members] == ["Linear", "ResMlp"]
    with pytest.raises(Exception, match="several networks"):
        build_model(toy.declaration, toy.statistics)
