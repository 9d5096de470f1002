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
from tests.training.runs import declaration_tree, statistics
from tests.training.toys import make_toy
from training.models.build import build_model
from training.models.ensemble import Ensemble, build_ensemble, combine, label_columns
from training.objectives.metrics import predict
from training.serving.reference_network import blank_batch, in_double

SEVERAL = {
    "kind": "multitask",
    "labels": {"a": {}, "b": {"kind": "multiclass"}, "c": {"kind": "regression"}},
}


def task_of(task: str) -> tuple[Declaration, Statistics]:
    """Declaration and statistics of a task, of several labels for `multitask`."""
    if task != "multitask":
        return declare(declaration_tree(task)), statistics(task)
    columns = {"id": "id", "a": "label", "b": "label", "c": "label", "x*": "numeric"}
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
    )
    return declare(tree), statistics("regression").model_copy(update={"labels": each})


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression", "multitask"])
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.1, 3.0, 30.0, 600.0]))
def test_the_prediction_of_the_scores_is_the_mean_of_the_predictions(
    task: str, seed: int, scale: float
) -> None:
    declaration, stats = task_of(task)
    columns, rng = label_columns(declaration, stats), np.random.default_rng(seed)
    width = max(place.stop for _, place in columns)
    scores = rng.normal(scale=scale, size=(3, 7, width))
    weights = rng.dirichlet(np.ones(3))
    weights[seed % 3] *= seed % 2  # a member of weight 0 now and then
    weights /= weights.sum()
    found = combine(columns, torch.from_numpy(scores), torch.from_numpy(weights)).numpy()
    wanted = sum(w * predict(declaration, stats, s) for w, s in zip(weights, scores, strict=True))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(predict(declaration, stats, found), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_mean_of_logits_is_not_the_mean_of_predictions(task: str) -> None:
    """The planted fault: what a mean of raw scores would say, which is right for values alone."""
    declaration, stats = task_of(task)
    columns = label_columns(declaration, stats)
    width = max(place.stop for _, place in columns)
    scores = np.random.default_rng(0).normal(scale=3.0, size=(2, 50, width))
    wanted = sum(predict(declaration, stats, s) for s in scores) / 2
    off = np.abs(predict(declaration, stats, scores.mean(axis=0)) - wanted).max()
    assert (off < 1e-12) == (task == "regression")


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
