"""FT-Transformer: every column becomes a token, and a transformer attends to all of them.

B rows, Dn numeric columns, Dc categorical columns, T tokens (all columns and the class token), W
width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import FtTransformerModel
from training.models.attention import SelfAttention
from training.models.inputs import CategoryTable, Head, init_linear_
from training.models.shape import ModelShape


class Tokenizer(nn.Module):
    """Convert a row to tokens: the class token, then one token per column.

    A numeric column gives `x_j w_j + b_j`, a categorical one `e_j[code] + b_j`, a tensor `W_j x_j +
    b_j`. Weights and embeddings are N(0, 1 / W), as are the biases of columns, which distinguish
    the columns. Embeddings of codes that no train row had are zero, so that an unknown category is
    the column's bias alone.

    Source: Gorishniy et al. 2021, arXiv:2106.11959, sec. 3.3.
    """

    def __init__(self, shape: ModelShape, width: int) -> None:
        super().__init__()
        self.class_token = _normal(1, width)
        self.weight = _normal(shape.numeric, width) if shape.numeric else None
        self.bias = (
            _normal(shape.numeric + len(shape.categories), width)
            if shape.numeric or shape.categories
            else None
        )
        self.categories = (
            CategoryTable(shape, width, 1 / math.sqrt(width)) if shape.categories else None
        )
        self.tensor_keys = tuple(shape.tensors)
        self.tensors = nn.ModuleList(
            nn.Linear(math.prod(dims), width) for dims in shape.tensors.values()
        )
        for layer in self.tensors:
            init_linear_(layer, gain=1.0)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → tokens [B, T, W]."""
        columns = []
        if self.weight is not None:
            # [B, Dn, 1] * [Dn, W] -> [B, Dn, W]
            columns.append(batch["numeric"].unsqueeze(2) * self.weight)
        if self.categories is not None:
            columns.append(self.categories(batch["categorical"]))
        tokens = [torch.cat(columns, dim=1) + self.bias] if columns else []
        tokens += [
            layer(batch[key].flatten(1)).unsqueeze(1)
            for key, layer in zip(self.tensor_keys, self.tensors, strict=True)
        ]
        rows = tokens[0].shape[0]
        return torch.cat([self.class_token.expand(rows, 1, -1), *tokens], dim=1)


def _normal(rows: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, width) / math.sqrt(width))


class FeedForward(nn.Module):
    """Compute `contract(dropout(value * act(gate)))`, `value, gate = expand(x)`: ReGLU or GEGLU.

    Source: Shazeer 2020, arXiv:2002.05202, eq. 6.
    """

    def __init__(self, config: FtTransformerModel) -> None:
        super().__init__()
        hidden = max(1, round(config.width * config.expansion))
        self.expand = nn.Linear(config.width, 2 * hidden)
        self.contract = nn.Linear(hidden, config.width)
        self.activation = nn.ReLU() if config.activation == "reglu" else nn.GELU()
        self.dropout = nn.Dropout(config.dropout)
        init_linear_(self.expand, gain=1.0)
        init_linear_(self.contract, gain=1 / math.sqrt(config.depth))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, W] → [B, T, W]."""
        value, gate = self.expand(x).chunk(2, dim=2)
        return self.contract(self.dropout(value * self.activation(gate)))


class Block(nn.Module):
    """Pre-norm block: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.

    The first block's tokens enter attention without a norm, as in the source. The last block
    computes only the class token, since the others are not used after it. The last layers of both
    parts are scaled by 1/√depth, so that the sum over blocks keeps its scale.
    """

    def __init__(self, config: FtTransformerModel, first: bool, last: bool) -> None:
        super().__init__()
        self.last = last
        self.attention_norm = nn.Identity() if first else nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout)
        init_linear_(self.attention.merge, gain=1 / math.sqrt(config.depth))
        self.forward_norm = nn.LayerNorm(config.width)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, W] → [B, T, W], in the last block to [B, 1, W]."""
        normed = self.attention_norm(x)
        x = (
            x[:, :1] + self.dropout(self.attention.first(normed))
            if self.last
            else x + self.dropout(self.attention(normed))
        )
        return x + self.dropout(self.feed_forward(self.forward_norm(x)))


class FtTransformer(nn.Module):
    """Tokens through `depth` blocks; then norm, ReLU and head on the class token.

    Source: Gorishniy et al. 2021, arXiv:2106.11959, sec. 3.3.
    """

    def __init__(self, shape: ModelShape, config: FtTransformerModel) -> None:
        super().__init__()
        self.tokens = Tokenizer(shape, config.width)
        self.blocks = nn.Sequential(
            *(
                Block(config, first=index == 0, last=index == config.depth - 1)
                for index in range(config.depth)
            )
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = Head(config.width, shape)

    def ordered_layers(self) -> list[nn.Module | tuple[nn.Module, ...]]:
        """Return layers from input to output: tokens, each block, the last norm and the head."""
        return [self.tokens, *self.blocks, (self.norm, self.head)]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K]."""
        return self.head(F.relu(self.norm(self.blocks(self.tokens(batch))[:, 0])))
