"""Windows of series as arrays: the steps once, and for each row where its window lies in them.

Overlapping windows share their steps, in files and in memory; a batch is gathered when it is read.
N rows, M steps (the first one is unknown), C channels, L steps of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from schemas import digest
from schemas.references import FileRef, HistoryRef
from schemas.statistics import TensorStats

FOLDER = "windows"  # of the steps, next to the arrays with a row for each row


class Windows:
    """Windows [N, 2C, L] that are gathered where they are read; looks like a NumPy array.

    A slice of rows is again one of these; any other index, and `np.asarray`, gives their values.

    Args:
        steps: float32 [M, 2C]; the first step is what stands for unknown ones.
        ends: int64 [N, 3]: behind the last step of each window, how many steps it has, and L; a
            window with fewer steps than L begins with unknown ones.
        length: L.
    """

    dtype = np.dtype(np.float32)
    ndim = 3

    def __init__(self, steps: np.ndarray, ends: np.ndarray, length: int) -> None:
        self.steps, self.ends, self.length = steps, ends, length

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (N, 2C, L)."""
        return len(self.ends), int(self.steps.shape[1]), self.length

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, rows: Any) -> Any:
        """Return windows of a slice, or the values of some rows."""
        if isinstance(rows, slice):
            return Windows(self.steps, self.ends[rows], self.length)
        return np.asarray(Windows(self.steps, np.atleast_2d(self.ends[rows]), self.length))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the values float32 [N, 2C, L]."""
        values = self.steps[places(self.ends, self.length)].swapaxes(1, 2)
        return np.ascontiguousarray(values, dtype=dtype)


def places(ends: np.ndarray, length: int) -> np.ndarray:
    """Return the steps of windows, int64 [N, L], oldest first; 0 where a window has none.

    >>> places(np.array([[5, 2, 3], [1, 0, 3]]), 3).tolist()
    [[0, 3, 4], [0, 0, 0]]
    """
    back = np.arange(length, 0, -1)  # how far each step lies before the end
    return np.where(back <= ends[:, 1:2], ends[:, :1] - back, 0)


def read_windows(steps: FileRef, ends: np.ndarray, verify: bool) -> Windows:
    """Return the windows of a side over memory-mapped files; `verify` compares the digest."""
    path = digest.verify(steps) if verify else steps.file
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    return Windows(found, ends, int(ends[0, 2]))


def write_windows(folder: Path, name: str, history: HistoryRef, stats: TensorStats) -> np.ndarray:
    """Write the steps of a side as an array; return the ends of its rows, int64 [N, 3].

    Args:
        folder: of the side's arrays.
        name: of the array's file, without its ending.
        history: of the side.
        stats: fitted on train; a value that is not known becomes the channel's mean.
    """
    table = pq.read_table(digest.verify(history.steps), columns=list(stats.window))
    width = len(stats.window)
    steps = np.empty((len(table) + 1, 2 * width), dtype=np.float32)
    steps[0] = [*stats.mean[:width], *[0.0] * width]
    for position, channel in enumerate(stats.window):
        values = table[channel].to_numpy()
        known = np.isfinite(values)
        steps[1:, position] = np.where(known, values, stats.mean[position])
        steps[1:, width + position] = known
    write_steps(folder, name, steps)
    ends = pq.read_table(digest.verify(history.ends))
    length = np.full(len(ends), stats.shape[1])
    # the first step is the unknown one
    columns = [ends["end"].to_numpy() + 1, ends["count"].to_numpy(), length]
    return np.stack(columns, axis=1).astype(np.int64)


def write_steps(folder: Path, name: str, steps: np.ndarray) -> None:
    """Write steps [M, 2C] next to the arrays of a folder, flushed to disk."""
    path = folder / FOLDER / f"{name}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, steps, allow_pickle=False)
    digest.settle(path)
    digest.fsync_folder(path.parent)


def steps_of(folder: Path, arrays: dict[str, FileRef]) -> dict[str, FileRef]:
    """Return the files of steps that belong to arrays of a folder, by array."""
    files = {name: folder / FOLDER / Path(ref.path).name for name, ref in arrays.items()}
    return {name: digest.file_ref(path) for name, path in files.items() if path.exists()}


def joined(parts: Sequence[Windows]) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps [M, 2C] of several splits after each other, and all rows' ends [N, 3]."""
    steps = np.concatenate([parts[0].steps, *(part.steps[1:] for part in parts[1:])])
    sizes = [len(part.steps) - 1 for part in parts]
    ends = [
        part.ends + np.array([before, 0, 0])
        for part, before in zip(parts, np.cumsum([0, *sizes[:-1]]), strict=True)
    ]
    return steps, np.concatenate(ends)
