"""Learning rates: constant and warm-up + cosine as pure functions of the optimizer step, plateau of evaluations."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from schemas.config import PlateauSchedule, WarmupCosineSchedule
from schemas.config import Schedule as ScheduleConfig

SMALLEST_CHANGE = 1e-8  # a plateau reduction smaller than this is not made, as in torch


def warmup_cosine(step: int, total_steps: int, config: WarmupCosineSchedule) -> float:
    """Share of the peak rate at a step (from 0).

    With w warm-up steps: from 1/w linearly to 1, then a half cosine that reaches `final` after the last step.
    Equal to torch's SequentialLR of LinearLR(1/w, total_iters=w) and CosineAnnealingLR(total - w).

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5.
    """
    warmup = round(config.warmup * total_steps)
    if step < warmup:
        return 1 / warmup + (1 - 1 / warmup) * step / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return config.final + (1 - config.final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass
class Plateau:
    """Reduces the rate by `factor` after more than `patience` evaluations without a better metric, as torch's ReduceLROnPlateau with threshold 0."""

    rate: float
    best: float | None = None
    waited: int = 0

    def observe(self, metric: float, greater_is_better: bool, config: PlateauSchedule) -> None:
        """Count one evaluation."""
        if self.best is None or (metric > self.best if greater_is_better else metric < self.best):
            self.best, self.waited = metric, 0
            return
        self.waited += 1
        if self.waited > config.patience:
            self.waited = 0
            reduced = max(self.rate * config.factor, config.min_lr)
            self.rate = reduced if self.rate - reduced > SMALLEST_CHANGE else self.rate


class Schedule:
    """The rate of every step of a run.

    Args:
        config: the declared schedule.
        peak: the optimizer's declared rate.
        total_steps: optimizer steps of all epochs.
        greater_is_better: direction of the watched metric.
    """

    def __init__(self, config: ScheduleConfig, peak: float, total_steps: int, greater_is_better: bool) -> None:
        self.config, self.peak, self.total_steps, self.greater_is_better = config, peak, total_steps, greater_is_better
        self.plateau = Plateau(peak)

    def rate(self, step: int) -> float:
        """The rate of the step (from 0)."""
        if isinstance(self.config, WarmupCosineSchedule):
            return self.peak * warmup_cosine(step, self.total_steps, self.config)
        return self.plateau.rate  # constant: it stays at the peak

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set the rate of the step that comes next; called after an update that was made, and before the first."""
        for group in optimizer.param_groups:
            group["lr"] = self.rate(step)

    def observe(self, metric: float) -> None:
        """Count one evaluation (plateau)."""
        if isinstance(self.config, PlateauSchedule):
            self.plateau.observe(metric, self.greater_is_better, self.config)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the step."""
        return asdict(self.plateau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.plateau = Plateau(**state)
