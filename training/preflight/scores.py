"""Forward passes as the checks of preflight make them: in eval mode, and on batches that were
changed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def scored(network: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Scores in eval mode without gradient, [B, K]."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    # a network that keeps what it computed must not keep inference tensors here: its next pass
    # would raise
    with torch.no_grad():
        scores: Tensor = network({name: t.clone() for name, t in inputs.items()})
        scores = scores.detach() if isinstance(scores, Tensor) else scores
    for module, mode in modes:
        module.training = mode
    return scores


def shifted(values: Tensor) -> Tensor:
    """Other values of the same type."""
    return 255 - values if values.dtype == torch.uint8 else values * -1.5 + 1.0


def with_other_first_row(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with other values in its first row; categories are those of its last row."""
    changed = {name: t.clone() for name, t in inputs.items()}
    for name, t in changed.items():
        t[0] = inputs[name][-1] if name == "categorical" else shifted(inputs[name][0])
    return changed
