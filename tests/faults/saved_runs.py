"""Checkpoints on disk for tests that damage them: three steps, each with its own best weights,
whole or sharded over ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from training.checkpoint.checkpoint import Checkpoints
from training.distributed.parallel import Parallel

STEPS = (10, 20, 30)
IDENTITY = {"train": {"batch_size": 16, "seed": 0}, "model": {"kind": "mlp"}, "world_size": 2}


def opened(root: Path, told: list[str] | None = None, keep: int = len(STEPS)) -> Checkpoints:
    """Return the checkpoints in a folder; their messages are added to the list."""
    return Checkpoints(
        root, IDENTITY, {"torch": "2"}, keep, [].append if told is None else told.append
    )


def parts(step: int) -> dict[str, Any]:
    """Return a small state that differs from step to step."""
    optimizer = {
        "state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.arange(40.0)}},
        "param_groups": [{"lr": 0.1, "params": [0]}],
    }
    return {
        "model.pt": {"w": torch.full((40,), float(step))},
        "optimizer.pt": optimizer,
        "trainer.pt": {"state": {"step": step, "best": None}},
    }


def save(root: Path, layout: str, steps: tuple[int, ...] = STEPS, keep: int = len(STEPS)) -> None:
    """Commit steps, each with its best weights.

    Args:
        root: the folder of checkpoints.
        layout: whole or sharded.
        steps: steps to commit.
        keep: how many checkpoints remain.
    """
    checkpoints = opened(root, keep=keep)
    for step in steps:
        state = parts(step)
        checkpoints.save_best(step, state["model.pt"])
        if layout == "whole":
            checkpoints.save(step, step, state)
        else:
            shard = {"model": state["model.pt"], "optimizer": state["optimizer.pt"]}
            checkpoints.save_sharded(step, step, state["trainer.pt"], shard, Parallel())


def files_of_newest(root: Path) -> list[Path]:
    """Return all files that loading the newest step reads, those of its best weights included."""
    return sorted(
        path for kind in ("step", "best") for path in (root / f"{kind}-{STEPS[-1]:08d}").iterdir()
    )
