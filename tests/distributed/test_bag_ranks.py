"""Runs with texts, sets and dates: killed, on several ranks, elastic; they end in the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.same_runs import REALMLP, require_one_network, require_same_bits
from tests.training.kind_cases import mixed_run

pytestmark = pytest.mark.long


def write(folder: Path, train: dict[str, Any]) -> object:
    return mixed_run(folder, **REALMLP, train=train)


@pytest.mark.req("T1")
def test_one_process_ddp_and_fsdp2_train_the_same_vectors(tmp_path: Path) -> None:
    require_one_network(tmp_path, write)


@pytest.mark.req("C5")
def test_a_run_ends_in_the_same_bits_when_it_is_stopped_and_its_ranks_change(
    tmp_path: Path,
) -> None:
    require_same_bits(tmp_path, write)
