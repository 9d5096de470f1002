"""Convert a batch to one vector per row: numbers, category embeddings, flattened tensors.

Shapes: B rows, Dn numeric columns, Dc categorical columns, F frequencies, E embedding size, W width
of the vector.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from training.models.shape import ModelShape

NumericEmbedding = Literal["none", "periodic"]
FREQUENCIES = 16  # F: cosines of one numeric column
PERIODIC_SIZE = 4  # E: their linear mixture, next to the column itself
FREQUENCY_STD = 0.5
MAX_EMBEDDING = 64


def embedding_size(num_codes: int) -> int:
    """Return the size of a category embedding: min(64, round(1.6 n^0.56)).

    Source: the rule of fastai's tabular learner (Howard and Gugger 2020, 10.3390/info11020108),
    with a lower cap.

    >>> embedding_size(4), embedding_size(100), embedding_size(10_000)
    (3, 21, 64)
    """
    return min(MAX_EMBEDDING, round(1.6 * math.pow(num_codes, 0.56)))


def init_linear_(layer: nn.Linear | nn.Conv2d, gain: float = math.sqrt(2.0)) -> None:
    """Initialise weights N(0, gain² / fan_in) and bias 0.

    This keeps the scale of activations through ReLU-like layers.

    Source: He et al. 2015, arXiv:1502.01852, eq. 10.
    """
    nn.init.normal_(layer.weight, std=gain / math.sqrt(layer.weight[0].numel()))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Head(nn.Linear):
    """Last layer with small weights N(0, 0.1² / fan_in) and the prior as bias.

    Training starts at the base rate.
    """

    def __init__(self, in_features: int, shape: ModelShape) -> None:
        super().__init__(in_features, shape.outputs)
        init_linear_(self, gain=0.1)
        with torch.no_grad():
            self.bias.copy_(torch.tensor(shape.prior))


class CategoryTable(nn.Embedding):
    """All categorical columns in one table of size E, without one-hot; codes [B, Dc] → [B, Dc, E].

    Rows are N(0, std²); those of codes that no train row had are zero and stay so.
    """

    offsets: Tensor

    def __init__(self, shape: ModelShape, size: int, std: float) -> None:
        super().__init__(sum(shape.categories), size)
        starts = [sum(shape.categories[:i]) for i in range(len(shape.categories))]
        self.register_buffer("offsets", torch.tensor(starts), persistent=False)
        nn.init.normal_(self.weight, std=std)
        unseen = [
            start + code
            for start, codes in zip(starts, shape.unseen, strict=True)
            for code in codes
        ]
        with torch.no_grad():
            self.weight[unseen] = 0.0

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes int64 [B, Dc], each numbered within its column → [B, Dc, E]."""
        return super().forward(codes + self.offsets)


class CategoryEmbeddings(nn.Module):
    """One embedding table per categorical column; codes [B, Dc] → [B, sum of sizes].

    Rows are N(0, 1 / size). Rows of codes that no train row had (usually the unknown code) are zero
    and, as they get no gradient, stay zero: an unknown category at serving adds nothing to the next
    layer.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        sizes = [embedding_size(n) for n in shape.categories]
        self.width = sum(sizes)
        self.tables = nn.ModuleList(
            nn.Embedding(n, size) for n, size in zip(shape.categories, sizes, strict=True)
        )
        for table, unseen in zip(self.tables, shape.unseen, strict=True):
            nn.init.normal_(table.weight, std=1 / math.sqrt(table.embedding_dim))
            with torch.no_grad():
                table.weight[list(unseen)] = 0.0

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes int64 [B, Dc] → [B, width]."""
        return torch.cat([table(codes[:, i]) for i, table in enumerate(self.tables)], dim=1)


class PeriodicEmbedding(nn.Module):
    """Periodic embedding of numeric columns [B, D] → [B, D * (1 + E)].

    Each column gives itself and E mixtures of its F cosines.

    `x ↦ (x, W cos(2π f x + b))` with separate trainable f, b, W for each column. It lets a smooth
    network learn the steps and bumps that trees find. f ~ N(0, 0.5²), b ~ U(0, 2π), W ~ N(0, 1/F).

    Source: Gorishniy et al. 2022, arXiv:2203.05556, sec. 3.3; biases and the kept column as in
    Holzmüller et al. 2024, arXiv:2407.04491, sec. 3.2.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.width = columns * (1 + PERIODIC_SIZE)
        self.frequency = nn.Parameter(torch.randn(columns, FREQUENCIES) * FREQUENCY_STD)
        self.phase = nn.Parameter(torch.rand(columns, FREQUENCIES) * 2 * math.pi)
        self.mixture = nn.Parameter(
            torch.randn(columns, FREQUENCIES, PERIODIC_SIZE) / math.sqrt(FREQUENCIES)
        )

    def forward(self, values: Tensor) -> Tensor:
        """Map scaled values [B, D] → [B, width]."""
        # [B, D, 1] * [D, F] -> [B, D, F]
        cosines = torch.cos(2 * math.pi * values.unsqueeze(2) * self.frequency + self.phase)
        mixed = torch.einsum("bdf,dfe->bde", cosines, self.mixture)
        return torch.cat([values, mixed.flatten(1)], dim=1)


class RowVector(nn.Module):
    """All inputs of a row as one vector.

    It contains (embedded) numeric columns, indicators, category embeddings and flattened tensors.

    Args:
        shape: The contract; `width` [W] follows from it.
        numeric_embedding: How numeric columns (never indicators) enter.
        tensors: True flattens tensors into the vector.
    """

    def __init__(
        self, shape: ModelShape, numeric_embedding: NumericEmbedding = "none", tensors: bool = True
    ) -> None:
        super().__init__()
        self.scaled = shape.numeric - shape.indicators
        self.periodic = (
            PeriodicEmbedding(self.scaled)
            if numeric_embedding == "periodic" and self.scaled
            else None
        )
        self.categories = CategoryEmbeddings(shape) if shape.categories else None
        self.has_numeric = shape.numeric > 0
        self.tensor_keys = tuple(shape.tensors) if tensors else ()
        numeric = shape.indicators + (self.periodic.width if self.periodic else self.scaled)
        self.width = (
            numeric
            + (self.categories.width if self.categories else 0)
            + (shape.tensor_width if tensors else 0)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → [B, width]."""
        parts = []
        if self.has_numeric:
            values = batch["numeric"]
            if self.periodic is not None:
                values = torch.cat(
                    [self.periodic(values[:, : self.scaled]), values[:, self.scaled :]], dim=1
                )
            parts.append(values)
        if self.categories is not None:
            parts.append(self.categories(batch["categorical"]))
        parts += [batch[key].flatten(1) for key in self.tensor_keys]
        return torch.cat(parts, dim=1)
