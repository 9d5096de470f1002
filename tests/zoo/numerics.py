"""Networks whose gradient is not the slope of their loss, or whose numbers overflow or stand still;
each is `Sound` but for the line that is wrong.
"""

from __future__ import annotations

import copy
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
    """One of two ways to the scores is cut off from the graph, so that every parameter has a
    gradient, and all the wrong one.
    """

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


class SlowNorm(StillNorm):
    """Statistics that would arrive after a hundred thousand steps."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(64, momentum=1e-5)


class UnitsAlike(Sound):
    """Weights that begin with one value."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.more = nn.Linear(64, 64)
        for layer in (self.hidden, self.more, self.head):
            nn.init.constant_(layer.weight, 0.02)
            nn.init.zeros_(layer.bias)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.relu(self.more(super().features(batch)))


class CopiedMembers(Sound):
    """An ensemble of one."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        member = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))
        self.members = nn.ModuleList(copy.deepcopy(member) for _ in range(3))

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return torch.stack([member(found) for member in self.members]).mean(0)


class NothingBetween(Sound):
    """Three layers that are one."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.second = nn.Linear(64, 64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return self.second(self.hidden(batch["numeric"]))


class KeepsForEval(Sound):
    """What eval mode computed once it takes for ever."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.kept: Tensor | None = None

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        if self.training:
            return super().features(batch)
        if self.kept is None:
            self.kept = self.hidden.weight.detach() + 0.0
        return torch.relu(nn.functional.linear(batch["numeric"], self.kept, self.hidden.bias))


class ClampsByHook(Sound):
    """A backward hook of a layer that lets through what is above 0."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.more = nn.Linear(64, 64)
        self.more.register_full_backward_hook(
            lambda layer, inner, outer: tuple(g.clamp(min=0) for g in inner)
        )

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.relu(self.more(super().features(batch)))


class WidePrior(Sound):
    """A prior by NumPy, which makes every score float64."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.register_buffer(
            "prior", torch.log(torch.full((shape.outputs,), 0.5, dtype=torch.float64))
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch) + self.prior


class ProbabilitiesInEval(Sound):
    """Scores to train with, probabilities to evaluate, though who evaluates makes them himself; a
    batch norm hides the difference.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return self.norm(super().features(batch))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        scores = super().forward(batch)
        return scores if self.training else torch.sigmoid(scores)


class OneNormForTwo(Sound):
    """One batch norm behind two branches of unlike size."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.wide = nn.Linear(shape.numeric, 64)
        nn.init.constant_(self.wide.bias, 4.0)
        self.norm = nn.BatchNorm1d(64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        branches = self.hidden(batch["numeric"]), self.wide(batch["numeric"])
        return torch.relu(self.norm(branches[0])) - torch.relu(self.norm(branches[1]))


class OtherInEval(ProbabilitiesInEval):
    """A temperature in eval mode alone."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return Sound.forward(self, batch) * (1.0 if self.training else 5.0)


class OverflowingGate(Sound):
    """A softmax by hand, which numbers far out make inf / inf."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.gate = nn.Linear(shape.numeric, 64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        share = torch.exp(self.gate(batch["numeric"]))
        return super().features(batch) * share / share.sum(1, keepdim=True) * 64


class LastValueIsPadding(nn.Module):
    """Tables whose last row, that of a known value, is their padding."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(codes, 16, padding_idx=-1) for codes in shape.categories
        )
        self.body = nn.Sequential(
            nn.Linear(shape.numeric + 16 * len(shape.categories), 64),
            nn.ReLU(),
            nn.Linear(64, shape.outputs),
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found = [table(batch["categorical"][:, i]) for i, table in enumerate(self.tables)]
        return self.body(torch.cat([batch["numeric"], *found], dim=1))


class JoinedTables(nn.Module):
    """One table for all categorical columns, each with its own part of it."""

    step = 0

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        ends = torch.tensor([0, *(codes - self.step for codes in shape.categories[:-1])]).cumsum(0)
        self.register_buffer("starts", ends)
        self.table = nn.Embedding(sum(shape.categories), 16)
        self.body = nn.Sequential(
            nn.Linear(shape.numeric + 16 * len(shape.categories), 64),
            nn.ReLU(),
            nn.Linear(64, shape.outputs),
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.body(
            torch.cat(
                [batch["numeric"], self.table(batch["categorical"] + self.starts).flatten(1)], 1
            )
        )


class NeighboursShare(JoinedTables):
    """The last code of one column and the first of the next are one row."""

    step = 1


class HashedTables(JoinedTables):
    """All codes in a table that is too small for them, on purpose."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        rows = (batch["categorical"] + self.starts) * 7919 % (self.table.num_embeddings - 1)
        return self.body(torch.cat([batch["numeric"], self.table(rows).flatten(1)], 1))


class SignsAlone(Sound):
    """A norm straight after value times weight."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.weight, self.bias = (
            nn.Parameter(torch.randn(shape.numeric, 32)),
            nn.Parameter(torch.randn(shape.numeric, 32) * 0.3),
        )
        self.norm, self.hidden = nn.LayerNorm(32), nn.Linear(32 * shape.numeric, 64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = self.norm(batch["numeric"].unsqueeze(2) * self.weight) + self.bias
        return super().forward({"numeric": tokens.flatten(1)})
