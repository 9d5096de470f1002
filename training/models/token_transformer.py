"""A vector of a text or a SMILES: self-attention over its tokens, and their mean.

B rows, L tokens, T = L, or L + 2 between begin and end, W width of a token, E size of the vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.transformer_config import TransformerEncoder
from training.models.attention import Rotation, SelfAttention, rotation
from training.models.inputs import init_linear_
from training.models.molecule_encoders import PACKED, Missing

FIRST_STD = 0.1
MOLECULE_CODES = 256  # a code of a molecule's token is one byte


class TokenTransformer(nn.Module):
    """Learned tokens and positions, blocks of attention with norms before them, and a masked mean.

    Filling (code 0) is seen by no token and not averaged, so the length of the array does not
    matter. A row without a token gets a learned vector.

    With attention `causal` it is the network of `CausalTransformer` up to its last norm: the two
    last rows of the table are the begin and end around the tokens, and are averaged with them.

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
        self.skipped, self.codes = skipped, codes
        self.causal = config.attention == "causal"
        self.head_size = config.width // config.heads
        ends = 2 * self.causal
        self.tokens = nn.Embedding(codes + ends, config.width, padding_idx=0)
        self.positions = (
            nn.Parameter(torch.randn(length + ends, config.width) * FIRST_STD)
            if config.positions == "learned"
            else None
        )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm, self.out = nn.LayerNorm(config.width), nn.Linear(config.width, config.size)
        self.dropout, self.missing = nn.Dropout(config.dropout), Missing(config.size)
        init_linear_(self.out, gain=1.0)

    def forward(self, rows: Tensor) -> Tensor:
        """Map codes [B, L] → vectors [B, E]."""
        codes = rows[:, self.skipped :].long().clamp(0, self.codes - 1)
        has_tokens = (codes > 0).any(dim=1)
        if self.causal:
            codes = self.framed(codes)
        weight = (codes > 0).unsqueeze(2).to(self.tokens.weight.dtype)
        mean = (self.vectors(codes) * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        return self.missing(self.out(mean), has_tokens)

    def framed(self, codes: Tensor) -> Tensor:
        """Put begin before the tokens of each row and end after them: [B, L] → [B, L + 2]."""
        places = torch.arange(codes.shape[1] + 2, device=codes.device)
        count = (codes > 0).sum(dim=1, keepdim=True)
        inner = torch.where(places == count + 1, self.codes + 1, F.pad(codes, (1, 1)))
        return torch.where(places == 0, self.codes, inner)

    def vectors(self, codes: Tensor) -> Tensor:
        """Map codes [B, T] → a vector of each token after the last norm, [B, T, W]."""
        places = torch.arange(codes.shape[1], device=codes.device)
        x = self.tokens(codes)
        x = self.dropout(x if self.positions is None else x + self.positions)
        turns = None
        if self.positions is None:
            turns = rotation(places.unsqueeze(0), self.head_size, x.dtype)
        # filling comes last, so no token before it sees it where attention is causal; a row without
        # a token sees its first place, as a mean over nothing is not a number
        seen = None if self.causal else ((codes > 0) | (places == 0))[:, None, None, :]
        for block in self.blocks:
            x = block(x, seen, turns)
        return self.norm(x)


class Block(nn.Module):
    """Attention and a network of two layers, each added to its input: [B, T, W] → [B, T, W]."""

    def __init__(self, config: TransformerEncoder) -> None:
        super().__init__()
        width = config.width
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, config.heads, config.dropout)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)
        init_linear_(self.inner)
        init_linear_(self.outer, gain=1.0)

    def forward(self, x: Tensor, mask: Tensor | None, turns: Rotation | None = None) -> Tensor:
        """Return the tokens after attention to those of the mask [B, 1, 1, T].

        Without a mask, each sees itself and those before it.
        """
        told = self.attention(self.first(x), mask, causal=mask is None, rotation=turns)
        x = x + self.dropout(told)
        return x + self.dropout(self.outer(F.gelu(self.inner(self.second(x)))))


def smiles_transformer(config: TransformerEncoder, width: int) -> TokenTransformer:
    """Return the encoder of a row of packed bits and tokens, `width` bytes together."""
    return TokenTransformer(config, MOLECULE_CODES, width - PACKED, skipped=PACKED)
