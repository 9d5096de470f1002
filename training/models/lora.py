"""Adapters of low rank on linear layers (`model.lora`): trained while the layers stay as they are.

I inputs and O outputs of a layer, R rank.

Source: Hu et al. 2021, arXiv:2106.09685, sec. 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.errors import ConfigError, first_few
from schemas.init_config import LoraConfig, NetworkSection
from training.models.parameter_names import matching

NAMES = ("lora_a", "lora_b")  # of the parameters A [R, I] and B [O, R]


class LoraLinear(nn.Linear):
    """A linear layer with an adapter: x W' + b + (alpha / R) x A' B'.

    B starts at 0, so that the layer first gives what the one without an adapter gives.

    Args:
        layer: its weight and bias are shared.
        config: rank and alpha.
    """

    def __init__(self, layer: nn.Linear, config: LoraConfig) -> None:
        nn.Module.__init__(self)  # that of a linear layer would draw a weight
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = config.alpha / config.rank
        bound = 1 / math.sqrt(self.in_features)
        self.lora_a = nn.Parameter(torch.empty(config.rank, self.in_features))
        nn.init.uniform_(self.lora_a, -bound, bound)
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, config.rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., I] → [..., O]."""
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    def merged(self) -> Tensor:
        """Return the weight [O, I] of the one layer that gives the same."""
        return self.weight + self.scale * (self.lora_b @ self.lora_a)


def merged_weight(layer: nn.Linear) -> Tensor:
    """Return the weight [O, I] that a layer stands for, with its adapter if it has one."""
    return layer.merged() if isinstance(layer, LoraLinear) else layer.weight


def add_adapters(network: nn.Module, model: object) -> None:
    """Put adapters on the layers that `model.lora` names; freeze all but them and what is new.

    Raises:
        ConfigError: a pattern fits no linear layer, a layer is new itself, or the rank is no less
            than a layer's inputs or outputs.
    """
    if not isinstance(model, NetworkSection) or model.lora is None or model.init is None:
        return
    config = model.lora
    layers = {name: part for name, part in network.named_modules() if type(part) is nn.Linear}
    new = set(matching(model.init.new, network.state_dict(), "model.init.new"))
    named = matching(config.on, layers, "model.lora.on")
    if whole := [name for name in named if f"{name}.weight" in new]:
        raise ConfigError(
            f"model.lora.on names {first_few(whole)}, which model.init.new lists: it starts at"
            " random and is trained itself; leave it out of one of them"
        )
    for name in named:
        layer = layers[name]
        if config.rank >= min(layer.in_features, layer.out_features):
            raise ConfigError(
                f"model.lora.rank {config.rank}: {name} has {layer.in_features} inputs and"
                f" {layer.out_features} outputs, a lower rank than which is expected; lower the"
                " rank, or leave the layer out"
            )
        _replace(network, name, LoraLinear(layer, config))
    adapters = adapter_names(network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in new or name in adapters)


def adapter_names(network: nn.Module) -> set[str]:
    """Return the names of the adapters' parameters."""
    return {
        f"{path}.{name}"
        for path, part in network.named_modules()
        if isinstance(part, LoraLinear)
        for name in NAMES
    }


def merge_adapters(network: nn.Module) -> nn.Module:
    """Return the network with each adapter merged into its layer, changed in place."""
    adapted = [(name, m) for name, m in network.named_modules() if isinstance(m, LoraLinear)]
    for name, part in adapted:
        layer = nn.Linear(part.in_features, part.out_features, part.bias is not None, device="meta")
        layer.weight = nn.Parameter(part.merged().detach(), requires_grad=False)
        layer.bias = part.bias
        _replace(network, name, layer.train(part.training))
    return network


def merged_tensors(tensors: Mapping[str, Tensor], model: object) -> dict[str, Tensor]:
    """Return the weights of a network without adapters that gives the same as one with them.

    Args:
        tensors: of the network with adapters, by name.
        model: the section that declares the adapters.
    """
    config = getattr(model, "lora", None)
    if config is None:
        return dict(tensors)
    found = {n: t for n, t in tensors.items() if n.rpartition(".")[2] not in NAMES}
    for name in tensors:
        path, _, last = name.rpartition(".")
        if last == NAMES[0]:
            a, b, weight = (tensors[f"{path}.{key}"].double() for key in (*NAMES, "weight"))
            merged = weight + config.alpha / config.rank * (b @ a)
            found[f"{path}.weight"] = merged.to(tensors[f"{path}.weight"].dtype)
    return found


def _replace(network: nn.Module, name: str, part: nn.Module) -> None:
    path, _, last = name.rpartition(".")
    setattr(network.get_submodule(path), last, part)
