"""Optimizers over decay and no-decay groups, told apart by module type and dimension, never by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from schemas.config import AdamWConfig, SgdConfig
from schemas.config import Optimizer as OptimizerConfig
from schemas.errors import TrainingError, first_few

DECAYED: tuple[tuple[type[nn.Module], tuple[str, ...]], ...] = (  # module type -> its parameters that are matrices of a linear map
    (nn.Linear, ("weight",)),
    (nn.modules.conv._ConvNd, ("weight",)),
    (nn.MultiheadAttention, ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")),
)


def _is_decayed(module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim >= 2 and any(isinstance(module, kind) and name in names for kind, names in DECAYED)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: `decay` for weights of linear and convolution layers, else `no_decay`.

    Norms, biases, embeddings and free parameters are not decayed; nor is a weight that is tied to one of them.

    Raises:
        TrainingError: no trainable parameter, or one that is in no group or in two.
    """
    uses: dict[nn.Parameter, list[bool]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            uses.setdefault(parameter, []).append(_is_decayed(module, name, parameter))
    trainable = {p: name for name, p in model.named_parameters() if p.requires_grad}
    decay = [p for p in trainable if p in uses and all(uses[p])]
    no_decay = [p for p in trainable if p in uses and not all(uses[p])]
    groups = [{"name": "decay", "params": decay, "weight_decay": weight_decay}, {"name": "no_decay", "params": no_decay, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    require_partition(groups, trainable)
    return groups


def require_partition(groups: list[dict[str, Any]], trainable: dict[nn.Parameter, str]) -> None:
    """Refuse groups that leave out a trainable parameter or hold one twice.

    Raises:
        TrainingError: naming the parameters.
    """
    if not trainable:
        raise TrainingError("the model has no trainable parameter; set requires_grad on some of them")
    counts = Counter(p for group in groups for p in group["params"])
    wrong = [f"{name} (in {counts[p]} groups)" for p, name in trainable.items() if counts[p] != 1]
    if wrong:
        raise TrainingError(f"expected every trainable parameter in exactly one optimizer group; {len(wrong)} are not (first: {first_few(wrong)})")


def make_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The declared optimizer over the model's parameters, in torch's fused form (one kernel per group).

    Raises:
        TrainingError: a parameter is in no group or in two.
    """
    groups = parameter_groups(model, config.weight_decay)
    match config:
        case AdamWConfig():
            return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
        case SgdConfig():
            return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=True)
