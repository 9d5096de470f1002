"""Inputs that a row is trained without, as if they were missing (`model.input_dropout`). B rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd


class InputDropout(_DropoutNd):
    """Draw the rows whose input is taken as missing in train mode; none in eval mode.

    Draws come from the stream of the window, as those of other dropout: a resumed run, and one on
    other ranks, repeats them.

    Source: Neverova et al. 2016, arXiv:1501.00102, sec. 4 (ModDrop).
    """

    def draw(self, rows: Tensor) -> Tensor | None:
        """Return bool [B], True for a row to be taken as missing; None where none is."""
        if not self.training or not self.p:
            return None
        return torch.rand(len(rows), device=rows.device) < self.p
