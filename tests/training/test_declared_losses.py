"""Losses that a declaration can ask for: equal to their references, with the best constant as start
and one link for evaluation and program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn import metrics as sk
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import Declaration
from schemas.records import LabelStats, Statistics
from tests.training.cases import expected, make_case
from tests.training.toys import declare, make_toy
from training.models.shape import prior_scores
from training.objectives.constants import focal_shares, weighted_quantile
from training.objectives.link import link_of, ordered_log_probabilities
from training.objectives.losses import Loss, make_loss
from training.objectives.metrics import predict
from training.objectives.targets import targets_of
from training.serving import serving
from training.serving.export import Program, export_model
from training.serving.reference_network import reference_network

SECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "quantile": ("regression", {"kind": "quantile", "quantile": 0.9}),
    "poisson": ("regression", {"kind": "poisson"}),
    "tweedie": ("regression", {"kind": "tweedie", "power": 1.3}),
    "binary focal": ("binary", {"kind": "focal", "gamma": 1.5}),
    "focal": ("multiclass", {"kind": "focal"}),
    "ordinal": ("multiclass", {"kind": "ordinal", "order": ["a", "b", "c"]}),
}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def statistics_of(task: str, label: np.ndarray, **changes: Any) -> tuple[Declaration, Statistics]:
    """Statistics whose label has these values, as it is, and a toy's declaration."""
    toy = make_toy(task, rows=60)
    counts = (
        np.bincount(label, minlength=3 if task == "multiclass" else 2)
        if task != "regression"
        else ()
    )
    fitted = (
        {"label_mean": float(label.mean()), "target_center": 0.0, "target_scale": 1.0}
        if task == "regression"
        else {"class_counts": tuple(int(c) for c in counts)}
    )
    return toy.declaration, toy.statistics.model_copy(update=fitted | changes)


def rows(name: str, number: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels and sample weights for a loss."""
    task, _ = SECTIONS[name]
    generator = torch.Generator().manual_seed(seed)
    columns = {"focal": 3, "ordinal": 2}.get(name, 1)
    scores = 2 * torch.randn(number, columns, generator=generator, dtype=torch.float64)
    label: Tensor = torch.randint(
        0, 3 if task == "multiclass" else 2, (number,), generator=generator
    )
    if task == "regression":
        label = torch.randint(0, 6, (number,), generator=generator).double() * 0.7
    return scores, label, torch.rand(number, generator=generator, dtype=torch.float64) + 0.1


def loss_of(name: str, **more: Any) -> Loss:
    task, section = SECTIONS[name]
    toy = make_toy(task, rows=90, loss=section | more)
    return make_loss(toy.declaration, toy.statistics).double()


def reference(name: str, scores: Tensor, label: Tensor, weight: Tensor) -> float:
    """The same by scikit-learn or torch, or by the published formula."""
    w, s = weight.numpy(), scores.numpy()
    if name == "quantile":
        return sk.mean_pinball_loss(label, s[:, 0], sample_weight=w, alpha=0.9)
    if name in ("poisson", "tweedie"):
        power = 1.0 if name == "poisson" else 1.3
        mean = np.exp(s[:, 0])
        return sk.mean_tweedie_deviance(label, mean, sample_weight=w, power=power) / 2
    if name == "binary focal":
        p = torch.sigmoid(scores[:, 0])
        own = torch.where(label == 1, p, 1 - p)
        each = (1 - own) ** 1.5 * F.binary_cross_entropy(p, label.double(), reduction="none")
        return float(np.average(each, weights=w))
    if name == "focal":
        own = torch.softmax(scores, 1).gather(1, label[:, None])[:, 0]
        return float(np.average(-((1 - own) ** 2) * own.log(), weights=w))
    # by thresholds and differences of the cumulative probabilities
    above = [scores[:, 0], scores[:, 0] - F.softplus(scores[:, 1])]
    reached = torch.stack([torch.ones(len(s)), *map(torch.sigmoid, above), torch.zeros(len(s))], 1)
    own = (reached[:, :-1] - reached[:, 1:]).gather(1, label[:, None])[:, 0]
    return float(np.average(-own.log(), weights=w))


@pytest.mark.req("M3")
@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(SECTIONS)), number=st.integers(1, 30), seed=st.integers(0, 999))
def test_losses_equal_their_references(name: str, number: int, seed: int) -> None:
    scores, label, weight = rows(name, number, seed)
    found = float(loss_of(name)(scores, label, weight))
    assert found == pytest.approx(reference(name, scores, label, weight), rel=1e-9, abs=1e-12)
    if name != "quantile":
        assert (loss_of(name).per_row(scores, label) >= -1e-12).all()


@pytest.mark.req("M3")
def test_poisson_is_that_of_torch_up_to_a_constant_of_the_label() -> None:
    scores, label, _ = rows("poisson", 40, 0)
    ours = scores.clone().requires_grad_()
    theirs = scores.clone().requires_grad_()
    loss_of("poisson").per_row(ours, label).sum().backward()
    F.poisson_nll_loss(theirs[:, 0], label, reduction="sum").backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **EXACT)


@pytest.mark.req("M3")
@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    scores, label, _ = rows(name, 12, 3)
    loss = loss_of(name)
    assert torch.autograd.gradcheck(lambda s: loss.per_row(s, label), scores.requires_grad_())


@pytest.mark.req("M3")
@pytest.mark.parametrize("name", ["binary focal", "focal", "ordinal"])
def test_loss_and_gradient_are_finite_for_sure_and_wrong_scores(name: str) -> None:
    scores, label, _ = rows(name, 30, 1)
    large = (100 * scores).float().requires_grad_()
    value = loss_of(name).float().per_row(large, label)
    value.sum().backward()
    assert value.isfinite().all() and large.grad is not None and large.grad.isfinite().all()


@pytest.mark.req("M3")
@pytest.mark.parametrize("name", ["binary focal", "focal"])
def test_focal_with_gamma_0_is_cross_entropy(name: str) -> None:
    scores, label, weight = rows(name, 30, 1)
    task, _ = SECTIONS[name]
    toy = make_toy(task, rows=90)
    plain = make_loss(toy.declaration, toy.statistics).double()
    torch.testing.assert_close(
        loss_of(name, gamma=0.0)(scores, label, weight), plain(scores, label, weight), **EXACT
    )


@pytest.mark.req("T3")
@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(SECTIONS)), number=st.integers(1, 30), cut=st.integers(0, 30))
def test_parts_add_up_to_the_whole(name: str, number: int, cut: int) -> None:
    more = {"class_weights": "balanced"} if SECTIONS[name][0] != "regression" else {}
    loss, (scores, label, weight) = loss_of(name, **more), rows(name, number, 5)
    numerator = divisor = torch.zeros((), dtype=torch.float64)
    for part in (slice(0, cut), slice(cut, None)):
        weights = loss.row_weights(label[part], weight[part])
        numerator = numerator + (weights * loss.per_row(scores[part], label[part])).sum()
        divisor = divisor + weights.sum()
    torch.testing.assert_close(numerator / divisor, loss(scores, label, weight), **EXACT)


# ----------------------------------------------------------------------------- the best constant


@pytest.mark.req("M3")
@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(SECTIONS)),
    number=st.integers(4, 40),
    seed=st.integers(0, 99),
    balanced=st.booleans(),
)
def test_the_prior_has_the_least_loss_of_all_constants(
    name: str, number: int, seed: int, balanced: bool
) -> None:
    task, section = SECTIONS[name]
    _, label, _ = rows(name, number, seed)
    label[: 3 if task == "multiclass" else 2] = torch.arange(3 if task == "multiclass" else 2)
    values = label.numpy()
    changes: dict[str, Any] = {}
    if task == "regression":
        quantile = weighted_quantile(values, np.ones(number), 0.9)
        changes = {"label_quantile": quantile} if name == "quantile" else {}
    elif balanced:
        section = section | {"class_weights": "balanced"}
        counts = np.bincount(values, minlength=3 if task == "multiclass" else 2)
        changes = {"class_weights": tuple(number / (len(counts) * counts))}
    _, statistics = statistics_of(task, values, **changes)
    declaration = declare(task, loss=section)
    loss, prior = make_loss(declaration, statistics).double(), prior_scores(declaration, statistics)

    def of_constant(scores: np.ndarray) -> float:
        return float(loss(torch.tensor(np.atleast_2d(scores)).expand(number, -1), label))

    found = of_constant(np.array(prior))
    best = minimize(
        of_constant,
        np.array(prior) + 0.1,
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-13},
    )
    assert found <= best.fun + 1e-9
    rng = np.random.default_rng(seed)
    assert all(
        found <= of_constant(np.array(prior) + rng.normal(size=len(prior))) + 1e-9
        for _ in range(20)
    )


@pytest.mark.req("M3")
@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.floats(0.01, 100), min_size=2, max_size=6), gamma=st.floats(0.1, 5))
def test_focal_shares_add_up_and_keep_the_order(counts: list[float], gamma: float) -> None:
    shares = np.array(counts) / sum(counts)
    found = np.array(focal_shares(shares, gamma))
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(found[np.argsort(shares)]) >= -1e-9).all()


# ------------------------------------------------------------------------------------------ link


@pytest.mark.req("R1")
@settings(max_examples=40, deadline=None)
@given(
    scores=st.lists(st.lists(st.floats(-60, 60), min_size=3, max_size=3), min_size=1, max_size=5)
)
def test_ordered_probabilities_add_up_and_fall_above_each_class(scores: list[list[float]]) -> None:
    given_scores = torch.tensor(scores, dtype=torch.float64)
    found = ordered_log_probabilities(given_scores).exp()
    torch.testing.assert_close(found.sum(1), torch.ones(len(scores), dtype=torch.float64), **EXACT)
    assert (found >= 0).all()
    first = torch.sigmoid(given_scores[:, 0])
    torch.testing.assert_close(found[:, 1:].sum(1), first, **EXACT)


@pytest.mark.req("R1")
def test_only_losses_with_their_own_link_have_one_and_means_stay_finite() -> None:
    toy = make_toy("regression", loss={"kind": "poisson"})
    assert link_of(declare("regression"), toy.statistics) is None
    far = predict(toy.declaration, toy.statistics, np.array([[1e9], [-1e9], [0.0]]))
    assert np.isfinite(far).all() and (far > 0).all()
    assert far[2] == toy.statistics.target_scale


@pytest.mark.req("R1")
@pytest.mark.parametrize(
    ("task", "section"),
    [
        ("regression", {"kind": "poisson"}),
        ("regression", {"kind": "tweedie"}),
        ("regression", {"kind": "quantile", "quantile": 0.2}),
        ("multiclass", {"kind": "ordinal"}),
        ("binary", {"kind": "focal"}),
    ],
)
def test_the_exported_program_equals_the_network(
    tmp_path: Path, task: str, section: dict[str, Any]
) -> None:
    case = make_case(tmp_path, task, loss=section, model={"kind": "linear"})
    exported = export_model(case.run, case.weights, tmp_path / "model", case.split.val)
    assert 0 <= exported.parity < 1e-6
    spec = serving.read_spec(exported.spec.path)
    found = serving.predict(
        spec, serving.load_program(exported.program.path, spec), case.raw["test"]
    )
    wanted = expected(case, reference_network(case.run, case.weights))
    if task == "regression":
        np.testing.assert_allclose(found["prediction"], wanted, rtol=1e-9)
        assert section["kind"] == "quantile" or (wanted > 0).all()
    else:
        np.testing.assert_allclose(found[spec["probability_columns"]], wanted, atol=1e-12)


class Given(nn.Module):
    """A network whose scores are its input."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["scores"]


@pytest.mark.req("R1")
def test_the_program_links_each_of_several_labels_as_evaluation_does() -> None:
    declaration = Declaration.model_validate(
        {
            "name": "toy",
            "data": {"uri": "t.parquet", "columns": {"a": "label", "b": "label", "*": "feature"}},
            "task": {
                "kind": "multitask",
                "labels": {
                    "a": {"kind": "regression", "loss": "tweedie"},
                    "b": {"kind": "regression", "loss": "quantile"},
                },
            },
            "loss": {"quantile": 0.3, "power": 1.2},
            "split": {"kind": "random"},
        }
    )
    a = LabelStats(
        name="a", kind="regression", known=9, share=1.0, label_mean=3.0, target_scale=3.0
    )
    b = a.model_copy(update={"name": "b", "target_center": 7.0, "label_quantile": 1.0})
    toy = make_toy("regression").statistics
    statistics = toy.model_copy(update={"labels": (a, b), "numeric": (), "categorical": ()})
    assert prior_scores(declaration, statistics) == (0.0, -2.0)
    scores = torch.randn(9, 2, dtype=torch.float64)
    program = Program(Given(), statistics, "multitask", targets_of(declaration, statistics))
    found = program({"scores": scores}).numpy()
    np.testing.assert_allclose(found, predict(declaration, statistics, scores.numpy()), rtol=1e-14)
    np.testing.assert_allclose(found[:, 0], 3 * np.exp(scores[:, 0].numpy()), rtol=1e-14)
    each = [type(loss).__name__ for loss in make_loss(declaration, statistics).each]
    assert each == ["Tweedie", "Quantile"]
