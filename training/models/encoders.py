"""Declared encoders: the part of a network that makes one vector of a tensor, before the body.

A body gets the vector as a tensor of one axis. Trees and baselines, which learn no encoder, get a
summary of the tensor as columns. Shapes: B rows, E size of the vector, F columns of the summary,
[*dims] the tensor of a row.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from schemas.encoder_config import EncoderConfig
from schemas.errors import ConfigError
from schemas.series_config import SERIES_ENCODERS, SeriesEncoder
from training.models.bag_vectors import num_columns
from training.models.cnn import Stage, averages, patch_of
from training.models.inputs import init_linear_
from training.models.series_encoders import build_series_encoder, series_summary
from training.models.shape import ModelShape


class Encoders(nn.Module):
    """The vectors of a batch's encoded tensors: scaled [B, *dims] by key → [B, E] by key."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        # by number: a column's name may hold what a module's name may not
        self.keys, self.parts = tuple(parts), nn.ModuleList(parts.values())

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map a batch → the vectors [B, E] by key."""
        return {key: part(batch[key]) for key, part in zip(self.keys, self.parts, strict=True)}


class Summaries(nn.Module):
    """The columns of a batch's encoded tensors for trees: [B, *dims] by key → [B, F] by key."""

    def __init__(self, encoders: dict[str, EncoderConfig | SeriesEncoder]) -> None:
        super().__init__()
        self.encoders = encoders

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map a batch → the columns [B, F] by key."""
        return {key: summary(config, batch[key]) for key, config in self.encoders.items()}


def body_shape(shape: ModelShape, is_of_trees: bool) -> ModelShape:
    """Return the contract of a body: one vector in place of each bag and each encoded tensor."""
    widths = {
        key: (num_columns(bag.codes) if is_of_trees else bag.size,)
        for key, bag in shape.bags.items()
    }
    for key, config in shape.encoders.items():
        size = summary_width(config, shape.tensors[key]) if is_of_trees else config.size
        widths[key] = (size,)
    return dataclasses.replace(shape, tensors=shape.tensors | widths, bags={}, encoders={})


def build_encoders(shape: ModelShape, is_of_trees: bool) -> nn.Module | None:
    """Return the module that makes the vectors of encoded tensors; None without any.

    Raises:
        ConfigError: an encoder cannot read a tensor of this shape.
    """
    if not shape.encoders:
        return None
    if is_of_trees:
        return Summaries(shape.encoders)
    return Encoders(
        {key: build_encoder(c, key, shape.tensors[key]) for key, c in shape.encoders.items()}
    )


def build_encoder(
    config: EncoderConfig | SeriesEncoder, key: str, dims: tuple[int, ...]
) -> nn.Module:
    """Return the module [B, *dims] → [B, E] of a declared encoder.

    Raises:
        ConfigError: the encoder cannot read a tensor of this shape.
    """
    if isinstance(config, SERIES_ENCODERS):
        return build_series_encoder(config, dims)
    if len(dims) not in (2, 3):
        raise ConfigError(
            f"{key.removeprefix('tensor_')}: encoder {config.kind} needs shape [height, width] or"
            f" [channels, height, width], got {list(dims)}; declare its shape so, or remove encoder"
        )
    return PictureEncoder(config.channels, config.size, dims)


def summary(config: EncoderConfig | SeriesEncoder, values: Tensor) -> Tensor:
    """Return the columns that trees and baselines get of a tensor: [B, *dims] → float [B, F].

    Of a picture: its averages over at most 8 x 8 patches, by channel. Of a window: statistics of
    its channels.
    """
    if isinstance(config, SERIES_ENCODERS):
        return series_summary(values)
    height, width = values.shape[-2:]
    pictures = values.float().reshape(len(values), -1, height, width)
    return averages(pictures, patch_of(height, width)).flatten(1)


def summary_width(config: EncoderConfig | SeriesEncoder, dims: tuple[int, ...]) -> int:
    """Return the number F of columns of `summary`."""
    return int(summary(config, torch.zeros(1, *dims)).shape[1])


class PictureEncoder(nn.Module):
    """Stages that halve a picture, averages over patches, and a linear map to the vector."""

    def __init__(self, channels: tuple[int, ...], size: int, dims: tuple[int, ...]) -> None:
        super().__init__()
        first, (height, width) = (1 if len(dims) == 2 else dims[0]), dims[-2:]
        self.stages = nn.Sequential(
            *(Stage(a, b) for a, b in zip((first, *channels[:-1]), channels, strict=True))
        )
        for _ in channels:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.patch = patch_of(height, width)
        positions = math.ceil(height / self.patch[0]) * math.ceil(width / self.patch[1])
        self.out = nn.Linear(channels[-1] * positions, size)
        init_linear_(self.out)

    def forward(self, pictures: Tensor) -> Tensor:
        """Map pictures [B, H, W] or [B, C, H, W] → vectors [B, E]."""
        x = self.stages(pictures if pictures.ndim == 4 else pictures.unsqueeze(1))
        return self.out(averages(x, self.patch).flatten(1))
