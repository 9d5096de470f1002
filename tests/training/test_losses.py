"""Losses equal torch's functional forms, in one piece and in parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.training.toys import make_toy
from training.objectives.losses import Loss, make_loss

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def loss_of(task: str, **section: Any) -> Loss:
    toy = make_toy(task, rows=90, loss=section)
    return make_loss(toy.declaration, toy.statistics).double()


def rows(task: str, number: int = 40, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, labels and sample weights."""
    generator = torch.Generator().manual_seed(seed)
    scores = (
        torch.randn(
            number, 3 if task == "multiclass" else 1, generator=generator, dtype=torch.float64
        )
        * 3
    )
    label = torch.randn(number, generator=generator, dtype=torch.float64)
    if task != "regression":
        label = torch.randint(
            0, scores.shape[1] if task == "multiclass" else 2, (number,), generator=generator
        )
    return scores, label, torch.rand(number, generator=generator, dtype=torch.float64) + 0.1


@pytest.mark.req("M3")
@pytest.mark.parametrize("weights", ["none", "balanced"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_that_of_torch(weights: str, smoothing: float) -> None:
    loss = loss_of("multiclass", class_weights=weights, label_smoothing=smoothing)
    scores, label, _ = rows("multiclass")
    expected = F.cross_entropy(scores, label, loss.class_weights, label_smoothing=smoothing)
    torch.testing.assert_close(loss(scores, label), expected, **EXACT)
    single = F.cross_entropy(
        scores.float(),
        label,
        None if loss.class_weights is None else loss.class_weights.float(),
        label_smoothing=smoothing,
    )
    assert float(loss.float()(scores.float(), label)) == pytest.approx(float(single), rel=3e-7)


@pytest.mark.req("M3")
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_binary_cross_entropy_is_that_of_torch(weights: str) -> None:
    loss = loss_of("binary", class_weights=weights)
    scores, label, _ = rows("binary")
    rows_weight = (
        torch.ones(40, dtype=torch.float64)
        if loss.class_weights is None
        else loss.class_weights[label]
    )
    parts = F.binary_cross_entropy_with_logits(
        scores[:, 0], label.double(), weight=rows_weight, reduction="sum"
    )
    torch.testing.assert_close(loss(scores, label), parts / rows_weight.sum(), **EXACT)


@pytest.mark.req("M3")
def test_balanced_binary_weights_are_a_pos_weight_up_to_scale() -> None:
    loss = loss_of("binary", class_weights="balanced")
    scores, label, _ = rows("binary")
    negative, positive = loss.class_weights.tolist()
    expected = F.binary_cross_entropy_with_logits(
        scores[:, 0],
        label.double(),
        pos_weight=torch.tensor(positive / negative, dtype=torch.float64),
        reduction="sum",
    )
    weights = loss.row_weights(label)
    torch.testing.assert_close(
        (weights * loss.per_row(scores, label)).sum() / negative, expected, **EXACT
    )


@pytest.mark.req("M3")
@pytest.mark.parametrize(
    ("section", "reference"),
    [
        ({"kind": "mse"}, F.mse_loss),
        ({"kind": "mae"}, F.l1_loss),
        ({"kind": "huber", "delta": 0.4}, lambda s, y: F.huber_loss(s, y, delta=0.4)),
        ({}, F.mse_loss),
    ],
)
def test_regression_losses_are_those_of_torch(section: dict[str, Any], reference: Any) -> None:
    scores, label, _ = rows("regression")
    torch.testing.assert_close(
        loss_of("regression", **section)(scores, label), reference(scores[:, 0], label), **EXACT
    )


@pytest.mark.req("T3")
@settings(max_examples=30, deadline=None)
@given(
    task=st.sampled_from(["binary", "multiclass", "regression"]),
    number=st.integers(1, 30),
    cut=st.integers(0, 30),
    weighted=st.booleans(),
    balanced=st.booleans(),
)
def test_parts_add_up_to_the_whole(
    task: str, number: int, cut: int, weighted: bool, balanced: bool
) -> None:
    section = {"class_weights": "balanced" if balanced else "none"} if task != "regression" else {}
    loss, (scores, label, weight) = loss_of(task, **section), rows(task, number)
    given_weight = weight if weighted else None
    whole = loss(scores, label, given_weight)
    numerator = divisor = torch.zeros((), dtype=torch.float64)
    for part in (slice(0, cut), slice(cut, None)):
        weights = loss.row_weights(
            label[part], None if given_weight is None else given_weight[part]
        )
        numerator = numerator + (weights * loss.per_row(scores[part], label[part])).sum()
        divisor = divisor + weights.sum()
    torch.testing.assert_close(numerator / divisor, whole, **EXACT)


@pytest.mark.req("M3")
def test_row_weights_multiply_class_and_sample_weight() -> None:
    loss = loss_of("multiclass", class_weights="balanced")
    _, label, weight = rows("multiclass")
    torch.testing.assert_close(
        loss.row_weights(label, weight), loss.class_weights[label] * weight, **EXACT
    )
    assert torch.equal(loss_of("regression").row_weights(torch.zeros(4)), torch.ones(4))
