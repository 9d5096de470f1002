"""Causal transformer over tokens: logits of each token from earlier tokens of its document.

B sequences, T positions, W width, V tokens of the vocabulary, L blocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import CausalTransformerModel
from training.models.attention import Rotation, SelfAttention, rotation
from training.models.inputs import init_linear_
from training.models.shape import ModelShape

# small: with one matrix for both, the first logits are near 0 and the first loss near ln V
EMBEDDING_STD = 0.02


def positions_of(segments: Tensor) -> Tensor:
    """Return the index of each position within its segment, from 0, int64 [B, T].

    Equal neighbours in `segments` [B, T] are one segment.

    >>> positions_of(torch.tensor([[1, 1, 1, 2, 2, 0]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    places = torch.arange(segments.shape[1], device=segments.device)
    begins = torch.cat(
        [torch.ones_like(segments[:, :1], dtype=torch.bool), segments[:, 1:] != segments[:, :-1]],
        dim=1,
    )
    return places - torch.cummax(torch.where(begins, places, 0), dim=1).values


def may_see(segments: Tensor) -> Tensor:
    """Return the mask [B, 1, T, T]: position i may see position j of its own segment, j up to i."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    # [B, T, 1] == [B, 1, T] -> [B, 1, T, T]
    return ((segments.unsqueeze(2) == segments.unsqueeze(1)) & causal).unsqueeze(1)


class Block(nn.Module):
    """Pre-norm block: `x + attention(norm(x))`, then `x + W2 gelu(W1 norm(x))`.

    Both have dropout on the added term.

    The layers that write into the residual start smaller by 1 / sqrt(2 L), so that its scale does
    not grow with depth.

    Source: pre-norm, Xiong et al. 2020, arXiv:2002.04745; the smaller initial weights, Radford et
        al. 2019,
    Language models are unsupervised multitask learners, sec. 2.3.
    """

    def __init__(self, config: CausalTransformerModel) -> None:
        super().__init__()
        width, hidden = config.width, max(1, round(config.width * config.expansion))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, config.heads, config.dropout)
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(config.dropout)
        init_linear_(self.widen, gain=1.0)
        init_linear_(self.narrow, gain=1.0)
        with torch.no_grad():
            for layer in (self.attention.merge, self.narrow):
                layer.weight.div_(math.sqrt(2 * config.depth))

    def forward(self, x: Tensor, mask: Tensor | None, turns: Rotation | None) -> Tensor:
        """Map [B, T, W] → [B, T, W]; without a mask every position sees all earlier ones."""
        x = x + self.dropout(
            self.attention(self.norm1(x), mask, causal=mask is None, rotation=turns)
        )
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.norm2(x)))))


class CausalTransformer(nn.Module):
    """Map a batch of `tokens` and `segments` [B, T] → logits [B, T, V] of the next tokens.

    Positions start from 0 in each segment. They enter by `rotary` rotations of queries and keys, or
    by `learned` vectors that are added to the tokens'. With `tied`, the embedding's matrix also
    scores the tokens; it is then one parameter under one name.

    Args:
        shape: gives vocabulary and context.
        config: the network's size.
        packed: several segments share a sequence, so a mask separates them. Else a sequence is
            one segment with all its padding at the end. Plain causal attention, for which flash
            kernels exist, then gives the same result at its positions.
    """

    def __init__(self, shape: ModelShape, config: CausalTransformerModel, packed: bool) -> None:
        super().__init__()
        self.packed = packed
        self.embedding = nn.Embedding(shape.outputs, config.width)
        self.position = (
            nn.Embedding(shape.context, config.width) if config.positions == "learned" else None
        )
        self.head_size = config.width // config.heads
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.head = None if config.tied else nn.Linear(config.width, shape.outputs, bias=False)
        for table in (self.embedding, self.position, self.head):
            if table is not None:
                nn.init.normal_(table.weight, std=EMBEDDING_STD)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits [B, T, V]; those of padding have no meaning."""
        tokens, segments = batch["tokens"], batch["segments"]
        positions, x = positions_of(segments), self.embedding(tokens)
        x = self.dropout(x if self.position is None else x + self.position(positions))
        turns = rotation(positions, self.head_size, x.dtype) if self.position is None else None
        mask = may_see(segments) if self.packed else None
        for block in self.blocks:
            x = block(x, mask, turns)
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)
