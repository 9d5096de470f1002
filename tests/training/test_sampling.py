"""The order of rows is stateless arithmetic: every row once an epoch, whoever asks, from wherever
one starts.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError, DataError
from training.checkpoint import randomness as keys
from training.engine.sampling import Sampler, require_enough_rows, share, spans

sizes = st.integers(1, 200)


@pytest.mark.req("T13")
@given(rows=sizes, batch_size=sizes, seed=st.integers(0, 2**31), epoch=st.integers(0, 5))
def test_windows_of_an_epoch_hold_every_row_once(
    rows: int, batch_size: int, seed: int, epoch: int
) -> None:
    sampler = Sampler(rows, batch_size, seed)
    first = epoch * sampler.steps_per_epoch
    windows = [sampler.window(step) for step in range(first, first + sampler.steps_per_epoch)]
    assert sorted(torch.cat(windows).tolist()) == list(range(rows))
    assert {sampler.epoch(step) for step in range(first, first + sampler.steps_per_epoch)} == {
        epoch
    }
    assert all(len(window) == batch_size for window in windows[:-1])


@pytest.mark.req("T3")
@given(rows=st.integers(0, 300), world_size=st.integers(1, 16), micro=sizes)
def test_shares_and_micro_batches_partition_a_window(
    rows: int, world_size: int, micro: int
) -> None:
    parts = [share(rows, rank, world_size) for rank in range(world_size)]
    assert [row for begin, end in parts for row in range(begin, end)] == list(range(rows))
    lengths = [end - begin for begin, end in parts]
    assert max(lengths) - min(lengths) <= 1
    assert [row for begin, end in spans(rows, micro) for row in range(begin, end)] == list(
        range(rows)
    )


@pytest.mark.req("T13")
def test_a_window_depends_on_seed_and_step_only() -> None:
    one, other = Sampler(101, 16, seed=3), Sampler(101, 16, seed=3)
    torch.manual_seed(99)
    walked = [one.window(step).tolist() for step in range(20)]
    assert [other.window(step).tolist() for step in reversed(range(20))][::-1] == walked
    assert Sampler(101, 16, seed=4).window(0).tolist() != walked[0]
    assert walked[:7] != walked[7:14], "a new order each epoch"


@pytest.mark.req("T13")
def test_drop_last_leaves_out_the_ragged_window_and_nothing_else() -> None:
    sampler = Sampler(101, 16, seed=0, drop_last=True)
    assert sampler.steps_per_epoch == 6
    assert {len(sampler.window(step)) for step in range(12)} == {16}


@pytest.mark.req("S2")
def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="drop_last with batch_size 16 and 9 train rows leaves no batch"
    ):
        Sampler(9, 16, seed=0, drop_last=True)
    with pytest.raises(DataError, match="no rows"):
        Sampler(0, 16, seed=0)
    with pytest.raises(
        DataError, match=r"4 ranks but only 3 train rows.*set train.ranks to 3 or less"
    ):
        require_enough_rows(3, 4)
    require_enough_rows(4, 4)


@pytest.mark.req("T12")
def test_noise_of_a_window_follows_from_its_key_alone() -> None:
    cpu = torch.device("cpu")

    def drawn(*key: int) -> tuple[float, ...]:
        keys.seed_window(*key, cpu)
        return (*torch.rand(3).tolist(), float(np.random.rand()), random.random())

    first = drawn(1, 2, 30, 0)
    torch.rand(7), np.random.rand(7), random.random()
    assert drawn(1, 2, 30, 0) == first
    others = [drawn(2, 2, 30, 0), drawn(1, 3, 30, 0), drawn(1, 2, 31, 0), drawn(1, 2, 30, 1)]
    assert all(len({values[i] for values in [first, *others]}) == 5 for i in range(5))


@pytest.mark.req("C2")
def test_captured_streams_go_on_where_they_were() -> None:
    cpu = torch.device("cpu")
    keys.seed_process(5)
    np.random.standard_normal(3), random.gauss(0, 1)
    state = keys.capture(cpu)
    expected = (random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.rand(3).tolist())
    keys.seed_process(6)
    keys.restore(state, cpu)
    assert (
        random.gauss(0, 1),
        np.random.standard_normal(3).tolist(),
        torch.rand(3).tolist(),
    ) == expected
