"""SHA-256 of a run's final state, over tensors and plain values instead of the bytes of files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from training.checkpoint.checkpoint import Checkpoints
from training.checkpoint.manifest import LIGHT, NAME, verify_checkpoint

# parts of the state that depend on when a process started
CLOCKS = ("seconds", "train_seconds", "instabilities")


def digest(value: Any) -> str:
    """Return the SHA-256 of a tree of tensors, dicts, lists and plain values."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        found.update(f"dict {len(value)} ".encode())
        for key in sorted(value, key=repr):
            found.update(f"{key!r}: ".encode())
            _feed(found, value[key])
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)} ".encode())
        for item in value:
            _feed(found, item)
    else:
        found.update(f"{type(value).__name__} {value!r} ".encode())


def final_state(run_dir: Path) -> dict[str, str]:
    """Return digests of model, optimizer, average, schedule, scaler, position and best weights in a
    run's last checkpoint, and of its result.
    """
    checkpoints = Checkpoints(run_dir / "checkpoints", {}, {}, 2, print)
    step = max(checkpoints.folders("step"))
    trainer = checkpoints.load_trainer(step)
    if checkpoints.num_shards(step):
        shards = checkpoints.load_all_shards(step)
        model, optimizer, average = (
            [shard.get(part) for shard in shards] for part in ("model", "optimizer", "average")
        )
    else:
        whole = checkpoints.load(step)
        model, optimizer = whole["model.pt"], whole["optimizer.pt"]
        average = trainer.get("average")
    state = {key: value for key, value in trainer["state"].items() if key not in CLOCKS}
    report = json.loads((run_dir / "result.json").read_bytes())
    parts = {
        "model": model,
        "optimizer": optimizer,
        "average": average,
        "schedule": trainer["schedule"],
        "scaler": trainer["scaler"],
        "state": state,
        "best": checkpoints.load_best(state["best_step"]),
        "result": [
            report["status"],
            report["steps"],
            report["best_step"],
            report["best_metric"],
            report["model_sha256"],
        ],
    }
    return {name: digest(part) for name, part in parts.items()}


def unsound(run_dir: Path) -> list[str]:
    """Return unexpected names and committed checkpoints that do not verify; none after any kill."""
    wrong = []
    for folder in sorted((run_dir / "checkpoints").glob("[!.]*")):
        kind = NAME.fullmatch(folder.name)
        try:
            if kind:
                verify_checkpoint(folder, LIGHT if kind[1] == "best" else None)
            elif not folder.name.endswith(".replaced"):
                wrong.append(f"{folder.name}: unexpected")
        except ValueError as error:
            wrong.append(str(error))
    return wrong
