"""FT-Transformer: each column is its own token, unknown categories add nothing, dropout is in
modules alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional as F

from schemas.config import FtTransformerModel
from schemas.records import TensorStats
from tests.training.toys import Toy, make_toy
from training.models.build import Network, build_model
from training.models.ft_transformer import FeedForward, FtTransformer
from training.objectives.losses import make_loss
from training.preflight.subject import without_dropout

SMALL = {"kind": "ft_transformer", "width": 16, "heads": 2, "depth": 2}


def small(task: str = "binary", **options: Any) -> tuple[Toy, Network, FtTransformer]:
    toy = make_toy(task, SMALL | options)
    network = build_model(toy.declaration, toy.statistics)
    assert isinstance(network, Network) and isinstance(network.body, FtTransformer)
    return toy, network, network.body


@pytest.mark.req("M1")
def test_a_token_is_made_of_one_column() -> None:
    toy, _, body = small()
    batch, tokenizer = toy.batch(5)[0], body.tokens
    found = tokenizer(batch)
    assert found.shape == (5, 1 + 6 + 2, 16)
    assert torch.equal(found[:, 0], tokenizer.class_token.expand(5, 16))
    for column in range(6):
        expected = (
            batch["numeric"][:, column, None] * tokenizer.weight[column] + tokenizer.bias[column]
        )
        torch.testing.assert_close(found[:, 1 + column], expected)
    starts = (0, 5)  # both columns have five codes
    for column, start in enumerate(starts):
        expected = (
            tokenizer.categories.weight[start + batch["categorical"][:, column]]
            + tokenizer.bias[6 + column]
        )
        torch.testing.assert_close(found[:, 7 + column], expected)


@pytest.mark.req("M1")
def test_a_tensor_is_one_token() -> None:
    toy = make_toy("multiclass", SMALL)
    tensor = TensorStats(
        name="picture", shape=(3, 4, 2), dtype="float32", mean=(0.0,) * 3, std=(1.0,) * 3
    )
    model = build_model(
        toy.declaration, toy.statistics.model_copy(update={"tensor": (tensor,)})
    ).eval()
    batch = {
        **toy.batch(5)[0],
        "tensor_picture": torch.from_numpy(
            np.random.default_rng(0).normal(size=(5, 3, 4, 2)).astype(np.float32)
        ),
    }
    tokens = model.body.tokens(batch)
    torch.testing.assert_close(
        tokens[:, -1], model.body.tokens.tensors[0](batch["tensor_picture"].flatten(1))
    )
    assert tokens.shape[1] == 1 + 6 + 2 + 1
    only = build_model(
        toy.declaration,
        toy.statistics.model_copy(update={"tensor": (tensor,), "numeric": (), "categorical": ()}),
    )
    assert only({"tensor_picture": batch["tensor_picture"]}).shape == (5, 3)
    assert model(batch).shape == (5, 3)


@pytest.mark.req("M1")
def test_embeddings_of_codes_that_train_never_had_are_zero_and_stay_so() -> None:
    toy, network, body = small()
    batch, label = toy.batch(200)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        make_loss(toy.declaration, toy.statistics)(network(batch), label).backward()
        optimizer.step()
    weight = body.tokens.categories.weight
    assert [row for row in range(10) if not weight[row].any()] == [
        0,
        1,
        5,
    ], "unknown and null of the first column, unknown of the second"


@pytest.mark.req("M4")
def test_every_dropout_is_a_module_that_can_be_turned_off() -> None:
    toy, network, _ = small(attention_dropout=0.5, dropout=0.5, residual_dropout=0.5)
    batch = toy.batch(8)[0]
    exact = network.eval()(batch)
    assert not torch.equal(network.train()(batch), exact)
    assert torch.equal(without_dropout(network)(batch), exact)


@pytest.mark.req("M1")
@pytest.mark.parametrize(("activation", "function"), [("reglu", F.relu), ("geglu", F.gelu)])
def test_the_feed_forward_part_is_gated(activation: Any, function: Any) -> None:
    part, x = (
        FeedForward(
            FtTransformerModel(width=6, heads=2, expansion=1.5, activation=activation)
        ).eval(),
        torch.randn(2, 3, 6),
    )
    value, gate = (
        x @ part.expand.weight[:9].T + part.expand.bias[:9],
        x @ part.expand.weight[9:].T + part.expand.bias[9:],
    )
    torch.testing.assert_close(
        part(x), (value * function(gate)) @ part.contract.weight.T + part.contract.bias
    )


@pytest.mark.req("M1")
@pytest.mark.parametrize("depth", [1, 3])
def test_the_last_block_computes_the_token_that_is_read_and_no_other(depth: int) -> None:
    toy, network, body = small(depth=depth)
    network.double().eval()
    batch = {
        name: t.double() if t.is_floating_point() else t for name, t in toy.batch(5)[0].items()
    }
    found = network(batch)
    assert body.blocks(body.tokens(batch)).shape == (5, 1, 16) and [
        block.last for block in body.blocks
    ] == [False] * (depth - 1) + [True]
    body.blocks[-1].last = False
    assert body.blocks(body.tokens(batch)).shape == (5, 9, 16)
    torch.testing.assert_close(network(batch), found)


@pytest.mark.req("M2")
@pytest.mark.parametrize("depth", [1, 3, 12])
def test_activations_keep_their_scale_over_any_depth(depth: int) -> None:
    toy, network, body = small(width=64, heads=4, depth=depth)
    network.eval()
    tokens = body.tokens(toy.batch(200)[0])
    with torch.no_grad():
        ratio = float(body.blocks(tokens).square().mean() / tokens.square().mean())
    assert 0.5 < ratio < 50
    assert isinstance(body.blocks[0].attention_norm, nn.Identity)


@pytest.mark.req("P1")
def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValidationError, match="width 100 is not a multiple of heads 8"):
        FtTransformerModel(width=100)
