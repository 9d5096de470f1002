"""Declared encoders: the part of a network that makes one vector of a tensor, before the body.

A body gets the vector as a tensor of one axis. Trees and baselines, which learn no encoder, get a
summary of the tensor as columns. Shapes: B rows, E size of the vector, F columns of the summary,
[*dims] the tensor of a row.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from schemas.encoder_config import CnnEncoder, EncoderConfig, ResnetEncoder
from schemas.errors import ConfigError
from schemas.series_config import GruEncoder, TcnEncoder
from schemas.smiles_config import FingerprintEncoder, GraphEncoder
from schemas.transformer_config import TransformerEncoder
from training.models.bag_vectors import num_columns
from training.models.cnn import averages, patch_of
from training.models.input_dropout import InputDropout
from training.models.molecule_encoders import PACKED, WIDTH, Fingerprint, Graph, unpacked
from training.models.picture_encoders import (
    PictureEncoder,
    build_picture_encoder,
    without_picture,
)
from training.models.series_encoders import build_series_encoder, series_summary
from training.models.shape import ModelShape
from training.models.token_transformer import smiles_transformer


class Encoders(nn.Module):
    """The vectors of a batch's encoded tensors: scaled [B, *dims] by key → [B, E] by key.

    Args:
        parts: encoders by key.
        nullable: keys whose stored zeros are no picture.
        dropout: share of the rows that are trained without a tensor.
    """

    def __init__(
        self, parts: dict[str, nn.Module], nullable: tuple[str, ...] = (), dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.nullable = nullable
        self.dropout = InputDropout(dropout) if dropout else None
        # by number: a column's name may hold what a module's name may not
        self.keys, self.parts = tuple(parts), nn.ModuleList(parts.values())

    def forward(self, batch: dict[str, Tensor], stored: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map a batch → the vectors [B, E] by key; `stored` has the tensors before scaling."""
        return {
            key: self._vector(key, part, batch[key], stored[key])
            for key, part in zip(self.keys, self.parts, strict=True)
        }

    def _vector(self, key: str, part: nn.Module, rows: Tensor, stored: Tensor) -> Tensor:
        """Return the vectors [B, E] of one tensor; of a missing one where it is dropped."""
        dropped = None if self.dropout is None else self.dropout.draw(rows)
        inputs: tuple[Tensor, ...]
        is_picture = isinstance(part, PictureEncoder)
        if not is_picture or (key not in self.nullable and self.dropout is None):
            # zeros are what a molecule or a window is where nothing is known
            gone = None if dropped is None else dropped.view(-1, *[1] * (rows.ndim - 1))
            inputs = (rows if gone is None else rows.masked_fill(gone, 0),)
        else:
            none = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
            if key in self.nullable:
                none = without_picture(stored)
            inputs = (rows, none if dropped is None else none | dropped)
        vectors: Tensor = part(*inputs)
        return vectors


class Summaries(nn.Module):
    """The columns of a batch's encoded tensors for trees: [B, *dims] by key → [B, F] by key."""

    def __init__(self, encoders: dict[str, EncoderConfig]) -> None:
        super().__init__()
        self.encoders = encoders

    def forward(self, batch: dict[str, Tensor], stored: dict[str, Tensor]) -> dict[str, Tensor]:
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


def build_encoders(shape: ModelShape, is_of_trees: bool, dropout: float = 0.0) -> nn.Module | None:
    """Return the module that makes the vectors of encoded tensors; None without any.

    Args:
        shape: says what tensors have an encoder.
        is_of_trees: the vectors are for trees.
        dropout: share of the rows that are trained without a tensor.

    Raises:
        ConfigError: an encoder cannot read a tensor of this shape.
    """
    if not shape.encoders:
        return None
    if is_of_trees:
        return Summaries(shape.encoders)
    parts = {
        key: build_encoder(config, key, shape.tensors[key], key in shape.nullable or dropout > 0)
        for key, config in shape.encoders.items()
    }
    return Encoders(parts, shape.nullable, dropout)


def build_encoder(
    config: EncoderConfig, key: str, dims: tuple[int, ...], nullable: bool = False
) -> nn.Module:
    """Return the module [B, *dims] → [B, E] of a declared encoder.

    Of a nullable tensor it takes a second argument, bool [B]: True where a row has none.

    Raises:
        ConfigError: the encoder cannot read a tensor of this shape.
    """
    match config:
        case FingerprintEncoder():
            return Fingerprint(config)
        case GraphEncoder():
            return Graph(config, (dims[0] - PACKED) // WIDTH)
        case TransformerEncoder() if len(dims) == 1:
            return smiles_transformer(config, dims[0])
        case CnnEncoder() | ResnetEncoder():
            return _picture_encoder(config, key, dims, nullable)
    return build_series_encoder(config, dims)


def _picture_encoder(
    config: CnnEncoder | ResnetEncoder, key: str, dims: tuple[int, ...], nullable: bool
) -> nn.Module:
    if len(dims) not in (2, 3):
        raise ConfigError(
            f"{key.removeprefix('tensor_')}: encoder {config.kind} needs shape [height, width] or"
            f" [channels, height, width], got {list(dims)}; declare its shape so, or remove encoder"
        )
    return build_picture_encoder(config, dims, nullable)


def summary(config: EncoderConfig, values: Tensor) -> Tensor:
    """Return the columns that trees and baselines get of a tensor: [B, *dims] → float [B, F].

    Of a picture: its averages over at most 8 x 8 patches, by channel. Of a molecule: its Morgan
    bits. Of a window: statistics of its channels.
    """
    if isinstance(config, FingerprintEncoder):
        return values.float()
    if isinstance(config, GraphEncoder) or values.ndim == 2:
        return unpacked(values)
    if isinstance(config, TcnEncoder | GruEncoder | TransformerEncoder):
        return series_summary(values)
    height, width = values.shape[-2:]
    pictures = values.float().reshape(len(values), -1, height, width)
    return averages(pictures, patch_of(height, width)).flatten(1)


def summary_width(config: EncoderConfig, dims: tuple[int, ...]) -> int:
    """Return the number F of columns of `summary`."""
    return int(summary(config, torch.zeros(1, *dims)).shape[1])
