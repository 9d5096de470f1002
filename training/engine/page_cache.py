"""Train rows that the machine's memory cannot hold: how a window of them is read from mapped files
without reading most of the table for it.

Where a page of a mapped file is missing, Linux reads what lies around it as well. Rows in shuffled
order touch pages all over the table, so that a window of 1,024 rows read 470 MB of a table of 308
MB. Here rows are gathered in the order in which they lie, and where a window touches few pages
these are read alone. Which rows a window has, and in which order, stays.
"""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor

from training.data.engine.in_memory import available_memory

READ_AROUND_BYTES = 2**17  # that Linux reads for a missing page, unless it is told otherwise


def exceed_memory(tensors: dict[str, Tensor]) -> bool:
    """Whether tensors over mapped files are larger than what the machine's memory has room for."""
    return bool(
        sum(t.numel() * t.element_size() for t in tensors.values() if t.device.type == "cpu")
        > available_memory()
    )


def read_pages_alone(tensors: dict[str, Tensor], window_rows: int) -> None:
    """Tell the kernel to read no more than the missing page, for each tensor of which that makes a
    window cheaper.

    Args:
        tensors: over mapped files.
        window_rows: rows that are read at once, anywhere in a tensor.
    """
    for tensor in tensors.values():
        size = tensor.numel() * tensor.element_size()
        if hasattr(mmap, "MADV_RANDOM") and window_rows * READ_AROUND_BYTES < size:
            begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE  # the whole pages within
            length = tensor.data_ptr() + size - begin
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_RANDOM
            )  # of its failure only speed would tell


def gather_ascending(tensor: Tensor, rows: Tensor, out: Tensor) -> None:
    """`torch.index_select(tensor, 0, rows, out=out)`, with the rows read in ascending order.

    Args:
        tensor: to read [N, ...].
        rows: int64 [B].
        out: filled [B, ...].
    """
    ordered, places = rows.sort()
    out.index_copy_(0, places, tensor.index_select(0, ordered))
