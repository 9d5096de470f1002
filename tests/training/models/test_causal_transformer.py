"""The causal transformer: sees what it may, nothing else, and starts where it should."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schemas.config import CausalTransformerModel
from schemas.errors import ConfigError
from schemas.load import declare
from schemas.records import TokenStats
from tests.training.corpora import SMALL, make_corpus
from training.models.attention import rotation, turned
from training.models.build import build_model
from training.models.causal_transformer import CausalTransformer, may_see, positions_of
from training.models.shape import token_shape
from training.models.token_network import TokenNetwork
from training.objectives.losses import TokenCrossEntropy
from training.optim.optimizer import make_optimizer
from training.preflight.subject import without_dropout

VOCABULARY, CONTEXT = 11, 24
STATS = TokenStats(
    name="t",
    tokenizer="character",
    values=tuple("abcdefg"),
    counts=(1,) * 7,
    context=CONTEXT,
    stride=12,
    packing="documents",
)
POSITIONS = ("rotary", "learned")


def network(packed: bool = True, seed: int = 0, noise: float = 0.3, **config: Any) -> TokenNetwork:
    """A network in float64 with weights far from their start."""
    torch.manual_seed(seed)
    shape = token_shape(STATS)
    made = TokenNetwork(
        shape, CausalTransformer(shape, CausalTransformerModel(**{**SMALL, **config}), packed)
    ).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += noise * torch.randn_like(parameter)
    return made.eval()


def documents(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCABULARY, (n,), generator=generator) for n in lengths]


def packed_batch(parts: list[Tensor]) -> dict[str, Tensor]:
    tokens = torch.cat([*parts, torch.zeros(CONTEXT - sum(map(len, parts)), dtype=torch.int64)])
    segments = torch.cat(
        [torch.full((len(p),), i + 1) for i, p in enumerate(parts)]
        + [torch.zeros(CONTEXT - sum(map(len, parts)), dtype=torch.int64)]
    )
    return {"tokens": tokens[None], "segments": segments[None]}


def alone(part: Tensor) -> dict[str, Tensor]:
    return {"tokens": part[None], "segments": torch.ones(1, len(part), dtype=torch.int64)}


@pytest.mark.req("M1")
@pytest.mark.parametrize("positions", POSITIONS)
def test_packed_documents_have_the_logits_they_have_alone(positions: str) -> None:
    made, parts = network(positions=positions), documents(7, 1, 10, 4)
    together = made(packed_batch(parts))[0].split([*map(len, parts), CONTEXT - 22])
    for part, logits in zip(parts, together, strict=False):
        torch.testing.assert_close(logits, made(alone(part))[0], rtol=0, atol=1e-12)


@pytest.mark.req("M1")
@pytest.mark.parametrize("positions", POSITIONS)
def test_one_document_a_row_needs_no_mask(positions: str) -> None:
    """The path that flash kernels serve gives the masked one's logits, whatever stands in the
    padding behind.
    """
    plain, masked, part = (
        network(packed=False, positions=positions),
        network(packed=True, positions=positions),
        documents(15)[0],
    )
    batch = packed_batch([part])
    expected = masked(batch)[0, :15]
    torch.testing.assert_close(plain(batch)[0, :15], expected, rtol=0, atol=1e-12)
    batch["tokens"][0, 15:] = 5
    torch.testing.assert_close(plain(batch)[0, :15], expected, rtol=0, atol=1e-12)


@pytest.mark.req("M1")
@pytest.mark.parametrize("packed", [True, False])
def test_no_logit_moves_when_a_later_token_does(packed: bool) -> None:
    made, part = network(packed=packed), documents(CONTEXT)[0]
    before = made(alone(part))
    for place in range(CONTEXT):
        changed = part.clone()
        changed[place] = 4 + (changed[place] - 3) % (VOCABULARY - 4)
        moved = (made(alone(changed)) - before).abs().amax(2)[0]
        assert not moved[:place].any() and bool((moved[place:] > 0).all())


def test_the_mask_allows_the_past_of_the_own_document_and_nothing_else() -> None:
    segments = torch.tensor([[1, 1, 2, 2, 2, 0]])
    expected = [[i >= j and segments[0, i] == segments[0, j] for j in range(6)] for i in range(6)]
    assert may_see(segments)[0, 0].tolist() == [[bool(v) for v in row] for row in expected]
    assert positions_of(torch.tensor([[3, 3, 1, 0, 0, 2], [0, 0, 0, 0, 0, 0]])).tolist() == [
        [0, 1, 0, 0, 1, 0],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.req("M1")
def test_attention_with_turned_pairs_knows_distances_alone() -> None:
    """Scores of queries and keys do not move when all positions do, and do when one does."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, 2, 6, 8, dtype=torch.float64) for _ in range(2))

    def scores(positions: Tensor) -> Tensor:
        turns = rotation(positions[None], 8, torch.float64)
        return turned(query, turns) @ turned(key, turns).transpose(2, 3)

    places = torch.arange(6)
    torch.testing.assert_close(scores(places + 100), scores(places), rtol=0, atol=1e-12)
    assert (scores(places * 2) - scores(places)).abs().max() > 0.1
    torch.testing.assert_close(turned(query, rotation(places[None] * 0, 8, torch.float64)), query)


@pytest.mark.req("M2")
@pytest.mark.parametrize("tied", [True, False])
def test_the_first_loss_is_near_that_of_knowing_nothing(tied: bool) -> None:
    made = network(noise=0.0, tied=tied, width=64, dropout=0.2)
    batch = {
        "tokens": torch.randint(0, VOCABULARY, (32, CONTEXT)),
        "segments": torch.ones(32, CONTEXT, dtype=torch.int64),
    }
    found = TokenCrossEntropy()(made(batch), torch.randint(2, VOCABULARY, (32, CONTEXT))).item()
    assert abs(found - math.log(VOCABULARY)) < 0.1
    residual = [module for module in made.modules() if isinstance(module, nn.Linear)]
    assert all(not layer.bias.any() for layer in residual if layer.bias is not None)


@pytest.mark.req("T6")
def test_a_tied_matrix_is_one_parameter_without_decay(tmp_path: Path) -> None:
    """Under one name in the state dict, in one optimizer group, with the gradient of both uses."""
    corpus = make_corpus(tmp_path, model={**SMALL, "positions": "learned"})
    made = build_model(corpus.declaration, corpus.run.statistics)
    names = dict(made.named_parameters())
    assert "body.head.weight" not in made.state_dict() and set(made.state_dict()) == set(names)
    groups = make_optimizer(corpus.declaration.optimizer, made).param_groups
    undecayed = {p for group in groups if not group["weight_decay"] for p in group["params"]}
    assert {names["body.embedding.weight"], names["body.position.weight"]} <= undecayed
    assert names["body.blocks.0.attention.project.weight"] not in undecayed
    assert sum(len(g["params"]) for g in groups) == len(names)
    untied = build_model(
        declare(
            corpus.declaration.model_dump(mode="json", by_alias=True)
            | {"model": {**SMALL, "tied": False}}
        ),
        corpus.run.statistics,
    )
    assert (
        sum(p.numel() for p in untied.parameters())
        == sum(p.numel() for p in made.parameters())
        + names["body.embedding.weight"].numel()
        - 32 * 16
    )
    found = copy.deepcopy(made).load_state_dict(made.state_dict())
    assert not found.missing_keys and not found.unexpected_keys


def test_dropout_is_off_in_eval_mode_and_found_by_who_turns_it_off() -> None:
    made, batch = network(dropout=0.5), packed_batch(documents(9, 9))
    torch.testing.assert_close(made(batch), made(batch), rtol=0, atol=0)
    made.train()
    assert (made(batch) - made(batch)).abs().max() > 0.1
    torch.testing.assert_close(without_dropout(made)(batch), made.eval()(batch))


def test_a_batch_or_an_outcome_that_breaks_the_contract_is_refused() -> None:
    made, batch = network(), packed_batch(documents(9))
    with pytest.raises(ConfigError, match=r"expects the batch keys \['segments', 'tokens'\]"):
        made({**batch, "label": batch["tokens"]})
    with pytest.raises(ConfigError, match="at most 24"):
        made({name: value.repeat(1, 2) for name, value in batch.items()})
    made.body.forward = lambda given: torch.zeros(*given["tokens"].shape, 3)
    with pytest.raises(ConfigError, match=r"raw logits \[B, T, 11\]"):
        made(batch)


def test_widths_that_heads_cannot_share_are_refused() -> None:
    for config, message in (
        ({"width": 10, "heads": 4}, "cannot be shared by 4 heads"),
        ({"width": 9, "heads": 3}, "is odd"),
    ):
        with pytest.raises(ValueError, match=message):
            CausalTransformerModel(**config)
    assert CausalTransformerModel(width=9, heads=3, positions="learned").width == 9
