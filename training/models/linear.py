"""Linear model: one-hot regression without the one-hot."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from training.models.inputs import CategoryTable, Head
from training.models.shape import ModelShape


class Linear(nn.Module):
    """Scores linear in the numeric columns, the tensor values and the one-hot of each category.

    A category's one-hot weights are the rows of one embedding table [sum of codes, K] with an
    offset per column, so that no one-hot is ever built. Their rows start as N(0, 0.1² / columns),
    those of unseen codes as 0.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.numeric = shape.numeric > 0
        self.tensor_keys = tuple(shape.tensors)
        width = shape.numeric + shape.tensor_width
        # Without dense inputs the layer is its bias alone: a constant input column of zero width
        # carries it.
        self.dense = Head(width, shape) if width else None
        self.bias = None if width else nn.Parameter(torch.tensor(shape.prior))
        self.categories = (
            CategoryTable(shape, shape.outputs, 0.1 / math.sqrt(len(shape.categories)))
            if shape.categories
            else None
        )

    def ordered_layers(self) -> list[nn.Module]:
        """Return a single layer, on which layer decay has no effect."""
        return [self]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K]."""
        parts = ([batch["numeric"]] if self.numeric else []) + [
            batch[key].flatten(1) for key in self.tensor_keys
        ]
        scores = self.dense(torch.cat(parts, dim=1)) if self.dense is not None else self.bias
        if self.categories is None:
            return scores
        # [B, Dc] -> [B, Dc, K] -> [B, K]
        return scores + self.categories(batch["categorical"]).sum(1)
