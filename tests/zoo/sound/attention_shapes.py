"""Shapes turned about in the right ways: tiles of a map, heads, time first, layers mixed by learned shares."""

import torch
from einops import rearrange
from torch import nn


def tiles(field, side):
    """Square tiles of maps: [B, H, W, C] to [B * tiles, side, side, C]."""
    rows, height, width, channels = field.shape
    down, across = height // side, width // side
    cut = field.reshape(rows, down, side, across, side, channels).transpose(2, 3)
    return cut.reshape(rows * down * across, side, side, channels)


class StationAttention(nn.Module):
    """Weather stations look at one another."""

    def __init__(self, width, heads=4, drop=0.1):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(drop)
        self.asks_and_keys, self.values = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width)
        self.join = nn.Linear(width, width)

    def forward(self, stations):
        rows, count, width = stations.shape
        asks, keys = self.asks_and_keys(stations).view(rows, count, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        values = self.values(stations).view(rows, count, self.heads, -1).transpose(1, 2)
        nearness = torch.einsum("bhqd,bhkd->bhqk", asks, keys) / asks.shape[-1] ** 0.5
        shares = self.drop(nearness.softmax(dim=-1))
        return self.join((shares @ values).transpose(1, 2).reshape(rows, count, width))


class Shares(nn.Module):
    """One of several layers' outputs, mixed by learned shares that sum to one."""

    def __init__(self, layers):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.register_buffer("depth", torch.linspace(0, 1, layers))

    def forward(self, outputs):
        shares = torch.softmax(self.scores - self.depth, dim=0)
        return torch.einsum("l,lbtc->btc", shares, torch.stack(outputs))


class Readings(nn.Module):
    """A forecast from readings [B, T, C] by a recurrent layer that wants time first."""

    def __init__(self, width, hours):
        super().__init__()
        self.past = nn.GRU(width, width)
        self.forecast = nn.Linear(width * hours, 1)

    def forward(self, readings):
        count = readings.size(0)
        hourly = readings.transpose(0, 1)
        seen, _ = self.past(hourly)
        seen = seen.transpose(0, 1).reshape(count, -1)
        return self.forecast(seen)


@torch.inference_mode()
def likely_kinds(model, photograph, kinds=3):
    scores = model(photograph[None])[0]
    return scores.softmax(dim=0).topk(kinds)


def to_heads(stations, heads):
    return rearrange(stations, "row station (head part) -> row head station part", head=heads)
