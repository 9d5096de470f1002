"""Rows of a table larger than memory: the same windows, read in ascending order, and pages read
alone where a window touches few.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.runs import synthetic
from training.distributed.parallel import Parallel
from training.engine import page_cache
from training.engine.batches import Window, WindowReader, as_tensors
from training.engine.page_cache import (
    READ_AROUND_BYTES,
    exceed_memory,
    gather_ascending,
    read_pages_alone,
)
from training.engine.sampling import Sampler, epoch_order
from training.objectives.losses import BinaryCrossEntropy

SMAPS = Path("/proc/self/smaps")


def _windows(rows: int) -> list[Window]:
    tensors = as_tensors(synthetic(rows, 0))
    reader = WindowReader(tensors, Sampler(rows, 16, seed=3), BinaryCrossEntropy(), Parallel())
    found = []
    for step in range(8):
        window = reader.read(step)
        window.batch = {name: tensor.clone() for name, tensor in window.batch.items()}
        window.label = window.label.clone()
        found.append(window)
    return found


@pytest.mark.req("D9")
@pytest.mark.req("T13")
def test_windows_of_a_table_larger_than_memory_are_those_of_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitting = _windows(70)
    monkeypatch.setattr(page_cache, "available_memory", lambda: 100.0)
    for one, other in zip(fitting, _windows(70), strict=True):
        assert (
            torch.equal(one.rows, other.rows)
            and torch.equal(one.label, other.label)
            and torch.equal(one.coefficient, other.coefficient)
        )
        assert all(torch.equal(one.batch[name], other.batch[name]) for name in one.batch)


@pytest.mark.req("D9")
def test_rows_are_read_in_the_order_in_which_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    real = torch.Tensor.index_select
    monkeypatch.setattr(
        torch.Tensor,
        "index_select",
        lambda self, dim, rows: (read.append(rows.tolist()), real(self, dim, rows))[1],
    )
    table, out = torch.arange(20.0).reshape(10, 2), torch.empty(4, 2)
    gather_ascending(table, torch.tensor([7, 1, 9, 1]), out)
    assert read == [[1, 1, 7, 9]] and out[:, 0].tolist() == [14.0, 2.0, 18.0, 2.0]


@pytest.mark.req("D9")
@pytest.mark.skipif(not SMAPS.is_file(), reason="tells of mapped pages on Linux only")
def test_pages_are_read_alone_where_a_window_touches_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "table.npy", np.zeros((2**17, 2), np.float32))  # a megabyte
    tensors = as_tensors({"table": np.load(tmp_path / "table.npy", mmap_mode="r")})
    assert not exceed_memory(tensors)
    monkeypatch.setattr(page_cache, "available_memory", lambda: 2.0**19)
    assert exceed_memory(tensors)
    read_pages_alone(tensors, 2**20 // READ_AROUND_BYTES + 1)  # a window that touches all of it
    assert not _is_read_alone(tmp_path / "table.npy")
    read_pages_alone(tensors, 2)
    assert _is_read_alone(tmp_path / "table.npy")
    assert not tensors["table"].any()


def _is_read_alone(path: Path) -> bool:
    """Whether the kernel marks a part of the mapped file for reads in no order (`rr`)."""
    parts = SMAPS.read_text().split("VmFlags:")
    return any(
        str(path) in before and " rr " in f" {after.splitlines()[0]} "
        for before, after in itertools.pairwise(parts)
    )


@pytest.mark.req("T13")
def test_the_order_of_an_epoch_takes_four_bytes_a_row_and_is_that_of_eight() -> None:
    from training.checkpoint.randomness import generator

    order = epoch_order(5, 2, 100_003)
    assert order.dtype == torch.int32 and torch.equal(
        order.long(), torch.randperm(100_003, generator=generator(5, "order", 2))
    )
    assert Sampler(100_003, 16, seed=5).window(0).dtype == torch.int64
