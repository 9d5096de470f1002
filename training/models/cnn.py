"""Small convolutional network for one image-shaped tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import CnnModel
from schemas.errors import ConfigError
from training.models.inputs import Head, RowVector, init_linear_
from training.models.shape import ModelShape

MAX_SIDE = 8  # the last stage is averaged to at most 8 x 8 positions before the hidden layer


def image_shape(shape: ModelShape) -> tuple[str, tuple[int, int, int]]:
    """Return batch key and (channels, height, width) of the only tensor.

    Raises:
        ConfigError: there is not exactly one tensor, or it is not 2-d or 3-d.
    """
    if len(shape.tensors) != 1:
        raise ConfigError(
            f"model.kind cnn needs exactly one tensor feature, the data have {len(shape.tensors)}"
            f" ({', '.join(shape.tensors) or 'none'}); use mlp or resmlp, or drop the others"
        )
    key, dims = next(iter(shape.tensors.items()))
    if len(dims) not in (2, 3):
        raise ConfigError(
            "model.kind cnn needs shape [height, width] or [channels, height, width],"
            f" {key.removeprefix('tensor_')} has {list(dims)}; declare its shape so, or use mlp"
        )
    if key in shape.nullable:
        raise ConfigError(
            f"model.kind cnn reads the picture itself, and train rows have none in"
            f" {key.removeprefix('tensor_')!r}; use another kind, such as realmlp, whose encoder"
            " learns what no picture means"
        )
    return key, (1, *dims) if len(dims) == 2 else dims  # type: ignore[return-value]


def norm(channels: int) -> nn.GroupNorm:
    """Return a norm of at most 8 groups of channels."""
    return nn.GroupNorm(math.gcd(channels, 8), channels)


class Stage(nn.Sequential):
    """Two 3x3 convolutions with group norm and GELU; the second has stride 2.

    It uses a stride, not a pooling layer: its gradient is deterministic on every device. It uses
    group, not batch norm: a row's output does not depend on the rest of its batch, so that one
    process equals many.
    """

    def __init__(self, fan_in: int, channels: int) -> None:
        first = nn.Conv2d(fan_in, channels, 3, padding=1, bias=False)
        second = nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False)
        init_linear_(first)
        init_linear_(second)
        super().__init__(first, norm(channels), nn.GELU(), second, norm(channels), nn.GELU())


class Cnn(nn.Module):
    """Stages that halve the image, a hidden layer over positions and other features, the head."""

    def __init__(self, shape: ModelShape, config: CnnModel) -> None:
        super().__init__()
        self.key, (channels, height, width) = image_shape(shape)
        self.stages = nn.Sequential(
            *(
                Stage(a, b)
                for a, b in zip((channels, *config.channels[:-1]), config.channels, strict=True)
            )
        )
        for _ in config.channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.patch = patch_of(height, width)
        positions = math.ceil(height / self.patch[0]) * math.ceil(width / self.patch[1])
        others = RowVector(shape, tensors=False)
        self.others = others if others.width else None
        self.hidden = nn.Linear(config.channels[-1] * positions + others.width, config.hidden)
        init_linear_(self.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.head = Head(config.hidden, shape)

    def ordered_layers(self) -> list[nn.Module | tuple[nn.Module, ...]]:
        """Return layers from input to output.

        They are the first stage with the row's other features, the other stages, the hidden layer,
        the head.
        """
        first = self.stages[0] if self.others is None else (self.stages[0], self.others)
        return [first, *self.stages[1:], self.hidden, self.head]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K]."""
        image = batch[self.key]
        x = self.stages(image if image.ndim == 4 else image.unsqueeze(1))
        x = averages(x, self.patch).flatten(1)
        if self.others is not None:
            x = torch.cat([x, self.others(batch)], dim=1)
        return self.head(self.dropout(F.gelu(self.hidden(x))))


def patch_of(height: int, width: int) -> tuple[int, int]:
    """Return height and width of patches, of which at most 8 x 8 cover a picture."""
    return math.ceil(height / MAX_SIDE), math.ceil(width / MAX_SIDE)


def averages(x: Tensor, patch: tuple[int, int]) -> Tensor:
    """Average over patches: [B, C, H, W] → [B, C, <= 8, <= 8], zero-padded to whole patches."""
    high, wide = patch
    if patch == (1, 1):
        return x
    # [B, C, h*p, w*q] -> [B, C, h, p, w, q] -> [B, C, h, w]
    x = F.pad(x, (0, -x.shape[3] % wide, 0, -x.shape[2] % high))
    return x.unflatten(3, (-1, wide)).unflatten(2, (-1, high)).mean((3, 5))
