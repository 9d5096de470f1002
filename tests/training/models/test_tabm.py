"""TabM: members share matrices, each is an MLP of its own, and their probabilities are averaged."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from schemas.config import AdamWConfig
from schemas.errors import ConfigError
from tests.training.toys import CLASSES, Toy, make_toy
from training.models.build import Network, build_model
from training.models.members import MemberMean, member_mean
from training.models.numeric_embeddings import PiecewiseLinearEmbedding
from training.models.shape import model_shape
from training.models.tabm import MemberLinear, TabM
from training.objectives.losses import make_loss
from training.optim.groups import parameter_groups

SMALL: dict[str, Any] = {"kind": "tabm", "width": 12, "members": 4, "embedding_size": 3}
BINS = ((-1.0, 0.0, 0.5, 2.0), (-2.0, 3.0), (0.0, 0.1, 0.2, 0.3), (-1.0, 0.0, 1.0), (-3.0, 3.0))


def small(task: str = "binary", **options: Any) -> tuple[Toy, Network, TabM]:
    """Return the toy, and a network whose five numeric columns have bins."""
    toy = make_toy(task, SMALL | options)
    shape = replace(model_shape(toy.declaration, toy.statistics), bins=BINS)
    torch.manual_seed(0)
    body = TabM(shape, toy.declaration.model)
    join = member_mean(toy.declaration, toy.statistics)
    return toy, Network(shape, toy.statistics, body, join=join), body


def alone(body: TabM, member: int) -> TabM:
    """Return the member as a TabM of one."""
    one = copy.deepcopy(body)
    one.members = 1
    for module in one.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if name in ("r", "s", "member_bias") or module is one.head:
                setattr(module, name, nn.Parameter(p.detach()[member : member + 1].clone()))
    return one


@pytest.mark.req("M1")
def test_bins_are_filled_one_after_another_and_stay_linear_beyond_the_edges() -> None:
    layer = PiecewiseLinearEmbedding(BINS, 3)
    values = np.linspace(-4, 4, 41, dtype=np.float32)
    found = layer.encode(torch.from_numpy(values)[:, None].expand(-1, len(BINS))).numpy()
    for i, edges in enumerate(BINS):
        count = len(edges) - 1
        for t in range(count):
            expected = (values - edges[t]) / (edges[t + 1] - edges[t])
            expected = expected if t == 0 else np.maximum(expected, 0)
            expected = expected if t == count - 1 else np.minimum(expected, 1)
            np.testing.assert_allclose(found[:, i, t], expected, atol=1e-5)
        assert not found[:, i, count:].any()
    x = torch.randn(6, len(BINS))
    linear = (x[:, :, None] * layer.slope + layer.offset).flatten(1)
    torch.testing.assert_close(layer(x), linear), "it starts linear"
    nn.init.normal_(layer.pieces)
    pieces = torch.einsum("bdt,dte->bde", layer.encode(x), layer.pieces).flatten(1)
    torch.testing.assert_close(layer(x), linear + pieces)


@pytest.mark.req("M1")
@pytest.mark.parametrize("edges", [(), (1.0,), (0.0, 0.0), (0.0, 2.0, 1.0)])
def test_edges_that_do_not_rise_are_refused(edges: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"rising edges.*column 1; set model.bins to null"):
        PiecewiseLinearEmbedding(((0.0, 1.0), edges), 3)


@pytest.mark.req("M1")
def test_a_shared_layer_is_a_linear_layer_with_factors_of_each_member() -> None:
    torch.manual_seed(0)
    layer, x = MemberLinear(3, 5, 2), torch.randn(7, 3, 5)
    (
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.member_bias[0])),
        "as it starts, one layer for all",
    )
    for p in (layer.r, layer.s, layer.member_bias):
        nn.init.normal_(p)
    for m in range(3):
        weight = layer.s[m][:, None] * layer.weight * layer.r[m]
        torch.testing.assert_close(layer(x)[:, m], F.linear(x[:, m], weight, layer.member_bias[m]))


@pytest.mark.req("M1")
@pytest.mark.parametrize("bins", [48, None])
def test_a_single_member_is_a_plain_mlp(bins: int | None) -> None:
    toy, network, body = small("multiclass", members=1, bins=bins)
    batch = toy.batch(30)[0]
    assert len(body.blocks) == (3 if bins is None else 2), "depth auto"
    numbers = batch["numeric"][:, :5]
    x = torch.cat(
        [
            numbers if body.numbers is None else body.numbers(numbers),
            batch["numeric"][:, 5:],
            body.categories(batch["categorical"]),  # type: ignore[misc]
        ],
        dim=1,
    )
    for block in body.blocks:
        linear = block.linear
        x = F.relu((x * linear.r[0]) @ linear.weight.T * linear.s[0] + linear.member_bias[0])
    scores = x @ body.head.weight[0] + body.head.bias[0]
    network.eval()
    torch.testing.assert_close(network(batch), torch.log_softmax(scores, dim=1))
    if bins is None:
        assert set(body.blocks[0].linear.r.unique().tolist()) <= {-1.0, 1.0}


@pytest.mark.req("M1")
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_the_ensemble_predicts_the_mean_and_learns_the_mean_of_the_losses(task: str) -> None:
    toy, network, body = small(task, dropout=0.0)
    (batch, label), loss = toy.batch(50), make_loss(toy.declaration, toy.statistics)
    nn.init.normal_(body.head.weight)
    members = [
        Network(network.shape, toy.statistics, alone(body, m), join=copy.deepcopy(network.join))
        for m in range(4)
    ]
    scores = [member.eval()(batch) for member in members]
    joined = network.eval()(batch)
    assert joined.shape == scores[0].shape
    predicted = {
        "binary": torch.sigmoid,
        "multiclass": lambda s: s.softmax(1),
        "regression": lambda s: s,
    }[task]
    mean = torch.stack([predicted(s) for s in scores]).mean(0)
    torch.testing.assert_close(predicted(joined), mean)
    losses = torch.stack([loss.per_row(s, label) for s in scores]).mean(0)
    trained = network.train()(batch)
    assert trained.shape == (50, 4, scores[0].shape[1])
    torch.testing.assert_close(loss.row_losses(trained, label), losses)
    assert not torch.allclose(loss.per_row(joined, label), losses, atol=1e-3), (
        "not that of the mean"
    )


@pytest.mark.req("M1")
def test_labels_of_several_kinds_are_joined_each_in_its_way() -> None:
    torch.manual_seed(0)
    kinds: Any = (("binary", slice(0, 1)), ("multiclass", slice(1, 4)), ("regression", slice(4, 5)))
    scores = 40 * torch.randn(6, 3, 5)  # far out, where a probability rounds to 0 or 1
    found = MemberMean(kinds)(scores.double())
    positive = torch.sigmoid(scores[..., :1].double()).mean(1)
    negative = torch.sigmoid(-scores[..., :1].double()).mean(1)
    torch.testing.assert_close(found[:, :1], positive.log() - negative.log())
    shares = scores[..., 1:4].double().softmax(2).mean(1)
    torch.testing.assert_close(found[:, 1:4], shares.log())
    torch.testing.assert_close(found[:, 4:], scores[..., 4:].double().mean(1))


@pytest.mark.req("M1")
def test_members_differ_by_one_factor_a_column_at_first() -> None:
    _, _, body = small()
    r = body.blocks[0].linear.r.detach()
    widths = [3] * 5 + [1] + body.categories.widths  # type: ignore[union-attr]
    for part in r.split(widths, dim=1):
        assert torch.equal(part, part[:, :1].expand_as(part))
        assert part[:, 0].unique().numel() == 4
    assert torch.equal(body.blocks[1].linear.r, torch.ones_like(body.blocks[1].linear.r))


@pytest.mark.req("T6")
def test_all_but_biases_and_the_linear_part_of_the_embedding_decay() -> None:
    _, network, _ = small()
    names = {p: name for name, p in network.named_parameters()}
    decayed = {
        names[p].rpartition(".")[2]
        for group in parameter_groups(AdamWConfig(weight_decay=3e-4), network)
        for p in group["params"]
        if group["weight_decay"] == 3e-4 and group["lr"] == 1e-3
    }
    assert decayed == {"weight", "r", "s", "pieces"}


@pytest.mark.req("M1")
def test_a_body_of_members_with_other_scores_is_refused() -> None:
    toy = make_toy("binary", SMALL)
    network = build_model(toy.declaration, toy.statistics)
    network.body.members = 5
    with pytest.raises(ConfigError, match=r"\[B, 5, 1\] = \[3, 5, 1\], got \[3, 4, 1\]"):
        network(toy.batch(3)[0])
