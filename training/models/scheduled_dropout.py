"""Dropout whose rate follows the progress of the training."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd


class ScheduledDropout(_DropoutNd):
    """Dropout with rate `p * flat_cos(progress)`: p for half of the training, then down to 0.

    `progress` [] is the share of all steps made. The engine sets it before each step
    (training.engine.step). It is a buffer outside of the state dict, so that it follows from the
    step number alone, costs no wait, and is an input of a compiled graph.

    Source: Holzmüller et al. 2024, arXiv:2407.04491, sec. 3.2.
    """

    progress: Tensor

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def rate(self) -> Tensor:
        """Return the present rate []."""
        fall = (2 * self.progress - 1).clamp(0.0, 1.0)
        return self.p * (1 + torch.cos(math.pi * fall)) / 2

    def forward(self, x: Tensor) -> Tensor:
        """Map x to a tensor of its shape, with values at random set to 0 in train mode."""
        if not self.training or not self.p:
            return x
        rate = self.rate()
        kept = torch.rand_like(x, dtype=torch.float32) >= rate
        return x * kept / (1 - rate).to(x.dtype)
