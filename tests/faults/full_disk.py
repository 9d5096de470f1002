"""A run on a disk that becomes full; it continues after space is free again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tests.faults.final_state import final_state, unsound
from tests.faults.storage import in_child
from tests.training.runs import make_run
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal

SECTIONS: dict[str, Any] = {
    "model": {"kind": "mlp", "hidden": [64, 64], "dropout": 0.2},
    "train": {"epochs": 2, "batch_size": 16, "checkpoint_every": 2, "keep": 2, "threads": 1},
}


def fill(folder: Path, free: int) -> Path:
    """Write a file that leaves `free` bytes on the file system of the folder."""
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(folder).free - free))
    return ballast


def go(normal: Path, run_dir: Path) -> str:
    """Train to the end."""
    spec = make_run(normal / "data", rows=(80, 24), **SECTIONS)
    return train(spec, run_dir, Parallel(), StopSignal()).status


def fill_and_free(normal: Path, small: Path) -> dict[str, Any]:
    """Fill the disk during a run, free it, and continue, in forked children.

    Args:
        normal: a folder with space.
        small: a folder on its own small file system.

    Returns:
        The error, what it left, and how the run ended compared with an undisturbed one.
    """
    in_child(lambda: go(normal, normal / "run"))
    size = sum(
        path.stat().st_size
        for path in max((normal / "run" / "checkpoints").glob("step-*")).iterdir()
    )
    ballast = fill(small, 3 * size)
    found: dict[str, Any] = {"refused": in_child(lambda: go(normal, small / "run"))[1]}
    found["left"] = sorted(os.listdir(small / "run" / "checkpoints"))
    found["unsound"] = unsound(small / "run")
    ballast.unlink()
    found["status"] = in_child(lambda: go(normal, small / "run"))[1]
    found["events"] = (small / "run" / "metrics.jsonl").read_text()
    found["same"] = final_state(small / "run") == final_state(normal / "run")
    return found
