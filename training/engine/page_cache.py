"""Windows of train rows from mapped files that are larger than the machine's memory.

When a page of a mapped file is missing, Linux also reads the pages around it. Shuffled rows touch
pages all over the table: a window of 1,024 rows read 470 MB of a table of 308 MB. Therefore rows
are gathered in file order, and if a window touches few pages, only these are read. The rows of a
window and their order do not change.
"""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor

from training.data.engine.in_memory import available_memory
from training.engine.window_tensors import WindowTensor

READ_AROUND_BYTES = 2**17  # bytes that Linux reads around a missing page, by default


def exceed_memory(tensors: dict[str, Tensor]) -> bool:
    """Return True if tensors over mapped files are larger than the available memory."""
    return bool(
        sum(t.numel() * t.element_size() for t in tensors.values() if t.device.type == "cpu")
        > available_memory()
    )


def read_pages_alone(tensors: dict[str, Tensor], window_rows: int) -> None:
    """Make the kernel read only the missing page, for each tensor where that saves reads.

    Args:
        tensors: tensors over mapped files.
        window_rows: rows that are read at once, anywhere in a tensor.
    """
    for tensor in tensors.values():
        size = tensor.numel() * tensor.element_size()
        if isinstance(tensor, WindowTensor):
            continue  # the steps of a window lie next to each other
        if hasattr(mmap, "MADV_RANDOM") and window_rows * READ_AROUND_BYTES < size:
            begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE  # the whole pages within
            length = tensor.data_ptr() + size - begin
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_RANDOM
            )  # a failure only costs speed


def gather_ascending(tensor: Tensor, rows: Tensor, out: Tensor) -> None:
    """Compute `torch.index_select(tensor, 0, rows, out=out)`, reading the rows in ascending order.

    Args:
        tensor: source [N, ...].
        rows: int64 [B].
        out: result [B, ...].
    """
    ordered, places = rows.sort()
    out.index_copy_(0, places, tensor.index_select(0, ordered))
