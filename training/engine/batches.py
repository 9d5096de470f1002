"""Windows of the materialised arrays as tensors on the rank's device, without per-row Python.

`torch.index_select` gathers rows from memory-mapped arrays into two alternating sets of buffers; on
CUDA they are pinned and copied without blocking. A table that fits well into the device's free
memory is moved there and gathered there. The next window is gathered while the device works on this
one (`prefetch`). page_cache.py reads tables that are larger than the machine's memory.

N rows, B rows of the global window, S rows of this rank's share (at least one).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.data.arrays.window_arrays import Windows
from training.distributed.parallel import Parallel
from training.engine.page_cache import exceed_memory, gather_ascending, read_pages_alone
from training.engine.sampling import Sampler, share
from training.engine.window_tensors import WindowTensor, as_window_tensor
from training.objectives.losses import Loss

TARGETS = ("label", "weight")
DEVICE_SHARE = 0.25  # fraction of free device memory for a resident table
TINY = torch.finfo(torch.float64).tiny

Tensors = dict[str, Tensor]


def as_tensors(arrays: dict[str, np.ndarray]) -> Tensors:
    """Return the arrays as tensors over the same memory, which must not be written to.

    torch has no read-only tensors and warns about read-only arrays; training only gathers from
    them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {
            name: as_window_tensor(array) if isinstance(array, Windows) else torch.from_numpy(array)
            for name, array in arrays.items()
        }


def to_device_if_it_fits(tensors: Tensors, device: torch.device) -> Tensors:
    """Move the tensors to the device if they take less than a quarter of its free memory."""
    if device.type != "cuda":
        return tensors
    num_bytes = sum(t.numel() * t.element_size() for t in tensors.values())
    free, _ = torch.cuda.mem_get_info(device)
    return (
        {name: t.to(device) for name, t in tensors.items()}
        if num_bytes < DEVICE_SHARE * free
        else tensors
    )


@dataclass
class Window:
    """One rank's share of a global window, on its device.

    `rows` int64 [B]: row numbers of the global window. `begin`, `end`: this rank's part of it
    (equal: none). `batch`: model inputs [S, ...]. `label` [S]. `coefficient` float64 [S]: factor of
    each row's loss: w / sum of w over the global window, times R if ranks average gradients; zero
    for the placeholder row of a rank without rows. `weight_sum` float64 []: that sum. `shards`:
    number, begin and end within the share of each logical shard; without declared logical shards,
    the share is one shard with the rank's number.
    """

    step: int
    epoch: int
    shards: tuple[tuple[int, int, int], ...]
    rows: Tensor
    begin: int
    end: int
    batch: Tensors
    label: Tensor
    coefficient: Tensor
    weight_sum: Tensor

    @property
    def own_rows(self) -> Tensor:
        """Row numbers of this rank's share; empty if it has none."""
        return self.rows[self.begin : self.end].cpu()


class WindowReader:
    """Read windows by step; `read(step)` is a pure function of the step.

    Args:
        tensors: inputs, `label` and optionally `weight` of train, [N, ...] each, all on one device.
        sampler: gives row numbers on that device.
        loss: gives the row weights.
        parallel: rank, ranks and target device.
        logical_shards: parts of a window whose gradients are summed separately (mode elastic);
            None: ranks average gradients.
    """

    def __init__(
        self,
        tensors: Tensors,
        sampler: Sampler,
        loss: Loss,
        parallel: Parallel,
        logical_shards: int | None = None,
    ) -> None:
        self.tensors, self.sampler, self.loss, self.parallel, self.logical_shards = (
            tensors,
            sampler,
            loss,
            parallel,
            logical_shards,
        )
        self.scale = 1 if logical_shards else parallel.world_size
        whole = min(sampler.batch_size, sampler.num_rows)
        part = max(1, -(-whole // parallel.world_size))
        pin = parallel.device.type == "cuda" and sampler.device.type == "cpu"
        self._buffers = [
            {
                name: torch.empty(
                    (whole if name in TARGETS else part, *t.shape[1:]),
                    dtype=t.dtype,
                    device=t.device,
                    pin_memory=pin,
                )
                for name, t in tensors.items()
            }
            for _ in range(2)
        ]
        self._prefetched: Window | None = None
        self._ascending = exceed_memory(tensors)
        if self._ascending:
            read_pages_alone(tensors, whole)

    def read(self, step: int) -> Window:
        """Return the window of a step (from 0)."""
        found, self._prefetched = self._prefetched, None
        return found if found is not None and found.step == step else self._gather(step)

    def prefetch(self, step: int) -> None:
        """Gather a window ahead; its copies run while the device works on the current one."""
        self._prefetched = self._gather(step)

    def _gather(self, step: int) -> Window:
        rows = self.sampler.window(step)
        begin, end = share(len(rows), self.parallel.rank, self.parallel.world_size)
        # A rank without rows computes the window's first row with weight zero, because every rank
        # must take part in the reduction.
        first, last = (begin, end) if end > begin else (0, 1)
        batch = {
            name: self._take(step, name, rows[first:last])
            for name in self.tensors
            if name not in TARGETS
        }
        # With label and weight of the whole window, the divisor needs no communication.
        label = self._take(step, "label", rows)
        weight = self._take(step, "weight", rows) if "weight" in self.tensors else None
        weights = self.loss.row_weights(label, weight).to(torch.float64)
        total = weights.sum()
        coefficient = weights[first:last] * (self.scale / total.clamp_min(TINY))
        if end == begin:
            coefficient = torch.zeros_like(coefficient)
        return Window(
            step,
            self.sampler.epoch(step),
            self._shards(len(rows), begin, last - first),
            rows,
            begin,
            end,
            batch,
            label[first:last],
            coefficient,
            total,
        )

    def _shards(
        self, num_rows: int, begin: int, share_rows: int
    ) -> tuple[tuple[int, int, int], ...]:
        rank, ranks, logical = self.parallel.rank, self.parallel.world_size, self.logical_shards
        if logical is None:
            return ((rank, 0, share_rows),)
        # [rank L/R, (rank+1) L/R) is exactly the rank's share, as floor(k N/L) at k = r L/R is
        # floor(r N/R)
        spans = (
            (number, share(num_rows, number, logical))
            for number in range(rank * logical // ranks, (rank + 1) * logical // ranks)
        )
        return tuple((number, first - begin, last - begin) for number, (first, last) in spans)

    def _take(self, step: int, name: str, rows: Tensor) -> Tensor:
        buffer = self._buffers[step % 2][name][: len(rows)]
        if isinstance(self.tensors[name], WindowTensor):
            buffer.copy_(self.tensors[name].index_select(0, rows))
        elif self._ascending:
            gather_ascending(self.tensors[name], rows, buffer)
        else:
            torch.index_select(self.tensors[name], 0, rows, out=buffer)
        return buffer.to(self.parallel.device, non_blocking=True)
