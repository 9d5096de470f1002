"""A vector of a text or a SMILES: self-attention over its tokens, and their mean.

B rows, L tokens, W width of a token, E size of the vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.transformer_config import TransformerEncoder
from training.models.attention import SelfAttention
from training.models.inputs import init_linear_
from training.models.molecule_encoders import PACKED, Missing

FIRST_STD = 0.1


class TokenTransformer(nn.Module):
    """Learned tokens and positions, blocks of attention with norms before them, and a masked mean.

    Filling (code 0) is seen by no token and not averaged, so the length of the array does not
    matter. A row without a token gets a learned vector.

    Args:
        config: Widths and depth.
        codes: Number of codes, filling included.
        length: L.
        skipped: Leading values of a row that are no tokens.

    Source: Vaswani et al. 2017, arXiv:1706.03762; Xiong et al. 2020, arXiv:2002.04745 (norms).
    """

    def __init__(
        self, config: TransformerEncoder, codes: int, length: int, skipped: int = 0
    ) -> None:
        super().__init__()
        self.skipped = skipped
        self.tokens = nn.Embedding(codes, config.width, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(length, config.width) * FIRST_STD)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm, self.out = nn.LayerNorm(config.width), nn.Linear(config.width, config.size)
        self.dropout, self.missing = nn.Dropout(config.dropout), Missing(config.size)
        init_linear_(self.out, gain=1.0)

    def forward(self, rows: Tensor) -> Tensor:
        """Map codes [B, L] → vectors [B, E]."""
        codes = rows[:, self.skipped :].long().clamp(0, self.tokens.num_embeddings - 1)
        present = codes > 0
        # a row without a token sees its first place, as a mean over nothing is not a number
        seen = present | (torch.arange(codes.shape[1], device=codes.device) == 0)
        x = self.dropout(self.tokens(codes) + self.positions)
        for block in self.blocks:
            x = block(x, seen[:, None, None, :])
        weight = present.unsqueeze(2).to(x.dtype)
        mean = (self.norm(x) * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        return self.missing(self.out(mean), present.any(dim=1))


class Block(nn.Module):
    """Attention and a network of two layers, each added to its input: [B, L, W] → [B, L, W]."""

    def __init__(self, config: TransformerEncoder) -> None:
        super().__init__()
        width = config.width
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, config.heads, config.dropout)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)
        init_linear_(self.inner)
        init_linear_(self.outer, gain=1.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the tokens after attention to those of the mask [B, 1, 1, L]."""
        x = x + self.dropout(self.attention(self.first(x), mask))
        return x + self.dropout(self.outer(F.gelu(self.inner(self.second(x)))))


def smiles_transformer(config: TransformerEncoder, width: int) -> TokenTransformer:
    """Return the encoder of a row of packed bits and tokens, `width` bytes together."""
    return TokenTransformer(config, 256, width - PACKED, skipped=PACKED)
