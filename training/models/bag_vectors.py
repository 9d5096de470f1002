"""Texts and sets as vectors, which bodies of every kind get as tensors of one axis.

Shapes: B rows, L codes of a row, E size of a vector, F frequent pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.models.input_dropout import InputDropout
from training.models.shape import NULL, BagShape, ModelShape
from training.models.token_transformer import TokenTransformer

FIRST_STD = 0.1
FREQUENT = 200  # pieces that trees see, each as a column of its own


def num_columns(codes: int) -> int:
    """Return the columns of a bag that trees get: for a null, and for each frequent piece.

    >>> num_columns(5), num_columns(10_000)
    (4, 201)
    """
    return min(codes - 1, 1 + FREQUENT)


def build_bags(shape: ModelShape, is_of_trees: bool, dropout: float = 0.0) -> Bags | None:
    """Return the module that makes the vectors; None without texts and sets.

    Args:
        shape: says what bags there are.
        is_of_trees: they are for trees.
        dropout: share of the rows that are trained without a bag.
    """
    if not shape.bags:
        return None
    make = Present if is_of_trees else vector_of
    return Bags(tuple(shape.bags), [make(bag) for bag in shape.bags.values()], dropout)


def vector_of(bag: BagShape) -> nn.Module:
    """Return the module [B, L] → [B, E] of a bag: pooled vectors, or attention to all pieces."""
    if bag.encoder is None:
        return Pooled(bag)
    return TokenTransformer(bag.encoder, bag.codes, bag.length)


class Bags(nn.Module):
    """A vector of each bag: codes int [B, L] under its key → [B, E] under the same key."""

    def __init__(self, keys: tuple[str, ...], parts: list[nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.keys, self.parts = keys, nn.ModuleList(parts)
        self.dropout = InputDropout(dropout) if dropout else None

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map a batch → the vectors [B, E] by key."""
        return {
            key: part(self._read(batch[key]))
            for key, part in zip(self.keys, self.parts, strict=True)
        }

    def _read(self, codes: Tensor) -> Tensor:
        """Return the codes, with those of a null for the rows that are trained without."""
        dropped = None if self.dropout is None else self.dropout.draw(codes)
        if dropped is None:
            return codes
        null = (torch.arange(codes.shape[1], device=codes.device) == 0).to(codes.dtype) * NULL
        return torch.where(dropped.unsqueeze(1), null, codes)


class Pooled(nn.Embedding):
    """Learned vectors of a row's pieces, joined to one: codes [B, L] → [B, E].

    Vectors are N(0, 0.1²): from small ones a network first learns what each piece says alone; of
    large ones it overfits at once. The filling has vector 0 and no gradient; a row without any
    piece gets zeros.
    """

    def __init__(self, bag: BagShape) -> None:
        super().__init__(bag.codes, bag.size, padding_idx=0)
        with torch.no_grad():
            self.weight.mul_(FIRST_STD)
        self.combine = bag.combine

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes int [B, L] → [B, E]."""
        joined = super().forward(codes.long()).sum(dim=1)
        if self.combine == "sum":
            return joined
        count = (codes > 0).sum(dim=1, keepdim=True).clamp(min=1).to(joined.dtype)
        return joined / (count.sqrt() if self.combine == "root" else count)


class Present(nn.Module):
    """Columns of 0 and 1 for trees: which frequent pieces a row has, codes [B, L] → [B, 1 + F]."""

    def __init__(self, bag: BagShape) -> None:
        super().__init__()
        self.width = num_columns(bag.codes)

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes int [B, L] → float [B, 1 + F]; the first column is null."""
        kept = torch.where(codes <= self.width, codes, 0).long()
        found = torch.zeros(codes.shape[0], self.width + 1, device=codes.device)
        return found.scatter(1, kept, 1.0)[:, 1:]
