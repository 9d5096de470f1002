"""Numeric columns of the exported program: raw values to the network's numeric input.

Shapes: B rows, D numeric columns, Q quantile-mapped columns, P knots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from schemas.records import NumericStats, Statistics
from training.data.arrays.apply import (
    LARGEST_SQUARED,
    SMOOTH_BOUND,
    clip_bounds,
    quantile_points,
    rounded_columns,
)


class NumericBlock(nn.Module):
    """Numeric block exactly as in `training.data.arrays.apply.transform_numeric`: float32 [B,
    width].
    """

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        stats = statistics.numeric
        self.register_buffer("fill", _column(np.nan if s.fill is None else s.fill for s in stats))
        self.register_buffer("center", _column(s.center for s in stats))
        self.register_buffer("scale", _column(s.scale for s in stats))
        self.register_buffer("rounded", torch.from_numpy(rounded_columns(statistics)))
        self.register_buffer("bound", torch.from_numpy(clip_bounds(statistics)))
        low, high = (
            _column((s.min, s.max)[end] if s.bounded else (-np.inf, np.inf)[end] for s in stats)
            for end in (0, 1)
        )
        is_bounded = any(s.bounded for s in stats)
        self.register_buffer("low", low if is_bounded else None)
        self.register_buffer("high", high if is_bounded else None)
        self.register_buffer(
            "indicated",
            torch.tensor([i for i, s in enumerate(stats) if s.indicator], dtype=torch.int64),
        )
        mapped = [i for i, s in enumerate(stats) if s.method == "quantile"]
        self.register_buffer("mapped", torch.tensor(mapped, dtype=torch.int64))
        self.quantile_map = QuantileMap([stats[i] for i in mapped]) if mapped else None
        smooth = torch.tensor([s.method == "smooth" for s in stats])
        self.register_buffer("smooth", smooth if smooth.any() else None)

    def forward(self, values: Tensor) -> Tensor:
        """Fill, scale and clip raw float64 [B, D] with NaN for null; append the null indicators."""
        nulls = torch.isnan(values)
        values = torch.where(self.rounded, values.float().double(), values)
        if self.low is not None:
            values = torch.maximum(torch.minimum(values, self.high), self.low)
        scaled = (torch.where(nulls, self.fill, values) - self.center) / self.scale
        if self.quantile_map is not None:
            scaled = scaled.index_copy(
                1, self.mapped, self.quantile_map(scaled.index_select(1, self.mapped))
            )
        if self.smooth is not None:
            scaled = torch.where(self.smooth, _smoothly_clipped(scaled), scaled)
        clipped = torch.maximum(torch.minimum(scaled, self.bound), -self.bound).float()
        return torch.cat([clipped, nulls.index_select(1, self.indicated).float()], dim=1)


def _smoothly_clipped(values: Tensor) -> Tensor:
    """Repeat `training.data.arrays.apply.smoothly_clipped`, operation by operation."""
    bounded = values.clamp(-LARGEST_SQUARED, LARGEST_SQUARED)
    part = bounded / SMOOTH_BOUND
    return bounded / torch.sqrt(1 + part * part)


class QuantileMap(nn.Module):
    """Piecewise linear interpolation of several columns, flat outside the knots, like
    `numpy.interp`.

    Rows of knots are padded at the right with infinity and the last score, so that the slope after
    the last knot is 0.
    """

    def __init__(self, columns: list[NumericStats]) -> None:
        super().__init__()
        points = [quantile_points(column) for column in columns]
        width = 1 + max(len(knots) for knots, _ in points)
        self.register_buffer(
            "knots",
            torch.tensor(
                np.stack(
                    [np.pad(k, (0, width - len(k)), constant_values=np.inf) for k, _ in points]
                )
            ),
        )
        self.register_buffer(
            "scores",
            torch.tensor(
                np.stack([np.pad(s, (0, width - len(s)), mode="edge") for _, s in points])
            ),
        )

    def forward(self, values: Tensor) -> Tensor:
        """Map float64 [B, Q] to normal scores [B, Q]; NaN stays NaN."""
        # [B, Q] -> [Q, B]: searchsorted wants a row of values for each row of knots
        values = values.t().contiguous()
        left = torch.searchsorted(self.knots, values, right=True) - 1
        low, high = (
            left.clamp(0, self.knots.shape[1] - 2),
            (left + 1).clamp(1, self.knots.shape[1] - 1),
        )
        x0, x1 = self.knots.gather(1, low), self.knots.gather(1, high)
        y0, y1 = self.scores.gather(1, low), self.scores.gather(1, high)
        # a value on a knot gets its score: a slope between denormal knots is infinite, and inf * 0
        # is NaN
        between = torch.where(values == x0, y0, (y1 - y0) / (x1 - x0) * (values - x0) + y0)
        return torch.where(values < self.knots[:, :1], self.scores[:, :1], between).t()


def _column(values: Any) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)
