"""Runs with texts, sets and dates: killed, on several ranks, elastic; they end in the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.launch import run_ranks
from tests.training.kind_cases import mixed_run

TRAIN = {"epochs": 2, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 3, "threads": 1}
REALMLP: dict[str, Any] = {
    "model": {"kind": "realmlp", "hidden": [12], "dropout": 0.0},
    "optimizer": {"kind": "adamw", "lr": 0.01},
}
ELASTIC = {"mode": "elastic", "logical_shards": 4}


def outcome(folder: Path, ranks: int, stops: tuple[int, ...] = (), finish: bool = True) -> Any:
    """Return the results of the runs below the folder on this number of ranks."""
    return run_ranks(
        "tests.distributed.layout_work:run_all",
        ranks,
        folder / f"ranks-{ranks}",
        folder=str(folder),
        stops=list(stops),
        finish=finish,
    )[0]


@pytest.mark.long
@pytest.mark.req("T1")
def test_one_process_ddp_and_fsdp2_train_the_same_vectors(tmp_path: Path) -> None:
    found = {}
    for name, ranks, parallel in (("one", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        train = TRAIN | {"parallel": parallel, "ranks": ranks}
        mixed_run(tmp_path / name / "run", **REALMLP, train=train)
        found[name] = outcome(tmp_path / name, ranks)["run"]
    for name in ("ddp", "fsdp"):
        for kind in ("weights", "best"):
            np.testing.assert_allclose(found[name][kind], found["one"][kind], rtol=0, atol=1e-4)


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_run_ends_in_the_same_bits_when_it_is_stopped_and_its_ranks_change(
    tmp_path: Path,
) -> None:
    for name in ("one", "changing"):
        mixed_run(tmp_path / name / "run", **REALMLP, train=TRAIN | ELASTIC)
    one = outcome(tmp_path / "one", 1)["run"]
    outcome(tmp_path / "changing", 4, (3,), finish=False)
    outcome(tmp_path / "changing", 1, (9,), finish=False)
    changing = outcome(tmp_path / "changing", 2)["run"]
    assert changing["state"] == one["state"]
    assert changing["report"]["model_sha256"] == one["report"]["model_sha256"]
