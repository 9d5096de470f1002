"""Work of the ranks in tests of layouts; call on every rank."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from schemas.errors import BulkheadError
from schemas.records import RunSpec
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal


def tree_digest(value: Any) -> str:
    """Return the SHA-256 over a tree of tensors and plain values, by content."""
    digest = hashlib.sha256()

    def add(node: Any) -> None:
        if isinstance(node, dict):
            for key in sorted(node, key=str):
                digest.update(f"{key}:".encode())
                add(node[key])
        elif isinstance(node, list | tuple):
            for inner in node:
                add(inner)
        elif isinstance(node, torch.Tensor):
            digest.update(
                f"{node.dtype}{tuple(node.shape)}".encode()
                + node.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        else:
            digest.update(repr(node).encode())

    add(value)
    return digest.hexdigest()


def run_all(
    parallel: Parallel, folder: str, stops: list[int], finish: bool = True
) -> dict[str, Any]:
    """Train every run below the folder; return its report or its error by name.

    Each run stops at these steps, and is resumed or not.
    """
    outcomes: dict[str, Any] = {}
    for config in sorted(Path(folder).glob("*/resolved.json")):
        outcomes[config.parent.name] = run_one(
            parallel, config, config.parent / "run", [*stops, None] if finish else stops
        )
    return outcomes


def run_one(
    parallel: Parallel, config: Path, run_dir: Path, stops: list[int | None]
) -> dict[str, Any]:
    """Start a run once for each stop: the last rank stops it at that step, or never (None)."""
    spec = RunSpec.model_validate_json(config.read_text())
    try:
        for last in stops:
            trainer = Trainer(spec, run_dir, parallel, StopSignal())
            stop_at(trainer, last)
            report = trainer.run()
    except BulkheadError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {
        "report": report.model_dump(mode="json"),
        "state": state_digest(trainer),
        "weights": values_of(trainer.layout.full_weights()),
        "best": values_of(
            trainer.checkpoints.load_best(trainer.state.best_step)
            if trainer.state.best_step
            else {}
        ),
    }


def stop_at(trainer: Trainer, step: int | None) -> None:
    """Let the last rank ask for a stop at this step."""
    one_step, parallel = trainer._train_one_step, trainer.parallel

    def step_then_stop() -> bool:
        made = trainer.state.step + (trainer.launched is not None)
        trainer.stop.requested = made + 1 == step and parallel.rank == parallel.world_size - 1
        return bool(one_step())

    trainer._train_one_step = step_then_stop  # type: ignore[method-assign]


def state_digest(trainer: Trainer) -> str:
    """Return the digest of the last checkpoint: weights, optimizer, schedule, scaler, position."""
    step, checkpoints = trainer.state.step, trainer.checkpoints
    parts = {**checkpoints.load_trainer(step)}
    parts["state"] = {key: value for key, value in parts["state"].items() if "seconds" not in key}
    del parts["rng"]  # one stream a rank
    shards = checkpoints.load_all_shards(step) or [checkpoints.load(step)]
    return tree_digest(
        [
            {key: value for key, value in part.items() if key != "trainer.pt"}
            for part in [*shards, parts]
        ]
    )


def values_of(weights: dict[str, torch.Tensor]) -> list[float]:
    """Return all weights in one list; they are whole on rank 0."""
    return [value for tensor in weights.values() for value in tensor.double().reshape(-1).tolist()]
