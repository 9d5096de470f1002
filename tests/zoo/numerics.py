"""Networks whose gradient is not the slope of their loss, or whose numbers overflow or stand still; each is `Sound` but for the line that is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.training.modules import Sound
from training.models.shape import ModelShape


class Softsign(torch.autograd.Function):
    """x / (1 + |x|), with its right backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x / (1 + x.abs())

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return upstream[0] / (1 + ctx.saved_tensors[0].abs()).square()


class SoftsignOfOutput(Softsign):
    """The same, but its backward takes the input for the output."""

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return upstream[0] * (1 - ctx.saved_tensors[0].abs()).square()


class WrongBackward(Sound):
    """It trains, only worse."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return SoftsignOfOutput.apply(self.hidden(batch["numeric"]))


class MaskedByHook(Sound):
    """A hook that is to protect the first rows of a matrix, and lets nothing else through."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.hidden.weight.register_hook(self.first)

    @staticmethod
    def first(gradient: Tensor) -> Tensor:
        kept = torch.zeros_like(gradient)
        kept[:8] = gradient[:8]
        return kept


class HalfOfTheWay(Sound):
    """One of two ways to the scores is cut off from the graph, so that every parameter has a gradient, and all the wrong one."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return found + torch.tanh(found).detach()


class InFloat16(Sound):
    """Squares of what may be some hundred."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features({"numeric": (batch["numeric"].half() * 2).float() / 2})


class StillNorm(Sound):
    """A batch norm that never learns what it is to use in eval mode."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(64, momentum=0.0)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return self.norm(super().features(batch))


class LastBatchNorm(StillNorm):
    """TensorFlow's momentum in torch."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(64, momentum=0.99)


class RootOfZero(Sound):
    """A distance whose gradient is not finite where it is 0."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.scale = nn.Parameter(torch.rand(shape.numeric))
        self.mixed = nn.Linear(1, 64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        distance = (batch["numeric"] * self.scale).square().sum(1, keepdim=True).sqrt()
        return super().features(batch) + torch.tanh(self.mixed(distance))


class CodesFromOne(nn.Module):
    """Tables without a row for unknown values."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(codes - 1, 8) for codes in shape.categories)
        self.hidden = nn.Linear(shape.numeric + 8 * len(self.tables), 64)
        self.head = nn.Linear(64, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = [table(batch["categorical"][:, i] - 1) for i, table in enumerate(self.tables)]
        return self.head(torch.relu(self.hidden(torch.cat([batch["numeric"], *found], 1))))
