"""Networks whose columns are tokens that are padded to a fixed length: a sound mask for each way to
give one, and the same the wrong way round.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.shape import ModelShape

LENGTH, WIDTH = 16, 32


class Padded(nn.Module):
    """Attends to columns alone, by key_padding_mask."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.columns = shape.numeric
        self.token = nn.Parameter(torch.randn(shape.numeric, WIDTH) * 0.5)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.5)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Sequential(
            nn.Linear(shape.numeric * WIDTH, 64), nn.ReLU(), nn.Linear(64, shape.outputs)
        )
        self.register_buffer("real", torch.arange(LENGTH) < shape.numeric)
        for parameter in self.unused():
            parameter.requires_grad_(False)

    def unused(self) -> list[nn.Parameter]:
        """Parameters of the other way to attend."""
        return list(self.mix.parameters())

    def attended(self, tokens: Tensor, real: Tensor) -> Tensor:
        return self.attention(tokens, tokens, tokens, key_padding_mask=~real, need_weights=False)[0]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = (
            F.pad(batch["numeric"].unsqueeze(2) * self.token, (0, 0, 0, LENGTH - self.columns))
            + self.place
        )
        tokens = tokens + self.attended(tokens, self.real.expand(tokens.shape[0], -1))
        return self.head(tokens[:, : self.columns].flatten(1))


class PaddedTurned(Padded):
    def attended(self, tokens: Tensor, real: Tensor) -> Tensor:
        return super().attended(tokens, ~real)


class Scaled(Padded):
    """The same by scaled_dot_product_attention, in two heads."""

    def unused(self) -> list[nn.Parameter]:
        return list(self.attention.parameters())

    def attended(self, tokens: Tensor, real: Tensor) -> Tensor:
        query, key, value = (
            t.unflatten(2, (2, -1)).transpose(1, 2) for t in self.mix(tokens).chunk(3, 2)
        )
        return self.weighed(query, key, value, real[:, None, None, :]).transpose(1, 2).flatten(2)

    def weighed(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=real)


class ScaledTurned(Scaled):
    def weighed(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        return super().weighed(query, key, value, ~real)


class ByHand(Scaled):
    """The same by a softmax of one's own."""

    def weighed(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        return (
            F.dropout(scores.masked_fill(~real, float("-inf")).softmax(-1), 0.1, self.training)
            @ value
        )


class ByHandTurned(ByHand):
    def weighed(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        return super().weighed(query, key, value, ~real)


class InNames(Scaled):
    """The same with arguments by name, and keys and values of fewer heads than the queries."""

    def weighed(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        by_hand = F.dropout(
            input=torch.softmax(input=query @ key.transpose(2, 3), dim=-1),
            p=0.1,
            training=self.training,
        )
        mixed = torch.matmul(input=by_hand, other=value)
        mask = real.expand(-1, -1, query.shape[2], -1).repeat(1, 2, 1, 1)
        return mixed + F.scaled_dot_product_attention(
            query=query, key=key[:, :1], value=value[:, :1], attn_mask=mask, enable_gqa=True
        )
