"""Shapes turned about in the right ways: windows, heads, time first, pooled attention, scalar mixes."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn


def window_partition(x, w):
    B, H, W, C = x.shape
    x = x.view(B, H // w, w, W // w, w, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, C)


class Attention(nn.Module):
    def __init__(self, dim, heads=8, attn_drop=0.1):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = self.attn_drop((q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1))
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class ScalarMix(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.register_buffer("positions", torch.arange(layers))

    def forward(self, states):
        mix = F.softmax(self.weights, dim=0)
        return sum(w * s for w, s in zip(mix, states, strict=True))


class TimeFirst(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm = nn.LSTM(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        batch = x.size(0)
        x = x.transpose(0, 1)
        y, _ = self.lstm(x)
        y = y.transpose(0, 1).reshape(batch, -1)
        y = y.view(batch, x.size(0), -1).mean(1)
        return self.out(y)


def classify(model, image):
    with torch.no_grad():
        output = model(image.unsqueeze(0))
    return torch.nn.functional.softmax(output[0], dim=0).topk(5)


def heads_first(x, h):
    return rearrange(x, "b n (h d) -> b h n d", h=h)
