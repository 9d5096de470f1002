"""Decay groups go by module type and dimension; every parameter is in exactly one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from schemas.config import AdamWConfig, SgdConfig
from schemas.errors import TrainingError
from training.optim import make_optimizer, parameter_groups, require_partition


class Zoo(nn.Module):
    """Names that deceive rules by name: `norm1` and `ln_f` without the word, `wte` an embedding, `bias_net` a linear layer."""

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
    found = {g["name"]: g["params"] for g in parameter_groups(model, 0.1)}
    return {name for name, p in model.named_parameters() if any(p is q for q in found.get(group, []))}


@pytest.mark.req("T6")
def test_only_weights_of_linear_and_convolution_layers_decay() -> None:
    model = Zoo()
    decayed = {"bias_net.weight", "conv.weight", "up.weight", "attention.in_proj_weight", "attention.out_proj.weight", "head.weight"}
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names(model, "decay") == decayed
    assert names(model, "no_decay") == trainable - decayed
    groups = parameter_groups(model, 0.1)
    assert {g["name"]: g["weight_decay"] for g in groups} == {"decay": 0.1, "no_decay": 0.0}


@pytest.mark.req("T6")
def test_a_weight_tied_to_an_embedding_is_in_one_group_and_does_not_decay() -> None:
    model = Zoo()
    model.head.weight = model.wte.weight
    assert "wte.weight" in names(model, "no_decay")
    assert sum(len(g["params"]) for g in parameter_groups(model, 0.1)) == len({p for p in model.parameters() if p.requires_grad})


@pytest.mark.req("T6")
def test_a_parameter_in_two_groups_or_none_is_an_error() -> None:
    model = nn.Linear(2, 2)
    trainable = {p: name for name, p in model.named_parameters()}
    with pytest.raises(TrainingError, match=r"1 are not \(first: bias \(in 0 groups\)\)"):
        require_partition([{"params": [model.weight]}], trainable)
    with pytest.raises(TrainingError, match=r"weight \(in 2 groups\)"):
        require_partition([{"params": [model.weight, model.bias]}, {"params": [model.weight]}], trainable)
    with pytest.raises(TrainingError, match="no trainable parameter"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), 0.1)


def step_together(config: AdamWConfig | SgdConfig, plain: type[torch.optim.Optimizer], **options: object) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2, dtype=torch.float64), nn.Linear(3, 2, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    first = make_optimizer(config, ours)
    second = plain([{"params": [theirs.weight], "weight_decay": config.weight_decay}, {"params": [theirs.bias], "weight_decay": 0.0}], lr=config.lr, **options)  # type: ignore[call-arg]
    for _ in range(200):
        x = torch.randn(8, 3, dtype=torch.float64)
        for model, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


@pytest.mark.req("T6")
def test_optimizers_are_torchs_own() -> None:
    step_together(AdamWConfig(lr=0.01, weight_decay=0.2, beta1=0.8, beta2=0.9, eps=1e-6), torch.optim.AdamW, betas=(0.8, 0.9), eps=1e-6)
    step_together(SgdConfig(lr=0.05, weight_decay=0.1, momentum=0.7, nesterov=True), torch.optim.SGD, momentum=0.7, nesterov=True)
    step_together(SgdConfig(lr=0.05, momentum=0.0), torch.optim.SGD)
