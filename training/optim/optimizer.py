"""Build the declared optimizer over the parameter groups, fused where that is correct."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from schemas.config import AdamConfig, AdamWConfig, SgdConfig
from schemas.config import Optimizer as OptimizerConfig
from schemas.errors import TrainingError
from training.optim.groups import parameter_groups

# fused SGD skips whole vectors of half-precision weights on the CPU (torch 2.13)
FUSED_DTYPES = (torch.float32, torch.float64)


def make_optimizer(
    config: OptimizerConfig, model: nn.Module, some_join_later: bool = False
) -> torch.optim.Optimizer:
    """Build the declared optimizer.

    Each group has `name`, and as `peak` its rate at the peak of the schedule.

    Args:
        config: Its rates are used as they are: resolve `lr_scaling` first, with
            `config.scaled(batch_size)`.
        model: May be sharded; parameters are found through its modules.
        some_join_later: Some parameters have no gradient in the first steps.

    Raises:
        TrainingError: `lr_scaling` is not resolved, or as `parameter_groups`.
        ConfigError: as `parameter_groups`.
    """
    if config.lr_scaling != "none":
        raise TrainingError(
            f"expected resolved rates, got lr_scaling {config.lr_scaling!r}; give"
            " config.scaled(batch_size)"
        )
    groups = parameter_groups(config, model)
    fused = all(p.dtype in FUSED_DTYPES for group in groups for p in group["params"])
    match config:
        case SgdConfig():
            momentum = {
                "momentum": config.momentum,
                "nesterov": config.nesterov,
                "dampening": config.dampening,
            }
            # fused SGD cannot update parameters with and without momentum at once, nor sharded ones
            # (torch 2.13)
            fused = fused and not some_join_later and not any(map(_is_sharded, model.parameters()))
            return torch.optim.SGD(groups, lr=config.lr, **momentum, fused=fused)
        case AdamConfig() | AdamWConfig():
            kind = torch.optim.AdamW if isinstance(config, AdamWConfig) else torch.optim.Adam
            return kind(
                groups,
                lr=config.lr,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                amsgrad=config.amsgrad,
                fused=fused,
            )


def describe_rates(optimizer: torch.optim.Optimizer) -> str:
    """Return the resolved peak rates and the weight decay in one line, for the log."""
    groups = optimizer.param_groups
    low, high = min(g["peak"] for g in groups), max(g["peak"] for g in groups)
    rates = (
        f"rate {high:.4g}"
        if low == high
        else f"rates {low:.4g} to {high:.4g} in {len(groups)} groups"
    )
    decayed = [g for g in groups if g.get("peak_decay", g["weight_decay"])]
    matrices = (
        f"weight decay on {sum(len(g['params']) for g in decayed)} of"
        f" {sum(len(g['params']) for g in groups)} parameters"
    )
    return (
        f"{type(optimizer).__name__}, peak learning {rates},"
        f" {matrices if decayed else 'no weight decay'}"
    )


def _is_sharded(parameter: nn.Parameter) -> bool:
    return isinstance(parameter, DTensor)
