"""Losses with options and over several labels: torch's functional forms on the known labels, and
nothing else.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from schemas.config import Declaration
from schemas.load import declare
from schemas.records import LabelStats, Statistics
from training.models.shape import model_shape, prior_scores
from training.objectives.label_losses import MultilabelLoss, MultitaskLoss
from training.objectives.losses import Loss, make_loss

EXACT = {"rtol": 1e-12, "atol": 1e-12}
CLASSES = {"binary": (0, 1), "multiclass": (1, 2, 3), "regression": ()}


def problem(
    task: dict[str, Any], kinds: dict[str, str], label: Tensor, **loss: Any
) -> tuple[Declaration, Statistics]:
    """A declaration of labels of these kinds, and statistics of exactly these label rows [N, L]."""
    columns = dict.fromkeys(kinds, "label") | {"*": "feature"}
    declaration = declare(
        {
            "name": "t",
            "data": {"uri": "x.csv", "columns": columns},
            "task": task,
            "split": {"kind": "random"},
            "loss": loss,
        }
    )
    labels = []
    for i, (name, kind) in enumerate(kinds.items()):
        values = label[~label[:, i].isnan(), i]
        counts = (
            tuple(torch.bincount(values.long(), minlength=len(CLASSES[kind])).tolist())
            if CLASSES[kind]
            else ()
        )
        weights = (
            tuple(sum(counts) / (len(counts) * c) for c in counts)
            if loss.get("class_weights") == "balanced"
            else (1.0,) * len(counts)
        )
        mass = sum(c * w for c, w in zip(counts, weights, strict=True)) if counts else len(values)
        facts = {"classes": CLASSES[kind], "class_counts": counts, "class_weights": weights}
        labels.append(
            LabelStats(name=name, kind=kind, known=len(values), share=mass / len(label), **facts)
        )
    return declaration, Statistics(
        train_sha256="",
        rows=len(label),
        numeric=(),
        categorical=(),
        tensor=(),
        labels=tuple(labels),
    )


def labels_of(kinds: dict[str, str], rows: int = 60, seed: int = 0, missing: float = 0.4) -> Tensor:
    """Labels float64 [N, L] of the kinds, some of them unknown; every class of a label is there."""
    rng = np.random.default_rng(seed)
    columns = [
        np.arange(rows) % len(CLASSES[k]) if CLASSES[k] else rng.normal(size=rows)
        for k in kinds.values()
    ]
    label = np.stack([rng.permutation(c).astype(float) for c in columns], axis=1)
    unknown = rng.random(label.shape) < missing
    unknown[:6] = False
    label[unknown] = np.nan
    label[:6] = [
        [i % len(CLASSES[k]) if CLASSES[k] else i / 3 for k in kinds.values()] for i in range(6)
    ]
    return torch.from_numpy(label)


def scores_of(kinds: dict[str, str], rows: int = 60, seed: int = 1) -> Tensor:
    width = sum(3 if k == "multiclass" else 1 for k in kinds.values())
    return (
        torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * 2
    )


THREE = {"a": "binary", "b": "binary", "c": "binary"}
MIXED = {"a": "binary", "b": "multiclass", "c": "regression"}
LABELS = {
    "a": {"kind": "binary", "weight": 2},
    "b": {"kind": "multiclass", "weight": 0.5},
    "c": "regression",
}


def multilabel(label: Tensor, **loss: Any) -> Loss:
    return make_loss(*problem({"kind": "multilabel"}, THREE, label, **loss)).double()


def multitask(label: Tensor, labels: dict[str, Any] | None = None, **loss: Any) -> Loss:
    return make_loss(
        *problem({"kind": "multitask", "labels": labels or LABELS}, MIXED, label, **loss)
    ).double()


# ----------------------------------------------------------------------------------------
# multilabel


@pytest.mark.req("M3")
def test_multilabel_is_the_mean_over_the_known_labels_of_torch() -> None:
    label, scores = labels_of(THREE), scores_of(THREE)
    known = ~label.isnan()
    expected = F.binary_cross_entropy_with_logits(scores[known], label[known])
    torch.testing.assert_close(multilabel(label)(scores, label), expected, **EXACT)
    mask = (
        F.binary_cross_entropy_with_logits(
            scores, label.nan_to_num(), weight=known.double(), reduction="sum"
        )
        / known.sum()
    )
    torch.testing.assert_close(multilabel(label)(scores, label), mask, **EXACT)


@pytest.mark.req("M3")
@pytest.mark.parametrize("declared", [3.0, "balanced"])
def test_pos_weight_of_every_label_is_that_of_torch(declared: Any) -> None:
    label, scores = labels_of(THREE, seed=3), scores_of(THREE)
    known = ~label.isnan()
    positives, total = (label == 1).sum(0).double(), known.sum(0).double()
    weight = (
        torch.full((3,), 3.0, dtype=torch.float64)
        if declared == 3.0
        else ((total - positives) / positives).float().double()
    )
    losses = F.binary_cross_entropy_with_logits(
        scores, label.nan_to_num(), pos_weight=weight, reduction="none"
    )
    torch.testing.assert_close(
        multilabel(label, pos_weight=declared)(scores, label), losses[known].mean(), **EXACT
    )


@pytest.mark.req("M3")
def test_weights_of_labels_and_rows_weigh_each_known_label() -> None:
    label, scores = labels_of(THREE), scores_of(THREE)
    task = {"kind": "multilabel", "labels": {"b": {"weight": 4}, "c": {"pos_weight": 2}}}
    rows = torch.rand(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    loss = make_loss(*problem(task, THREE, label)).double()
    losses = F.binary_cross_entropy_with_logits(
        scores,
        label.nan_to_num(),
        pos_weight=torch.tensor([1.0, 1.0, 2.0]).double(),
        reduction="none",
    )
    weights = torch.tensor([1.0, 4.0, 1.0]) * rows[:, None] * ~label.isnan()
    torch.testing.assert_close(
        loss(scores, label, rows), (losses * weights).sum() / weights.sum(), **EXACT
    )


# -----------------------------------------------------------------------------------------
# multitask


@pytest.mark.req("M3")
def test_multitask_is_the_weighted_sum_of_torchs_means_over_the_known_rows() -> None:
    label, scores = labels_of(MIXED), scores_of(MIXED)
    a, b, c = (~label.isnan()).unbind(1)
    coded = label[:, 1].nan_to_num(-100).long()  # what torch calls ignore_index
    expected = (
        2 * F.binary_cross_entropy_with_logits(scores[a, 0], label[a, 0])
        + 0.5 * F.cross_entropy(scores[:, 1:4], coded, label_smoothing=0.1, ignore_index=-100)
        + F.huber_loss(scores[c, 4], label[c, 2], delta=0.4)
    )
    labels = LABELS | {"c": {"kind": "regression", "loss": "huber"}}
    torch.testing.assert_close(
        multitask(label, labels, label_smoothing=0.1, delta=0.4)(scores, label), expected, **EXACT
    )
    assert b.sum() < len(b)


@pytest.mark.req("M3")
@pytest.mark.req("T3")
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_rows_of_the_whole_train_side_add_up_to_the_multitask_loss(weights: str) -> None:
    label, scores = labels_of(MIXED), scores_of(MIXED)
    loss = multitask(label, class_weights=weights)
    by_rows = (loss.per_row(scores, label) * loss.row_weights(label)).sum() / loss.row_weights(
        label
    ).sum()
    # class weights are held in single precision
    torch.testing.assert_close(by_rows, loss(scores, label), rtol=1e-7, atol=1e-7)


@pytest.mark.req("M3")
def test_a_window_without_any_known_label_of_a_column_has_a_finite_loss_and_gradient() -> None:
    label, scores = labels_of(MIXED), scores_of(MIXED).requires_grad_()
    window = label.clone()
    window[:, 1] = torch.nan
    for loss in (multitask(label), multilabel(labels_of(THREE))):
        width = scores.shape[1] if isinstance(loss, MultitaskLoss) else 3
        value = loss(scores[:, :width], window)
        (gradient,) = torch.autograd.grad(value, scores)
        assert torch.isfinite(value) and torch.isfinite(gradient).all()
        assert not gradient[:, 1 : 4 if isinstance(loss, MultitaskLoss) else 2].any()


# --------------------------------------------------------------------------------------------
# masking


@pytest.mark.req("M3")
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), missing=st.floats(0.0, 0.95), several=st.booleans())
def test_an_unknown_label_has_no_gradient_and_its_row_loses_nothing_else(
    seed: int, missing: float, several: bool
) -> None:
    kinds = MIXED if several else THREE
    label, scores = (
        labels_of(kinds, seed=seed, missing=missing),
        scores_of(kinds, seed=seed).requires_grad_(),
    )
    loss = multitask(label) if several else multilabel(label)
    assert isinstance(loss, MultitaskLoss if several else MultilabelLoss)
    (gradient,) = torch.autograd.grad(loss(scores, label), scores)
    for target, known in zip(loss.targets, (~label.isnan()).unbind(1), strict=True):
        own = gradient[:, target.columns]
        assert not own[~known].any() and (own[known].abs().sum(1) > 0).all()
    # scores of unknown labels may be anything
    moved = scores.detach().clone()
    for target, known in zip(loss.targets, (~label.isnan()).unbind(1), strict=True):
        moved[~known, target.columns] += 1000.0
    torch.testing.assert_close(loss(moved, label), loss(scores, label).detach(), rtol=0, atol=0)


@pytest.mark.req("T3")
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(1, 59), max_size=6, unique=True),
    several=st.booleans(),
    weighted=st.booleans(),
)
def test_parts_of_a_window_add_up_however_unevenly_labels_are_missing(
    seed: int, cuts: list[int], several: bool, weighted: bool
) -> None:
    kinds = MIXED if several else THREE
    label, scores = labels_of(kinds, seed=seed, missing=0.7), scores_of(kinds, seed=seed)
    loss = multitask(label) if several else multilabel(label)
    rows = (
        torch.rand(60, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if weighted
        else None
    )
    weights = loss.row_weights(label, rows).double()
    whole = (weights * loss.per_row(scores, label)).sum() / weights.sum()
    edges = [0, *sorted(cuts), 60]
    parts = [
        (weights[i:j] * loss.per_row(scores[i:j], label[i:j])).sum() / weights.sum()
        for i, j in pairwise(edges)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(), whole, **EXACT)
    if not several:
        torch.testing.assert_close(whole, loss(scores, label, rows), **EXACT)


# ------------------------------------------------------------------------------- one label with
# options


def single(
    kind: str, counts: tuple[int, ...], weights: tuple[float, ...] | None = None, **loss: Any
) -> tuple[Declaration, Statistics]:
    tree = {
        "name": "t",
        "data": {"uri": "x.csv", "columns": {"y": "label", "*": "feature"}},
        "task": {"kind": kind},
        "split": {"kind": "random"},
    }
    facts = {
        "classes": CLASSES[kind],
        "class_counts": counts,
        "class_weights": weights or (1.0,) * len(counts),
    }
    return declare(tree | {"loss": loss}), Statistics(
        train_sha256="", rows=sum(counts), numeric=(), categorical=(), tensor=(), **facts
    )


@pytest.mark.req("M3")
def test_binary_pos_weight_is_that_of_torch() -> None:
    label, scores = torch.tensor([0, 0, 0, 1] * 10), torch.randn(40, 1, dtype=torch.float64)
    for declared, expected in ((2.5, 2.5), ("balanced", 3.0)):
        loss = make_loss(*single("binary", (30, 10), pos_weight=declared)).double()
        reference = F.binary_cross_entropy_with_logits(
            scores[:, 0], label.double(), pos_weight=torch.tensor(expected, dtype=torch.float64)
        )
        torch.testing.assert_close(loss(scores, label), reference, **EXACT)


@pytest.mark.req("M3")
def test_declared_class_weights_are_those_of_torch() -> None:
    label, scores = torch.tensor([0, 0, 1, 2] * 10), torch.randn(40, 3, dtype=torch.float64)
    loss = make_loss(
        *single("multiclass", (20, 10, 10), (0.5, 3.0, 1.0), class_weights={"1": 0.5, "2": 3})
    ).double()
    torch.testing.assert_close(
        loss(scores, label),
        F.cross_entropy(scores, label, torch.tensor([0.5, 3.0, 1.0]).double()),
        **EXACT,
    )


OPTIONS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("binary", (30, 10), {}),
    ("binary", (30, 10), {"pos_weight": 4.0}),
    ("binary", (30, 10), {"pos_weight": "balanced"}),
    ("binary", (30, 10), {"class_weights": "balanced"}),
    ("multiclass", (20, 12, 8), {"label_smoothing": 0.2}),
    ("multiclass", (20, 12, 8), {"class_weights": {"1": 0.5, "3": 5}}),
    ("multiclass", (20, 12, 8), {"class_weights": {"1": 0.5, "3": 5}, "label_smoothing": 0.2}),
]


@pytest.mark.req("M4")
@pytest.mark.parametrize(("kind", "counts", "options"), OPTIONS)
def test_the_prior_is_the_best_constant_under_every_option_so_that_theory_is_right(
    kind: str, counts: tuple[int, ...], options: dict[str, Any]
) -> None:
    given_weights = options.get("class_weights")
    balanced = tuple(sum(counts) / (len(counts) * c) for c in counts)
    weights = (
        balanced
        if given_weights == "balanced"
        else tuple((given_weights or {}).get(str(c), 1.0) for c in CLASSES[kind])
    )
    declaration, statistics = single(kind, counts, weights, **options)
    label = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    loss = make_loss(declaration, statistics).double()
    prior = torch.tensor(
        prior_scores(declaration, statistics), dtype=torch.float64
    ).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(prior.expand(len(label), -1), label), prior)
    assert gradient.abs().max() < 1e-6


@pytest.mark.req("M4")
@pytest.mark.parametrize("several", [False, True])
def test_the_prior_of_several_labels_is_that_of_each_on_its_known_rows(several: bool) -> None:
    kinds = MIXED if several else THREE
    label = labels_of(kinds)
    label[:, -1] -= label[:, -1].nanmean() if several else 0  # a scaled label has mean 0
    task = (
        {"kind": "multitask", "labels": LABELS}
        if several
        else {"kind": "multilabel", "labels": {"a": {"pos_weight": 3}}}
    )
    declaration, statistics = problem(task, kinds, label)
    shape = model_shape(declaration, statistics)
    assert shape.outputs == (5 if several else 3)
    prior = torch.tensor(shape.prior, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(
        make_loss(declaration, statistics).double()(prior.expand(60, -1), label), prior
    )
    assert gradient.abs().max() < 1e-6
