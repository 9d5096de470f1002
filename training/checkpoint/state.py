"""State of a running training: the trainer's own state, and the digest of a model's weights."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from schemas.config import Declaration
from schemas.records import RunSpec, digest_of
from schemas.train_config import TrainConfig

WEIGHT_SECTIONS = ("task", "model", "loss", "optimizer", "schedule", "train")
# of train: the weights do not depend on them; ranks count as `world_size`
WEIGHT_FREE = ("ranks", "nodes", "rendezvous", "keep", "log_every", "profile", "refit")

# these only round differently
FREE_IN_FAST = ("micro_batch_size", "recompute_activations", "compile", "threads")


@dataclass
class TrainerState:
    """Position, best result and patience: plain values, saved with every checkpoint.

    `step`: accumulation windows processed, the position in the data. `updates`: those of them that
    changed the weights; fewer only if fp16 gradients overflowed. `evaluated_step`: the step of the
    last evaluation. `best_metric` at `best_step`: the best so far. `reference`: the metric that
    patience compares with; `waited`: evaluations since it improved by more than `min_delta`, of
    all `evaluations`.
    `loss_sum`, `weight_sum`: of train rows since the last evaluation. `rows` seen in
    `train_seconds` of steps; `seconds` of everything.
    """

    step: int = 0
    updates: int = 0
    evaluated_step: int = 0
    best_step: int = 0
    best_metric: float | None = None
    reference: float | None = None
    waited: int = 0
    evaluations: int = 0
    loss_sum: float = 0.0
    weight_sum: float = 0.0
    rows: int = 0
    train_seconds: float = 0.0
    seconds: float = 0.0
    instabilities: list[str] = field(default_factory=list)

    def count(self, rows: int, loss: float, weight: float, updated: bool) -> None:
        """Count a step: a window of this many rows, with its loss and sum of weights."""
        self.step += 1
        self.updates += updated
        self.rows += rows
        self.loss_sum += loss * weight
        self.weight_sum += weight

    def observe(self, metric: float, greater_is_better: bool, min_delta: float) -> bool:
        """Count the evaluation of this step; return True if it is the best so far."""
        self.evaluated_step, self.evaluations = self.step, self.evaluations + 1
        self.loss_sum = self.weight_sum = 0.0
        sign = 1.0 if greater_is_better else -1.0
        if self.reference is None or sign * (metric - self.reference) > min_delta:
            self.reference, self.waited = metric, 0
        else:
            self.waited += 1
        better = self.best_metric is None or sign * (metric - self.best_metric) > 0
        if better:
            self.best_metric, self.best_step = metric, self.step
        return better

    def allowed(self, train: TrainConfig) -> int:
        """Return the evaluations without improvement after which training stops."""
        return train.patience + int((train.patience_factor - 1) * (self.evaluations - self.waited))

    @property
    def rows_per_second(self) -> float:
        """Return the train rows processed per second of training steps."""
        return self.rows / max(self.train_seconds, 1e-9)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> TrainerState:
        """Return the saved state."""
        return cls(**state)


def model_digest(state_dict: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and raw bytes of tensors, sorted by name.

    >>> model_digest({"b": torch.zeros(1), "a": torch.ones(2)}) == model_digest({"a": torch.ones(2),
    ...     "b": torch.zeros(1)})
    True
    """
    digest = hashlib.sha256()
    for name in sorted(state_dict):
        tensor = state_dict[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def identity(spec: RunSpec, declaration: Declaration, world_size: int) -> dict[str, Any]:
    """Return the facts that a checkpoint shares with its run: all that decide the weights."""
    sections = {
        name: getattr(declaration, name).model_dump(mode="json") for name in WEIGHT_SECTIONS
    }
    exact = declaration.train.mode == "exact"
    free = (*WEIGHT_FREE, *(FREE_IN_FAST if declaration.train.mode == "fast" else ()))
    sections["train"] = {key: value for key, value in sections["train"].items() if key not in free}
    return {
        **sections,
        "world_size": world_size if exact else None,
        "statistics": digest_of(spec.statistics),
        "arrays": spec.arrays.sha256,
        **({} if spec.init is None else {"init": spec.init.sha256}),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Return the facts that `exact` needs to be the same, recorded with each checkpoint."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
    }
