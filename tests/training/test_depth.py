"""Layer-wise decay follows the model's structure: never a rate above the base, never a deeper layer
slower than a shallower one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from schemas.config import AdamWConfig
from schemas.errors import ConfigError
from tests.training.toys import KINDS, make_toy
from training.models.build import build_model
from training.optim.depth import parameter_depths
from training.optim.groups import parameter_groups

DECAY = 0.75


def factors(model: nn.Module) -> dict[str, float]:
    """Peak rate of each parameter as a share of the base rate of 1e-4."""
    config = AdamWConfig(lr=1e-4, layer_decay=DECAY)
    by_parameter = {
        p: group["peak"] / config.lr
        for group in parameter_groups(config, model)
        for p in group["params"]
    }
    return {name: by_parameter[p] for name, p in model.named_parameters()}


class Attention(nn.Module):
    """A block with chains of its own inside, and two leaf parameters before its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.mix = nn.MultiheadAttention(4, 2)
        self.feed = nn.Sequential(
            nn.Linear(4, 8),
            nn.GELU(),
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
            nn.Linear(8, 4),
        )
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))


class Encoder(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)  # registered before the blocks, used after them
        self.blocks = nn.ModuleList(Attention() for _ in range(depth))


class Nested(nn.Module):
    """Embeddings and head around an encoder that is itself nested."""

    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 4), nn.Embedding(5, 4)
        self.encoder = Encoder(depth)
        self.last = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)


class Explicit(Nested):
    def ordered_layers(self) -> list[Any]:
        return [
            (self.words, self.places),
            *self.encoder.blocks,
            (self.encoder.norm, self.last, self.head),
        ]


@pytest.mark.req("T6")
def test_nested_blocks_are_counted_as_blocks_and_no_rate_exceeds_the_base() -> None:
    found = factors(Explicit())
    assert max(found.values()) == 1.0
    for name, factor in found.items():
        parts = name.split(".")
        layers_above = (
            12 - int(parts[2])
            if parts[1] == "blocks"
            else 13
            if parts[0] in ("words", "places")
            else 0
        )
        assert factor == pytest.approx(DECAY**layers_above, rel=1e-12), name
    assert min(found.values()) == pytest.approx(DECAY**13)


@pytest.mark.req("T6")
def test_without_a_declared_order_the_structure_gives_the_same_or_nothing() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"Nested does not say how deep 2 of \d+ parameters lie \(encoder.norm.weight,"
            r" encoder.norm.bias\).*ordered_layers\(\)"
        ),
    ):
        factors(Nested())
    plain, told = Nested(), Explicit()
    plain.encoder.norm = nn.Identity()
    told.encoder.norm = nn.Identity()
    assert factors(plain) == factors(told)


@pytest.mark.req("T6")
def test_a_weight_tied_to_the_input_has_the_inputs_rate() -> None:
    model = Explicit(3)
    model.head = nn.Linear(4, 9, bias=False)
    model.head.weight = model.words.weight
    assert factors(model)["words.weight"] == pytest.approx(DECAY**4)


@pytest.mark.req("T6")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda: nn.ModuleDict({"hidden": nn.Linear(2, 2), "head": nn.Linear(2, 1)}),
            r"4 of 4 parameters lie \(hidden.weight",
        ),
        (
            lambda: nn.ModuleDict(
                {
                    "embed": nn.Linear(2, 2),
                    "blocks": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
                }
            ),
            r"2 of 6 .*\(embed.weight, embed.bias\)",
        ),
        (
            lambda: nn.ModuleDict(
                {
                    side: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
                    for side in ("left", "right")
                }
            ),
            r"8 of 8 .*left.0.weight",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 2)), r"2 of 2"),
        (lambda: nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)), "has a single layer"),
    ],
    ids=["no chain", "input next to the chain", "two chains", "one entry", "one matrix"],
)
def test_what_cannot_be_known_is_refused_with_names(body: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        factors(body())


@pytest.mark.req("T6")
def test_norms_belong_to_their_neighbour_and_blocks_in_blocks_are_counted() -> None:
    stage = lambda: nn.Sequential(nn.Conv2d(1, 1, 3), nn.GroupNorm(1, 1), nn.GELU())  # noqa: E731
    model = nn.Sequential(
        nn.LayerNorm(3),
        stage(),
        nn.Sequential(stage(), stage()),
        nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)),
    )
    depths = {
        name: depth
        for p, depth in parameter_depths(model).items()
        for name, q in model.named_parameters()
        if p is q
    }
    assert {name.rpartition(".")[0]: depth for name, depth in depths.items()} == {
        "0": 0,
        "1.0": 0,
        "1.1": 0,
        "2.0.0": 1,
        "2.0.1": 1,
        "2.1.0": 2,
        "2.1.1": 2,
        "3.0": 3,
        "3.1": 3,
    }


@pytest.mark.req("T6")
@pytest.mark.parametrize("kind", KINDS)
def test_built_in_models_say_their_order(kind: str) -> None:
    toy = make_toy("multiclass", {"kind": kind})
    model = build_model(toy.declaration, toy.statistics)
    if kind == "linear":
        with pytest.raises(ConfigError, match="Linear has a single layer"):
            factors(model)
        return
    found = factors(model)
    assert found["body.head.weight"] == 1.0
    assert all(found[name] == min(found.values()) < 1 for name in found if "categories" in name)


# ---------------------------------------------------------------------------------- random
# structures

LEAVES = st.sampled_from(
    [
        lambda: nn.Linear(2, 2),
        lambda: nn.LayerNorm(2),
        lambda: nn.Embedding(3, 2),
        lambda: nn.GELU(),
        lambda: nn.Conv1d(1, 1, 1),
    ]
)


class Wrapped(nn.Module):
    """Children as attributes, in order, and a free parameter."""

    def __init__(self, children: list[nn.Module]) -> None:
        super().__init__()
        self.free = nn.Parameter(torch.ones(2, 2))
        for i, child in enumerate(children):
            self.add_module(f"part{i}", child)


class Ordered(nn.Module):
    """Says its order itself."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def ordered_layers(self) -> list[nn.Module]:
        return list(self.layers)


def trees(compound: list[Any]) -> st.SearchStrategy[Any]:
    """Builders of random modules: leaves, and compounds of builders."""

    def nest(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.tuples(st.sampled_from(compound), st.lists(children, min_size=1, max_size=4)).map(
            lambda t: lambda: t[0]([make() for make in t[1]])
        )

    return st.recursive(LEAVES, nest, max_leaves=14)


def sequential(children: list[nn.Module]) -> nn.Module:
    return nn.Sequential(*children)


@pytest.mark.req("T6")
@given(trees([sequential, nn.ModuleList, Wrapped]))
@settings(max_examples=150, deadline=None)
def test_any_structure_is_refused_or_every_parameter_has_one_group_and_a_factor_of_at_most_one(
    make: Any,
) -> None:
    model = nn.Sequential(make(), nn.Linear(1, 1))
    everything = list(model.parameters())
    grouped = [p for group in parameter_groups(AdamWConfig(), model) for p in group["params"]]
    assert len(grouped) == len(everything) and set(grouped) == set(everything)
    try:
        found = factors(model)
    except ConfigError as error:
        assert "parameters lie (" in str(error) or "single layer" in str(error)
        return
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert all(0 < factor <= 1 for factor in found.values())
    assert max(found.values()) == 1.0


@pytest.mark.req("T6")
@given(trees([sequential]))
@settings(max_examples=100, deadline=None)
def test_in_a_nest_of_sequences_rates_never_fall_from_input_to_output(make: Any) -> None:
    model = nn.Sequential(nn.Linear(1, 1), make(), nn.Linear(1, 1))
    # parameters of a sequence are registered in the order of computation
    found = list(factors(model).values())
    assert found == sorted(found)
    assert found[-1] == 1.0


@pytest.mark.req("T6")
@given(st.lists(trees([sequential, Wrapped]), min_size=2, max_size=6))
@settings(max_examples=100, deadline=None)
def test_in_a_declared_order_each_layer_has_one_factor_and_they_rise(makers: list[Any]) -> None:
    ordered = Ordered([make() for make in makers])
    of_layer = [list(layer.parameters()) for layer in ordered.layers]
    if sum(bool(parameters) for parameters in of_layer) < 2:
        return
    config = AdamWConfig(lr=1e-4, layer_decay=DECAY)
    peak = {
        p: group["peak"] for group in parameter_groups(config, ordered) for p in group["params"]
    }
    rates = [{peak[p] for p in parameters} for parameters in of_layer if parameters]
    assert all(len(found) == 1 for found in rates)
    flat = [rate for found in rates for rate in found]
    assert flat == sorted(flat) and len(set(flat)) == len(flat)
    assert flat[-1] == config.lr
