"""Runs with pictures on several ranks, killed and elastic: they end in the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.same_runs import REALMLP, require_one_network, require_same_bits
from tests.training.picture_cases import picture_rows, picture_run

pytestmark = pytest.mark.long


def write(folder: Path, train: dict[str, Any]) -> object:
    return picture_run(folder, picture_rows(folder, nulls=12), **REALMLP, train=train)


@pytest.mark.req("T1")
def test_one_process_ddp_and_fsdp2_train_the_same_encoders(tmp_path: Path) -> None:
    require_one_network(tmp_path, write)


@pytest.mark.req("C5")
def test_a_run_ends_in_the_same_bits_when_it_is_stopped_and_its_ranks_change(
    tmp_path: Path,
) -> None:
    augmented = {"augment": {"flip": True, "shift": 1}}
    require_same_bits(tmp_path, lambda folder, train: write(folder, train | augmented))
