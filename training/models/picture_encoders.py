"""Encoders of pictures: convolutions or residual blocks, averaged over patches, one linear map.

Norms are of groups and strides stand in for pooling, so that a row's vector does not depend on its
batch, and gradients are deterministic on every device. Shapes: B rows, C channels, H and W of a
picture, E size of the vector.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.encoder_config import CnnEncoder, ResnetEncoder
from training.models.cnn import Stage, averages, norm, patch_of
from training.models.inputs import init_linear_


def build_picture_encoder(
    config: CnnEncoder | ResnetEncoder, dims: tuple[int, ...], nullable: bool = False
) -> PictureEncoder:
    """Return the module [B, H, W] or [B, C, H, W] → [B, E] of a declared encoder.

    Args:
        config: of the encoder.
        dims: of a picture.
        nullable: a row may have no picture; that is learned like a feature.
    """
    first = 1 if len(dims) == 2 else dims[0]
    if isinstance(config, ResnetEncoder):
        stages = residual_stages(first, config)
    else:
        pairs = zip((first, *config.channels[:-1]), config.channels, strict=True)
        stages = nn.Sequential(*(Stage(a, b) for a, b in pairs))
    return PictureEncoder(stages, config, dims[-2:], nullable)


class PictureEncoder(nn.Module):
    """Stages that halve a picture, averages over patches, and a linear map to the vector.

    Where a row may have none, the map has one more input: 1 for no picture, whose other inputs are
    then 0. Its weights are the learned vector of no picture.
    """

    def __init__(
        self,
        stages: nn.Sequential,
        config: CnnEncoder | ResnetEncoder,
        sides: tuple[int, ...],
        nullable: bool,
    ) -> None:
        super().__init__()
        self.stages = stages
        height, width = sides
        for _ in config.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.patch = patch_of(height, width)
        positions = math.ceil(height / self.patch[0]) * math.ceil(width / self.patch[1])
        self.out = nn.Linear(config.channels[-1] * positions + nullable, config.size)
        init_linear_(self.out)

    def forward(self, pictures: Tensor, none: Tensor | None = None) -> Tensor:
        """Map pictures [B, H, W] or [B, C, H, W] → vectors [B, E].

        Args:
            pictures: scaled.
            none: bool [B], True where a row has no picture; given where that may be.
        """
        x = self.stages(pictures if pictures.ndim == 4 else pictures.unsqueeze(1))
        x = averages(x, self.patch).flatten(1)
        if none is not None:
            flag = none.unsqueeze(1)
            x = torch.cat([torch.where(flag, torch.zeros_like(x), x), flag.to(x.dtype)], dim=1)
        return self.out(x)


def without_picture(stored: Tensor) -> Tensor:
    """Return True for rows whose stored picture is all zeros, which none that is decoded is [B]."""
    return (stored == 0).flatten(1).all(dim=1)


def residual_stages(channels: int, config: ResnetEncoder) -> nn.Sequential:
    """Return a first convolution and the stages of a residual network; each halves the picture.

    Source: He et al. (2016), arXiv 1512.03385.
    """
    stem = convolution(channels, config.channels[0])
    stages: list[nn.Module] = [nn.Sequential(stem, norm(config.channels[0]), nn.GELU())]
    pairs = zip((config.channels[0], *config.channels[:-1]), config.channels, strict=True)
    for a, b in pairs:
        others = (Residual(b, b, stride=1) for _ in range(config.blocks - 1))
        stages.append(nn.Sequential(Residual(a, b, stride=2), *others))
    return nn.Sequential(*stages)


class Residual(nn.Module):
    """Two 3x3 convolutions with group norm, added to the input or a 1x1 convolution of it."""

    def __init__(self, fan_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(fan_in, channels, stride), norm(channels), nn.GELU())
        self.second = nn.Sequential(convolution(channels, channels), norm(channels))
        same = fan_in == channels and stride == 1
        self.skip = None if same else convolution(fan_in, channels, stride, side=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] → [B, channels, H / stride, W / stride], rounded up."""
        return F.gelu(self.second(self.first(x)) + (x if self.skip is None else self.skip(x)))


def convolution(fan_in: int, channels: int, stride: int = 1, side: int = 3) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size, or halves it with stride 2."""
    made = nn.Conv2d(fan_in, channels, side, stride=stride, padding=side // 2, bias=False)
    init_linear_(made)
    return made
