"""Networks for tests, given to a declaration as `{kind: custom, path:
tests.training.networks:NAME}`.
"""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor, nn

from training.models.shape import ModelShape


class Scripted(nn.Module):
    """A small network with dropout that sends its own process a signal at a given training forward
    pass.

    The script is outside of the declaration, so that the disturbed run and the undisturbed one have
    the same: BULKHEAD_TEST_SIGNAL="KILL:1:17" sends SIGKILL on rank 1 in the 17th training forward
    pass of the process.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(shape.numeric, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, shape.outputs)
        )
        self.norm = nn.BatchNorm1d(shape.numeric)
        self.calls = 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        script = os.environ.get("BULKHEAD_TEST_SIGNAL")
        if script and self.training:
            self.calls += 1
            name, rank, calls = script.split(":")
            if self.calls == int(calls) and os.environ.get("RANK", "0") == rank:
                os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
        return self.layers(self.norm(batch["numeric"]))


class HalfUsed(nn.Module):
    """A network with a layer that takes no part in the loss."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.used = nn.Linear(shape.numeric, shape.outputs)
        self.forgotten = nn.Linear(shape.numeric, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.used(batch["numeric"])


class Unset(nn.Module):
    """A network with a parameter that nobody gives a value."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(shape.numeric))
        self.head = nn.Linear(shape.numeric, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(batch["numeric"] * self.scale)


class FirstColumn(nn.Module):
    """Scores that are the first input column: tells which row a score came from."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["numeric"][:, :1]


class InPlace(nn.Module):
    """Works in place on its input, as users' code may."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["numeric"].mul_(2).sum(dim=1, keepdim=True)


class Plain(nn.Module):
    """A network without randomness over `numeric`, for gradients."""

    def __init__(self, width: int, outputs: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 8, dtype=dtype),
            nn.Tanh(),
            nn.LayerNorm(8, dtype=dtype),
            nn.Linear(8, outputs, dtype=dtype),
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layers(batch["numeric"])


class Hungry(Plain):
    """Asks for more memory than there is in a given training forward pass:
    BULKHEAD_TEST_HUNGRY="1:17" on rank 1 in the 17th.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape.numeric, shape.outputs)
        self.calls = 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        rank, _, calls = os.environ.get("BULKHEAD_TEST_HUNGRY", "").partition(":")
        self.calls += self.training
        if os.environ.get("RANK", "0") == rank and self.calls == int(calls):
            torch.empty(2**60)
        return super().forward(batch)


class Cliff(Plain):
    """A finite score whose gradient is not: the slope of a square root at zero."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape.numeric, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        scores = super().forward(batch)
        return scores + torch.sqrt(scores * 0)
