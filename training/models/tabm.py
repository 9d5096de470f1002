"""TabM: MLPs that share their matrices and differ in learned factors.

Source: Gorishniy et al. 2024, arXiv:2410.24210; details as in the package tabm. Batch ensembles:
    Wen et al. 2020, arXiv:2002.06715, eq. 5.

Shapes: B rows, M members, W width of a layer's input, K scores.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from schemas.config import TabMModel
from schemas.optimizer_config import Factor
from training.models.categories import Categories
from training.models.numeric_embeddings import PiecewiseLinearEmbedding
from training.models.shape import ModelShape


class MemberLinear(nn.Linear):
    """Shared linear layer with factors and biases of each member: `s (W (r x)) + b`.

    W and b ~ U(-1, 1) / sqrt(fan-in), b the same for all members at first; r = s = 1.
    """

    def __init__(self, members: int, fan_in: int, fan_out: int) -> None:
        super().__init__(fan_in, fan_out, bias=False)
        bound = 1 / math.sqrt(fan_in)
        nn.init.uniform_(self.weight, -bound, bound)
        self.r = nn.Parameter(torch.ones(members, fan_in))
        self.s = nn.Parameter(torch.ones(members, fan_out))
        first = (2 * torch.rand(fan_out) - 1) * bound
        self.member_bias = nn.Parameter(first.repeat(members, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, M, in] or [B, 1, in] -> [B, M, out]."""
        return super().forward(x * self.r) * self.s + self.member_bias


class MemberBlock(nn.Module):
    """Shared linear layer, ReLU, dropout."""

    def __init__(self, members: int, fan_in: int, fan_out: int, dropout: float) -> None:
        super().__init__()
        self.linear = MemberLinear(members, fan_in, fan_out)
        self.activation = nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, M, in] or [B, 1, in] -> [B, M, out]."""
        return self.dropout(self.activation(self.linear(x)))


class MemberHeads(nn.Module):
    """A head for each member: weights U(-1, 1) / sqrt(fan-in), the prior as bias."""

    def __init__(self, members: int, fan_in: int, shape: ModelShape) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight = nn.Parameter((2 * torch.rand(members, fan_in, shape.outputs) - 1) * bound)
        self.bias = nn.Parameter(torch.tensor(shape.prior).repeat(members, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, M, in] -> [B, M, K]."""
        return torch.einsum("bmw,mwk->bmk", x, self.weight) + self.bias


class TabM(nn.Module):
    """Inputs, shared layers, a head for each member: scores [B, M, K].

    Members differ at first in the factors of the inputs, one for each column and member: N(0, 1)
    with embedded numbers, random signs without, and in their heads.
    """

    def __init__(self, shape: ModelShape, config: TabMModel) -> None:
        super().__init__()
        self.members = config.members
        self.scaled = shape.numeric - shape.indicators
        self.has_numeric, self.tensor_keys = shape.numeric > 0, tuple(shape.tensors)
        self.numbers = (
            PiecewiseLinearEmbedding(shape.bins, config.embedding_size)
            if config.bins is not None and shape.bins
            else None
        )
        self.categories = (
            Categories(shape, config.one_hot, config.embedding_size) if shape.categories else None
        )
        columns = self._columns(shape)
        depth = config.depth if config.depth != "auto" else (2 if self.numbers is not None else 3)
        widths = [sum(columns)] + [config.width] * depth
        self.blocks = nn.Sequential(
            *(
                MemberBlock(config.members, fan_in, fan_out, config.dropout)
                for fan_in, fan_out in pairwise(widths)
            )
        )
        self.head = MemberHeads(config.members, widths[-1], shape)
        drawn = torch.randn(config.members, len(columns))
        drawn = drawn if self.numbers is not None else drawn.sign()
        with torch.no_grad():
            self.blocks[0].linear.r.copy_(drawn.repeat_interleave(torch.tensor(columns), dim=1))

    def _columns(self, shape: ModelShape) -> list[int]:
        """Return the width of each column's part of the input."""
        numbers = [1] * self.scaled if self.numbers is None else self.numbers.widths
        categories = [] if self.categories is None else self.categories.widths
        tensors = [math.prod(size) for size in shape.tensors.values()]
        return [*numbers, *[1] * shape.indicators, *categories, *tensors]

    def parameter_factors(self) -> dict[nn.Parameter, Factor]:
        """Return what decays besides matrices: factors, heads and pieces, but no bias."""
        factors = {} if self.numbers is None else self.numbers.parameter_factors()
        if self.categories is not None:
            factors |= {p: Factor(1.0, 1.0) for p in self.categories.parameters()}
        for block in self.blocks:
            factors |= {p: Factor(1.0, 1.0) for p in (block.linear.r, block.linear.s)}
        return factors | {self.head.weight: Factor(1.0, 1.0)}

    def ordered_layers(self) -> list[nn.Module | tuple[nn.Module, ...]]:
        """Return layers from input to output: embeddings and first block, other blocks, heads."""
        embeddings = [part for part in (self.numbers, self.categories) if part is not None]
        return [(*embeddings, self.blocks[0]), *self.blocks[1:], self.head]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch -> scores [B, M, K]."""
        parts = []
        if self.has_numeric:
            values, indicators = batch["numeric"].split(
                [self.scaled, batch["numeric"].shape[1] - self.scaled], dim=1
            )
            parts += [values if self.numbers is None else self.numbers(values), indicators]
        if self.categories is not None:
            parts.append(self.categories(batch["categorical"]))
        parts += [batch[key].flatten(1) for key in self.tensor_keys]
        # [B, W] -> [B, 1, W]
        return self.head(self.blocks(torch.cat(parts, dim=1).unsqueeze(1)))
