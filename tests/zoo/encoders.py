"""Encoders with one mistake each that only shows on a run: around a real one, or in one of its
parts.

Each is a function or class that takes the encoder that was declared and gives the faulty one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Around(nn.Module):
    """The encoder itself."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *given: Tensor) -> Tensor:
        found: Tensor = self.encoder(*given)
        return found


class ReadsNothing(Around):
    """The vector is that of a row of ones."""

    def forward(self, *given: Tensor) -> Tensor:
        return super().forward(*(torch.ones_like(tensor) for tensor in given))


class NormOverRows(Around):
    """Vectors are normalised over the batch, in eval mode too."""

    def forward(self, *given: Tensor) -> Tensor:
        found = super().forward(*given)
        return (found - found.mean(0)) / (1 + found.std(0, unbiased=False))


class Remembers(Around):
    """Something of the batch before is added, as by a state that is not reset."""

    last: Tensor | float = 0.0

    def forward(self, *given: Tensor) -> Tensor:
        found = super().forward(*given)
        before, self.last = self.last, found.detach().mean(0)
        return found + before


class Detaches(Around):
    """The vector carries no gradient back."""

    def forward(self, *given: Tensor) -> Tensor:
        return super().forward(*given).detach()


class DropsInEval(Around):
    """Dropout by the function, which does not know of eval mode."""

    def forward(self, *given: Tensor) -> Tensor:
        return F.dropout(super().forward(*given), 0.3)


class DividesByContrast(Around):
    """Each picture is brought to one contrast, which one of a single colour does not have."""

    def forward(self, *given: Tensor) -> Tensor:
        pictures = given[0].flatten(1)
        level, contrast = pictures.mean(1, keepdim=True), pictures.std(1, keepdim=True)
        return super().forward(((pictures - level) / contrast).view_as(given[0]), *given[1:])


class Turned(Around):
    """Attention whose mask says what is hidden where torch wants what is seen."""

    def forward(self, x: Any, mask: Any = None) -> Tensor:
        return super().forward(x, ~mask)


class OfTheNeighbour(Around):
    """A step of messages in which a molecule hears those of the molecule before it."""

    def forward(self, atoms: Any, messages: Any = None) -> Tensor:
        return super().forward(atoms, messages + messages.roll(1, 0))


def mask_turned(encoder: Any) -> nn.Module:
    """Every block attends to the filling, or to unknown steps."""
    for block in encoder.blocks:
        block.attention = Turned(block.attention)
    found: nn.Module = encoder
    return found


def messages_across(encoder: Any) -> nn.Module:
    """Molecules of a batch are bonded with each other."""
    encoder.steps[0] = OfTheNeighbour(encoder.steps[0])
    found: nn.Module = encoder
    return found
