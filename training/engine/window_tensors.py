"""Windows of series as tensors, gathered for each batch.

N rows, B rows of a batch, M steps, C channels, L steps of a window.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from training.data.arrays.window_arrays import Windows


class WindowTensor:
    """Windows [N, 2C, L] over tensors; where rows are read it looks like one tensor.

    Args:
        steps: float32 [M, 2C]; the first is the unknown step.
        ends: int64 [N, 3], see `training.data.arrays.window_arrays.Windows`.
        length: L.
    """

    ndim = 3
    dtype = torch.float32

    def __init__(self, steps: Tensor, ends: Tensor, length: int) -> None:
        self.steps, self.ends, self.length = steps, ends, length

    @property
    def shape(self) -> torch.Size:
        """Return (N, 2C, L)."""
        return torch.Size([len(self.ends), self.steps.shape[1], self.length])

    @property
    def device(self) -> torch.device:
        """Return where the steps lie."""
        return self.steps.device

    def __len__(self) -> int:
        return len(self.ends)

    def numel(self) -> int:
        """Return the number of values that are kept in memory."""
        return int(self.steps.numel() + self.ends.numel())

    def element_size(self) -> int:
        """Return the bytes of the wider of them."""
        return int(self.ends.element_size())

    def to(self, *args: Any, **options: Any) -> WindowTensor:
        """Return the windows with both tensors moved."""
        steps, ends = (t.to(*args, **options) for t in (self.steps, self.ends))
        return WindowTensor(steps, ends, self.length)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return the windows of a slice of rows, float32 [B, 2C, L]."""
        return gather_windows(self.steps, self.ends[rows], self.length)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the windows of rows int64 [B], float32 [B, 2C, L]."""
        return gather_windows(self.steps, self.ends.index_select(dim, rows), self.length)


def gather_windows(steps: Tensor, ends: Tensor, length: int) -> Tensor:
    """Return windows float32 [B, 2C, L] of steps [M, 2C] and ends [B, 3]."""
    back = torch.arange(length, 0, -1, device=ends.device)
    places = torch.where(back <= ends[:, 1:2], ends[:, :1] - back, 0)
    found = steps.index_select(0, places.flatten())  # [B L, 2C]
    return found.view(len(ends), length, -1).transpose(1, 2)


def as_window_tensor(windows: Windows) -> Tensor:
    """Return windows over the memory of arrays, for functions that read rows of tensors."""
    parts = torch.from_numpy(windows.steps), torch.from_numpy(windows.ends)
    return cast(Tensor, WindowTensor(*parts, windows.length))
