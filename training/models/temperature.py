"""Temperature: divide the scores of each class label by one number, fitted after training.

It is 1 during training and no part of a checkpoint, so a declared temperature changes no trained
weight. The weights that are exported have it as `temperature.value`.

B rows, K scores, L labels. Source: Guo et al. 2017, On calibration of modern neural networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.records import Statistics
from training.objectives.targets import targets_of

KEY = "temperature.value"  # in the weights of a network with a module `temperature`


class Temperature(nn.Module):
    """Scores [B, K] divided by the temperature of their label.

    The buffer `value` float32 [L] is in no state dict: it is neither trained nor a running
    statistic. `load_state_dict` takes it if it is there, and leaves it as it is otherwise.

    Args:
        label_of: For each of the K scores the position of its label.
    """

    value: Tensor
    label_of: Tensor

    def __init__(self, label_of: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones(max(label_of) + 1), persistent=False)
        self.register_buffer("label_of", torch.tensor(tuple(label_of)), persistent=False)

    def forward(self, scores: Tensor) -> Tensor:
        """Map scores [B, K] → scores [B, K] of the same type."""
        return scores / self.divisors().to(scores.dtype)

    def divisors(self) -> Tensor:
        """Return the temperature of each score [K]."""
        return self.value.index_select(0, self.label_of)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = state_dict.get(f"{prefix}value")
        if given is None:
            return
        if given.shape != self.value.shape or not bool((given > 0).all() & given.isfinite().all()):
            error_msgs.append(
                f"{prefix}value: expected {len(self.value)} temperatures above 0, got {given}"
            )
            return
        with torch.no_grad():
            self.value.copy_(given)


def build_temperature(declaration: Declaration, statistics: Statistics) -> Temperature | None:
    """Return the temperature of a declared network; None if none is declared."""
    if declaration.evaluate.calibrate == "none":
        return None
    labels = targets_of(declaration, statistics)
    if labels:
        return Temperature([i for i, label in enumerate(labels) for _ in range(label.width)])
    return Temperature([0] * (1 if len(statistics.classes) == 2 else len(statistics.classes)))


def temperature_of(network: nn.Module) -> Temperature | None:
    """Return the temperature that a network divides its scores by; None without one."""
    found = getattr(network, "temperature", None)
    return found if isinstance(found, Temperature) else None
