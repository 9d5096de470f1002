"""Decay goes by module type and dimension, rules by whole paths; every parameter is in exactly one
group.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.distributed import HashStore, destroy_process_group, init_device_mesh, init_process_group
from torch.distributed.fsdp import fully_shard

from schemas.config import AdamWConfig
from schemas.errors import ConfigError, TrainingError
from training.optim.groups import parameter_groups, require_partition
from training.optim.optimizer import make_optimizer


class Zoo(nn.Module):
    """Names that deceive rules by name: `norm1` and `ln_f` without the word, `wte` an embedding,
    `bias_net` a linear layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(7, 4)
        self.norm1 = nn.LayerNorm(4)
        self.ln_f = nn.BatchNorm1d(4)
        self.bias_net = nn.Linear(4, 4)
        self.conv = nn.Conv2d(1, 2, 3)
        self.up = nn.ConvTranspose1d(2, 2, 3)
        self.group = nn.GroupNorm(1, 2)
        self.attention = nn.MultiheadAttention(4, 2)
        self.scale = nn.Parameter(torch.ones(4, 4))
        self.head = nn.Linear(4, 7, bias=False)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def names(model: nn.Module, group: str) -> set[str]:
    found = {g["name"]: g["params"] for g in parameter_groups(AdamWConfig(weight_decay=0.1), model)}
    return {
        name for name, p in model.named_parameters() if any(p is q for q in found.get(group, []))
    }


@pytest.mark.req("T6")
def test_only_weights_of_linear_and_convolution_layers_decay() -> None:
    model = Zoo()
    decayed = {
        "bias_net.weight",
        "conv.weight",
        "up.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "head.weight",
    }
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names(model, "decay") == decayed
    assert names(model, "no_decay") == trainable - decayed
    groups = parameter_groups(AdamWConfig(weight_decay=0.1), model)
    assert {g["name"]: g["weight_decay"] for g in groups} == {"decay": 0.1, "no_decay": 0.0}


@pytest.mark.req("T6")
def test_a_weight_tied_to_an_embedding_is_in_one_group_and_does_not_decay() -> None:
    model = Zoo()
    model.head.weight = model.wte.weight
    assert "wte.weight" in names(model, "no_decay")
    assert sum(
        len(g["params"]) for g in parameter_groups(AdamWConfig(weight_decay=0.1), model)
    ) == len({p for p in model.parameters() if p.requires_grad})


@pytest.mark.req("T6")
def test_a_parameter_in_two_groups_or_none_is_an_error() -> None:
    model = nn.Linear(2, 2)
    trainable = {p: name for name, p in model.named_parameters()}
    with pytest.raises(TrainingError, match=r"1 are not \(first: bias \(in 0 groups\)\)"):
        require_partition([{"params": [model.weight]}], trainable)
    with pytest.raises(TrainingError, match=r"weight \(in 2 groups\)"):
        require_partition(
            [{"params": [model.weight, model.bias]}, {"params": [model.weight]}], trainable
        )
    with pytest.raises(TrainingError, match="no trainable parameter"):
        parameter_groups(AdamWConfig(), nn.Linear(2, 2).requires_grad_(False))


# ---------------------------------------------------------------------------------------------
# rules


class Net(nn.Module):
    """`inputs` and `inputs_norm` share a beginning; `inputs.deep` is inside of `inputs`."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Sequential()
        self.inputs.add_module("first", nn.Linear(2, 2))
        self.inputs.add_module("deep", nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
        self.inputs_norm = nn.LayerNorm(2)
        self.head = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def settings_of(
    model: nn.Module, *rules: dict[str, Any], **options: Any
) -> dict[str, tuple[float, float]]:
    """Peak rate and weight decay by parameter name."""
    groups = parameter_groups(
        AdamWConfig(lr=0.01, weight_decay=0.1, modules=rules, **options), model
    )
    assert len({group["name"] for group in groups}) == len(groups)
    by_parameter = {
        p: (group["peak"], group["weight_decay"]) for group in groups for p in group["params"]
    }
    return {name: by_parameter[p] for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.req("T6")
def test_a_rule_holds_for_a_whole_path_and_the_longer_path_wins() -> None:
    found = settings_of(
        Net(),
        {"match": "inputs", "lr": 0.001},
        {"match": "inputs.deep", "weight_decay": 0.5},
        {"match": "head.bias", "lr": 0.02},
    )
    assert found == {
        "inputs.first.weight": (0.001, 0.1),
        "inputs.first.bias": (0.001, 0.0),
        "inputs.deep.0.weight": (0.01, 0.5),
        "inputs.deep.0.bias": (0.01, 0.0),
        "inputs.deep.1.weight": (0.01, 0.0),
        "inputs.deep.1.bias": (0.01, 0.0),
        "inputs_norm.weight": (0.01, 0.0),
        "inputs_norm.bias": (0.01, 0.0),
        "head.weight": (0.01, 0.1),
        "head.bias": (0.02, 0.0),
    }


@pytest.mark.req("T6")
def test_a_rules_rate_is_taken_as_it_stands_and_layer_decay_acts_on_the_rest() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    found = settings_of(
        model, {"match": "0", "lr": 0.005}, {"match": "1", "weight_decay": 0.3}, layer_decay=0.5
    )
    assert found == {"0.weight": (0.005, 0.1), "1.weight": (0.005, 0.3), "2.weight": (0.01, 0.1)}


@pytest.mark.req("T6")
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [{"match": "input", "lr": 1.0}],
            (
                r"expected the path of a module or parameter that is trained, got 'input'; the"
                r" model has inputs"
            ),
        ),
        ([{"match": "body.head", "lr": 1.0}], r"got 'body.head'; the model has head"),
        ([{"match": "frozen", "lr": 1.0}], r"that is trained, got 'frozen'"),
        (
            [
                {"match": "head", "lr": 1.0},
                {"match": "head.weight", "lr": 2.0},
                {"match": "head.bias", "lr": 2.0},
            ],
            r"every parameter in 'head' has its own, longer rule",
        ),
    ],
)
def test_a_rule_that_holds_nowhere_is_refused(rules: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(Net(), *rules)


@pytest.mark.req("T6")
def test_a_tied_weight_follows_its_rule_under_either_name_but_not_two_rules() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model.head.weight = model.words.weight
    assert settings_of(model, {"match": "head", "lr": 0.5}) == {"words.weight": (0.5, 0.0)}
    with pytest.raises(
        ConfigError, match=r"tied weight head.weight is claimed by the rules 'words' and 'head'"
    ):
        settings_of(model, {"match": "head", "lr": 0.5}, {"match": "words", "lr": 0.1})


@pytest.mark.req("T6")
@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"modules": [{"match": "head", "lr": 0}]},
            r"above 0, got 0.*to freeze a module list it under model.freeze",
        ),
        ({"modules": [{"match": "head"}]}, "the rule for 'head' changes nothing"),
        (
            {"modules": [{"match": "head", "lr": 1}, {"match": "head", "lr": 2}]},
            r"more than one rule for \['head'\]",
        ),
        ({"modules": [{"match": "head.*", "lr": 1}]}, "should match pattern"),
        ({"layer_decay": 1.0}, "less than 1"),
        ({"layer_decay": 0.0}, "greater than 0"),
        ({"lr_scaling": "linear"}, "give both"),
        ({"reference_batch_size": 32}, "give both"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AdamWConfig(**section)


@pytest.mark.req("T1")
def test_groups_are_found_in_a_sharded_model() -> None:
    rules = ({"match": "0", "lr": 0.5},)
    plain, sharded = (
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)) for _ in range(2)
    )
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(sharded[0], mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        assert settings_of(sharded, *rules, layer_decay=0.5) == settings_of(
            plain, *rules, layer_decay=0.5
        )
        optimizer = make_optimizer(AdamWConfig(), sharded)
        sharded(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    finally:
        destroy_process_group()
