"""Categorical columns of few values as one-hot columns, the others as embeddings.

Shapes: B rows, Dc categorical columns, W width of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.shape import ModelShape


def one_hot_table(codes: int, unseen: tuple[int, ...], signs: bool) -> Tensor:
    """Return the rows of each code [codes, W]; a code that no train row had is a row of zeros.

    Args:
        codes: Number of codes of the column.
        unseen: Codes without a train row.
        signs: Two values share one column, as -1 and 1.

    >>> one_hot_table(4, (0, 1), signs=True).flatten().tolist()
    [0.0, 0.0, 1.0, -1.0]
    """
    values = [code for code in range(codes) if code not in unseen]
    if signs and len(values) == 2:
        table = torch.zeros(codes, 1)
        table[values] = torch.tensor([[1.0], [-1.0]])
        return table
    table = torch.zeros(codes, len(values))
    table[values] = torch.eye(len(values))
    return table


class Categories(nn.Module):
    """Categorical columns: codes [B, Dc] -> [B, W].

    Rows of embeddings are N(0, 1). Rows of codes that no train row had are zero and, as they get no
    gradient, stay zero: an unknown category adds nothing.

    Args:
        shape: Gives the columns.
        one_hot: Columns of at most so many values are one-hot.
        size: Size of the embedding of a column with more values.
        signs: As `one_hot_table`.

    Attributes:
        widths: Width of each column's part.
    """

    def __init__(self, shape: ModelShape, one_hot: int, size: int, signs: bool = False) -> None:
        super().__init__()
        self.widths: list[int] = []
        self.embeddings = nn.ModuleDict()
        for i, (codes, unseen) in enumerate(zip(shape.categories, shape.unseen, strict=True)):
            if codes - len(unseen) <= one_hot:
                table = one_hot_table(codes, unseen, signs)
                self.register_buffer(f"one_hot_{i}", table, persistent=False)
                self.widths.append(table.shape[1])
                continue
            embedding = nn.Embedding(codes, size)
            nn.init.normal_(embedding.weight)
            with torch.no_grad():
                embedding.weight[list(unseen)] = 0.0
            self.embeddings[str(i)] = embedding
            self.widths.append(size)

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes int64 [B, Dc] -> [B, W]."""
        parts = [
            self.embeddings[str(i)](codes[:, i])
            if str(i) in self.embeddings
            else F.embedding(codes[:, i], getattr(self, f"one_hot_{i}"))
            for i in range(len(self.widths))
        ]
        return torch.cat(parts, dim=1)
