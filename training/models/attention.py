"""Multi-head self-attention by `scaled_dot_product_attention`; flash kernels on hardware with them.

B rows or sequences, T tokens, W width, H heads, D = W / H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.errors import ConfigError
from training.models.inputs import init_linear_
from training.models.lora import merged_weight

Rotation = tuple[Tensor, Tensor]  # cosines and sines, [B, 1, T, D / 2] each
BASE = 10_000.0  # of the wavelengths: the slowest pair turns once in 2 pi times this many positions


def rotation(positions: Tensor, size: int, dtype: torch.dtype) -> Rotation:
    """Return the rotation of each pair of a head's `size` numbers at positions [B, T].

    Angles are computed in float64.

    Source: Su et al. 2021, arXiv:2104.09864, sec. 3.2.
    """
    speeds = BASE ** (
        -torch.arange(size // 2, device=positions.device, dtype=torch.float64) / (size // 2)
    )
    # [B, 1, T, 1] * [D / 2]
    angles = positions.to(torch.float64).unsqueeze(1).unsqueeze(3) * speeds
    return angles.cos().to(dtype), angles.sin().to(dtype)


def turned(x: Tensor, by: Rotation) -> Tensor:
    """Rotate each pair (i, i + D / 2) of queries and keys [..., B, H, T, D] by its angle."""
    # under autocast; else a step of the exported graph
    cos, sin = (part if part.dtype == x.dtype else part.to(x.dtype) for part in by)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class SelfAttention(nn.Module):
    """Multi-head self-attention, in which each token becomes a mixture of visible tokens.

    Nothing is dropped in eval mode.

    Weights are N(0, 1 / W), biases 0: the scores of independent tokens start with variance 1.

    Args:
        width: W, size of a token; a multiple of `heads`.
        heads: H.
        dropout: Share of the attention weights dropped in training.

    Raises:
        ConfigError: `width` is not a multiple of `heads`.

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(
                f"attention needs a width that is a multiple of its heads, got width {width} with"
                f" {heads} heads; change one of them"
            )
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        # A module, so that code that turns dropout off finds it; only its rate is used, its forward
        # is never called.
        self.dropout = nn.Dropout(dropout)
        init_linear_(self.project, gain=1.0)
        init_linear_(self.merge, gain=1.0)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Map tokens [B, T, W] → [B, T, W].

        Args:
            x: Tokens.
            mask: Bool, [T, T], or [B, 1, T, T] for one mask a row; True where token i may see token
                j. Every token must see one.
            causal: Let token i see none after i; together with `mask` both must allow it.
            rotation: From `rotation`: rotates queries and keys by their positions, so that scores
                depend on distances.
        """
        parts = self._by_head(self.project(x), 3)
        query, key = (parts[:2] if rotation is None else turned(parts[:2], rotation)).unbind(0)
        if mask is not None and causal:
            length = x.shape[1]
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        return self._mixed(query, key, parts[2], mask, causal and mask is None)

    def first(self, x: Tensor) -> Tensor:
        """Return only the first token of `forward(x)`, which sees all: [B, T, W] → [B, 1, W]."""
        width = x.shape[2]
        weight, bias = merged_weight(self.project), self.project.bias
        query = F.linear(x[:, :1], weight[:width], bias[:width])
        others = F.linear(x, weight[width:], bias[width:])
        key, value = self._by_head(others, 2).unbind(0)
        return self._mixed(self._by_head(query, 1)[0], key, value)

    def _by_head(self, projected: Tensor, parts: int) -> Tensor:
        """Reshape [B, T, P W] → [P, B, H, T, D]."""
        return projected.unflatten(2, (parts, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def _mixed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Return for each query [B, H, Q, D] the mixture of values [B, H, T, D], [B, Q, W]."""
        # the function itself drops in eval mode too
        rate = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=rate, is_causal=causal
        )
        return self.merge(mixed.transpose(1, 2).flatten(2))
