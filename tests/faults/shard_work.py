"""Work of two ranks in the test of sharded checkpoints; call every function on every rank."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch

from schemas.errors import CheckpointError
from training.checkpoint.checkpoint import Checkpoints
from training.distributed.parallel import Parallel

SMALL = 2_000  # bytes that a file may have while the disk of one rank is "full"


def shard(step: int, rank: int) -> dict[str, Any]:
    """Return the shard of a rank: its own rows, and plain values."""
    return {
        "model": {"w": torch.full((700 + rank, 2), float(step + rank))},
        "optimizer": {"step": step},
        "rank": rank,
    }


def saves(parallel: Parallel, folder: str) -> dict[str, Any]:
    """Save three steps, the second on one full disk; damage one rank's shard; load."""
    told: list[str] = []
    checkpoints = Checkpoints(Path(folder), {"seed": 1}, {}, 2, told.append)
    checkpoints.save_sharded(10, 0, {"step": 10}, shard(10, parallel.rank), parallel)
    if parallel.rank == 1:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, limits[1]))
    refused = ""
    try:
        checkpoints.save_sharded(20, 0, {"step": 20}, shard(20, parallel.rank), parallel)
    except CheckpointError as error:
        refused = str(error)
    if parallel.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    parallel.barrier()
    left = sorted(path.name for path in Path(folder).iterdir())
    parallel.barrier()  # all ranks have looked before the next save begins
    checkpoints.save_sharded(20, 0, {"step": 20}, shard(20, parallel.rank), parallel)
    newest = parallel.on_main(checkpoints.newest)
    return {
        "refused": refused,
        "left": left,
        "newest": newest,
        "told": told,
        **loaded(checkpoints, newest, parallel.rank),
    }


def loaded(checkpoints: Checkpoints, step: int, rank: int) -> dict[str, Any]:
    """Return whether this rank's own shard and those of all ranks were restored unchanged."""
    own, everyone = checkpoints.load_shard(step, rank), checkpoints.load_all_shards(step)
    same = [
        torch.equal(part["model"]["w"], shard(step, r)["model"]["w"]) and part["rank"] == r
        for r, part in enumerate(everyone)
    ]
    return {
        "num_shards": checkpoints.num_shards(step),
        "own": torch.equal(own["model"]["w"], shard(step, rank)["model"]["w"]),
        "all": same,
        "trainer": checkpoints.load_trainer(step),
    }
