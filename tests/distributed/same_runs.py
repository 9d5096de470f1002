"""Runs that must end alike on any number of ranks, whatever kinds of columns they read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.distributed.launch import run_ranks

TRAIN = {"epochs": 2, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 3, "threads": 1}
ELASTIC = {"mode": "elastic", "logical_shards": 4}
REALMLP: dict[str, Any] = {
    "model": {"kind": "realmlp", "hidden": [12], "dropout": 0.0},
    "optimizer": {"kind": "adamw", "lr": 0.01},
}
# prepares a run with this section `train` in a folder
Write = Callable[[Path, dict[str, Any]], object]


def outcome(folder: Path, ranks: int, stops: tuple[int, ...] = (), finish: bool = True) -> Any:
    """Return the result of the run below the folder on this number of ranks."""
    return run_ranks(
        "tests.distributed.layout_work:run_all",
        ranks,
        folder / f"ranks-{ranks}",
        folder=str(folder),
        stops=list(stops),
        finish=finish,
    )[0]["run"]


def require_one_network(folder: Path, write: Write) -> None:
    """One process, DDP and FSDP2 train the same network but for rounding."""
    found = {}
    for name, ranks, parallel in (("one", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        write(folder / name / "run", TRAIN | {"parallel": parallel, "ranks": ranks})
        found[name] = outcome(folder / name, ranks)
    for name in ("ddp", "fsdp"):
        for kind in ("weights", "best"):
            np.testing.assert_allclose(found[name][kind], found["one"][kind], rtol=0, atol=1e-4)


def require_same_bits(folder: Path, write: Write, stops: tuple[int, int] = (3, 9)) -> None:
    """A run that is stopped on 4 ranks and on 1, and ends on 2, has the bits of one process."""
    for name in ("one", "changing"):
        write(folder / name / "run", TRAIN | ELASTIC)
    one = outcome(folder / "one", 1)
    for ranks, stop in zip((4, 1), stops, strict=True):
        outcome(folder / "changing", ranks, (stop,), finish=False)
    changing = outcome(folder / "changing", 2)
    assert changing["state"] == one["state"]
    assert changing["report"]["model_sha256"] == one["report"]["model_sha256"]
