"""Residual MLP over the row vector."""

from __future__ import annotations

import math

from torch import Tensor, nn

from schemas.config import ResMlpModel
from training.models.inputs import Head, RowVector, init_linear_
from training.models.shape import ModelShape


class Block(nn.Module):
    """Residual block `x + W2 dropout(gelu(W1 norm(x)))`.

    W2 is scaled by 1/√depth so that the sum over blocks keeps its scale.
    """

    def __init__(self, width: int, hidden: int, dropout: float, depth: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        init_linear_(self.expand)
        init_linear_(self.contract, gain=1 / math.sqrt(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, width] → [B, width]."""
        return x + self.contract(self.dropout(self.activation(self.expand(self.norm(x)))))


class ResMlp(nn.Module):
    """Linear layer to `width`, `depth` pre-norm residual blocks, a last norm, the head.

    Source: Gorishniy et al. 2021, arXiv:2106.11959, sec. 3.2 (ResNet for tables), with layer norm
        instead of batch norm.
    """

    def __init__(self, shape: ModelShape, config: ResMlpModel) -> None:
        super().__init__()
        self.inputs = RowVector(shape, config.numeric_embedding)
        self.project = nn.Linear(self.inputs.width, config.width)
        init_linear_(self.project, gain=1.0)
        hidden = max(1, round(config.width * config.expansion))
        self.blocks = nn.Sequential(
            *(
                Block(config.width, hidden, config.dropout, config.depth)
                for _ in range(config.depth)
            )
        )
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.head = Head(config.width, shape)

    def ordered_layers(self) -> list[nn.Module | tuple[nn.Module, ...]]:
        """Return layers from input to output: inputs and projection, each block, norm and head."""
        return [(self.inputs, self.project), *self.blocks, (self.norm, self.head)]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K]."""
        x = self.blocks(self.project(self.inputs(batch)))
        return self.head(self.dropout(self.norm(x)))
