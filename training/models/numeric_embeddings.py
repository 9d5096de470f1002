"""Embeddings of numeric columns: periodic with a dense connection, and piecewise linear.

Shapes: B rows, D columns, F frequencies, T bins of the column with the most, E embedding size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from schemas.errors import ConfigError
from schemas.optimizer_config import Factor

FREQUENCIES, MIXTURES = 16, 3
RATE = 0.1  # of the learning rate, for all its parameters


class PbldEmbedding(nn.Module):
    """PBLD: each column gives three mixtures of 16 cosines and itself, [B, D] -> [B, 4 D].

    `x -> (W cos(2 pi f x + b) + c, x)` with f, b, W, c for each column. f ~ N(0, std^2), b ~ U(-pi,
    pi), W and c ~ U(-1, 1) / 4.

    Source: Holzmüller et al. 2024, arXiv:2407.04491, sec. 3.2.
    """

    def __init__(self, columns: int, frequency_std: float) -> None:
        super().__init__()
        self.widths = [1 + MIXTURES] * columns
        bound = 1 / math.sqrt(FREQUENCIES)
        self.frequency = nn.Parameter(torch.randn(columns, FREQUENCIES) * frequency_std)
        self.phase = nn.Parameter((2 * torch.rand(columns, FREQUENCIES) - 1) * math.pi)
        self.mixture = nn.Parameter((2 * torch.rand(columns, FREQUENCIES, MIXTURES) - 1) * bound)
        self.offset = nn.Parameter((2 * torch.rand(columns, MIXTURES) - 1) * bound)

    def parameter_factors(self) -> dict[nn.Parameter, Factor]:
        """Return the factor of each parameter: a tenth of rate and of decay."""
        return {p: Factor(RATE, RATE) for p in self.parameters()}

    def forward(self, values: Tensor) -> Tensor:
        """Map scaled values [B, D] -> [B, 4 D]."""
        # [B, D, 1] * [D, F] -> [B, D, F]
        cosines = torch.cos(2 * math.pi * values.unsqueeze(2) * self.frequency + self.phase)
        mixed = torch.einsum("bdf,dfe->bde", cosines, self.mixture) + self.offset
        return torch.cat([mixed, values.unsqueeze(2)], dim=2).flatten(1)


class PiecewiseLinearEmbedding(nn.Module):
    """Piecewise-linear embedding: [B, D] -> [B, D E].

    A column's bins are filled one after another: `t_i = (x - e_i) / (e_{i+1} - e_i)`, at least 0
    but in the first bin, at most 1 but in the last. The embedding is `a x + c + V t` with a, c, V
    for each column, V = 0 at first: it starts linear. a and c ~ U(-1, 1) / sqrt(E).

    Source: Gorishniy et al. 2022, arXiv:2203.05556, sec. 3.2; the linear part as in Gorishniy et
        al. 2024, arXiv:2410.24210, and the package rtdl_num_embeddings, version B.

    Raises:
        ConfigError: a column has fewer than two edges, or edges that do not rise.
    """

    left: Tensor
    inverse_width: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, bins: tuple[tuple[float, ...], ...], size: int) -> None:
        super().__init__()
        self.widths = [size] * len(bins)
        for name, value in zip(("left", "inverse_width", "low", "high"), _edges(bins), strict=True):
            self.register_buffer(name, value, persistent=False)
        bound = 1 / math.sqrt(size)
        self.slope = nn.Parameter((2 * torch.rand(len(bins), size) - 1) * bound)
        self.offset = nn.Parameter((2 * torch.rand(len(bins), size) - 1) * bound)
        self.pieces = nn.Parameter(torch.zeros(*self.left.shape, size))

    def parameter_factors(self) -> dict[nn.Parameter, Factor]:
        """Return which parameters decay: the pieces."""
        return {self.pieces: Factor(1.0, 1.0)}

    def encode(self, values: Tensor) -> Tensor:
        """Map scaled values [B, D] -> [B, D, T], zeros where a column has fewer bins."""
        filled = (values.unsqueeze(2) - self.left) * self.inverse_width
        return torch.minimum(torch.maximum(filled, self.low), self.high)

    def forward(self, values: Tensor) -> Tensor:
        """Map scaled values [B, D] -> [B, D E]."""
        linear = values.unsqueeze(2) * self.slope + self.offset
        return (linear + torch.einsum("bdt,dte->bde", self.encode(values), self.pieces)).flatten(1)


def _edges(bins: tuple[tuple[float, ...], ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return left edge, 1 / width, and lower and upper bound of each bin, [D, T] each."""
    most = max(len(edges) for edges in bins) - 1
    left, inverse_width, low, high = (torch.zeros(len(bins), max(1, most)) for _ in range(4))
    for i, edges in enumerate(bins):
        sides = torch.tensor(edges, dtype=torch.float64)
        widths = sides.diff()
        if len(sides) < 2 or not bool((widths > 0).all()):
            raise ConfigError(
                f"expected at least two rising edges of bins for each numeric column, got"
                f" {list(edges[:5])} for column {i}; set model.bins to null"
            )
        count = len(widths)
        left[i, :count], inverse_width[i, :count] = sides[:-1].float(), (1 / widths).float()
        high[i, :count] = 1.0
        # beyond the outer edges the column stays linear
        low[i, 0], high[i, count - 1] = -torch.inf, torch.inf
    return left, inverse_width, low, high
