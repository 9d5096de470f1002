"""Encoders of windows of a series: scaled [B, 2C, L] → vectors [B, E], each row for itself.

The first C channels are values, 0 where they are unknown; the others are 1 where they are known.
The newest step is the last. Trees get statistics of the window instead. Shapes: B rows, C
channels, L steps, W width of the network, E size of the vector, F columns for trees.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.series_config import (
    GruEncoder,
    SeriesEncoder,
    SeriesTransformerEncoder,
    TcnEncoder,
)
from training.models.attention import SelfAttention
from training.models.inputs import init_linear_


def build_series_encoder(config: SeriesEncoder, dims: tuple[int, ...]) -> nn.Module:
    """Return the module [B, 2C, L] → [B, E] of a declared encoder."""
    channels, length = dims
    if isinstance(config, TcnEncoder):
        return Tcn(config, channels, length)
    if isinstance(config, GruEncoder):
        return Gru(config, channels)
    return SeriesTransformer(config, channels, length)


class Tcn(nn.Module):
    """Residual causal convolutions of dilation 1, 2, 4 …, then the last step and the mean of all.

    The convolutions are as many as it takes for the last step to see the whole window.

    Source: Bai, Kolter and Koltun 2018, arXiv:1803.01271, sec. 3, with layer norm.
    """

    def __init__(self, config: TcnEncoder, channels: int, length: int) -> None:
        super().__init__()
        reach = (length - 1) / (config.kernel - 1) + 1  # in steps of the first convolution
        depth = max(1, math.ceil(math.log2(reach)))
        self.enter = _linear(channels, config.width)
        self.blocks = nn.ModuleList(
            CausalBlock(config.width, config.kernel, 2**i, config.dropout) for i in range(depth)
        )
        self.out = _linear(2 * config.width, config.size)

    def forward(self, windows: Tensor) -> Tensor:
        """Map windows [B, 2C, L] → vectors [B, E]."""
        x = self.enter(windows.transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.out(torch.cat([x[:, -1], x.mean(1)], dim=1))


class CausalBlock(nn.Module):
    """x + map(GELU(convolution(norm(x)))), in which a step sees itself and earlier ones alone."""

    def __init__(self, width: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.reach = (kernel - 1) * dilation
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, kernel, dilation=dilation)
        self.mix = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.conv.weight, std=math.sqrt(2.0 / (kernel * width)))
        nn.init.zeros_(self.conv.bias)
        init_linear_(self.mix, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map steps [B, L, W] → [B, L, W]."""
        past = F.pad(self.norm(x).transpose(1, 2), (self.reach, 0))
        y = F.gelu(self.conv(past)).transpose(1, 2)
        return x + self.dropout(self.mix(y))


class Gru(nn.Module):
    """Gated recurrent layers; the vector is made of the state after the newest step.

    Written with linear maps, whose program needs no operator of its own, with results of
    `torch.nn.GRU`.

    Source: Cho et al. 2014, arXiv:1406.1078, in the form of torch.nn.GRU.
    """

    def __init__(self, config: GruEncoder, channels: int) -> None:
        super().__init__()
        self.width = config.width
        widths = [channels, *[config.width] * (config.depth - 1)]
        self.reads = nn.ModuleList(nn.Linear(w, 3 * config.width) for w in widths)
        self.hears = nn.ModuleList(nn.Linear(config.width, 3 * config.width) for _ in widths)
        for layer in (*self.reads, *self.hears):
            init_linear_(layer, gain=1.0)
        self.dropout = nn.Dropout(config.dropout)
        self.out = _linear(config.width, config.size)

    def forward(self, windows: Tensor) -> Tensor:
        """Map windows [B, 2C, L] → vectors [B, E]."""
        x = windows.transpose(1, 2)
        for reads, hears in zip(self.reads, self.hears, strict=True):
            x = self.dropout(self._states(reads(x), hears))
        return self.out(x[:, -1])

    def _states(self, given: Tensor, hears: nn.Module) -> Tensor:
        """Map what steps say [B, L, 3W] → the states after them [B, L, W]."""
        state = torch.zeros_like(given[:, 0, : self.width])
        states = []
        for step in given.unbind(1):
            reset, update, new = step.chunk(3, dim=1)
            heard_reset, heard_update, heard_new = hears(state).chunk(3, dim=1)
            keep = torch.sigmoid(update + heard_update)
            found = torch.tanh(new + torch.sigmoid(reset + heard_reset) * heard_new)
            state = found + keep * (state - found)
            states.append(state)
        return torch.stack(states, dim=1)


class SeriesTransformer(nn.Module):
    """Attention between the known steps and one learned token, which the vector is made of.

    Steps have learned positions. A step without any known value is seen by none.
    """

    def __init__(self, config: SeriesTransformerEncoder, channels: int, length: int) -> None:
        super().__init__()
        self.enter = _linear(channels, config.width)
        self.positions = nn.Parameter(torch.randn(length, config.width) * 0.1)
        self.token = nn.Parameter(torch.randn(config.width) * 0.1)
        self.blocks = nn.ModuleList(
            AttentionBlock(config.width, config.heads, config.dropout) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)
        self.out = _linear(config.width, config.size)

    def forward(self, windows: Tensor) -> Tensor:
        """Map windows [B, 2C, L] → vectors [B, E]."""
        steps = self.enter(windows.transpose(1, 2)) + self.positions
        token = self.token.expand(len(windows), 1, -1)
        x = torch.cat([token, steps], dim=1)
        known = windows.chunk(2, dim=1)[1].amax(1) > 0.5  # [B, L]
        seen = torch.cat([torch.ones_like(known[:, :1]), known], dim=1)
        mask = seen[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        for block in self.blocks:
            x = block(x, mask)
        return self.out(self.norm(x[:, 0]))


class AttentionBlock(nn.Module):
    """Attention and a hidden layer, each on the norm of its input and added to it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = SelfAttention(width, heads, dropout)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        init_linear_(self.up)
        init_linear_(self.down, gain=0.5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map tokens [B, T, W] → [B, T, W]; `mask` bool [B, 1, T, T], see `SelfAttention`."""
        x = x + self.attention(self.norms[0](x), mask)
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)))))


def _linear(fan_in: int, fan_out: int) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out)
    init_linear_(layer, gain=1.0)
    return layer


def series_summary(windows: Tensor) -> Tensor:
    """Return statistics of windows [B, 2C, L] for trees and baselines, float [B, F].

    Of each channel over its known steps: the last value, its difference from the one before, and
    the share of known steps; then, of the whole window and of its last quarter, mean, standard
    deviation, least and largest value and the slope of a line per step. 0 where nothing is known.
    """
    # in float64: trees compare, and other batches may round float32 in another way
    values, flags = windows.double().chunk(2, dim=1)
    known = flags > 0.5
    length = values.shape[2]
    places = torch.arange(1, length + 1, device=values.device)
    last = torch.where(known, places, 0).amax(2, keepdim=True)
    earlier = known & (places < last)
    before = torch.where(earlier, places, 0).amax(2, keepdim=True)
    newest = _at(values, last)
    change = torch.where(before > 0, newest - _at(values, before), 0.0)
    share = known.double().mean(2, keepdim=True)
    quarter = max(2, length // 4)
    spans = [
        _span(values[:, :, begin:], known[:, :, begin:])
        for begin in dict.fromkeys((0, length - quarter))
    ]
    return torch.cat([newest, change, share, *spans], dim=2).flatten(1).float()


def summary_columns(channels: tuple[str, ...], length: int) -> list[str]:
    """Return the names of the columns of `series_summary`, by channel."""
    quarter = max(2, length // 4)
    spans = {length: "", **({quarter: f" of {quarter}"} if quarter < length else {})}
    parts = ("mean", "deviation", "least", "largest", "slope")
    kinds = ["last", "change", "known", *(f"{p}{span}" for span in spans.values() for p in parts)]
    return [f"{channel} {kind}" for channel in channels for kind in kinds]


def _at(values: Tensor, place: Tensor) -> Tensor:
    """Return the value [B, C, 1] at a place from 1; 0 at place 0."""
    found = values.gather(2, (place - 1).clamp_min(0))
    return torch.where(place > 0, found, 0.0)


def _span(values: Tensor, known: Tensor) -> Tensor:
    """Return mean, deviation, least, largest and slope of known values [B, C, L] as [B, C, 5]."""
    number = known.sum(2, keepdim=True).clamp_min(1)
    any_known = known.any(2, keepdim=True)

    def mean(of: Tensor) -> Tensor:
        return torch.where(known, of, 0.0).sum(2, keepdim=True) / number

    times = torch.arange(values.shape[2], device=values.device, dtype=values.dtype)
    center, middle = mean(values), mean(times.expand_as(values))
    apart, since = values - center, times - middle
    spread, width = mean(apart * apart), mean(since * since)
    slope = torch.where(width > 0, mean(apart * since) / width.clamp_min(1e-12), 0.0)
    low = torch.where(known, values, torch.inf).amin(2, keepdim=True)
    high = torch.where(known, values, -torch.inf).amax(2, keepdim=True)
    found = torch.cat([center, spread.sqrt(), low, high, slope], dim=2)
    return torch.where(any_known, found, 0.0)
