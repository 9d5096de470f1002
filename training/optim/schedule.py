"""Learning rates and weight decay: pure functions of the number of updates made.

Only the plateau counts evaluations instead and has a state. A group's rate is its own peak
(training.optim.groups) times the schedule's share, so that layer decay and rules for modules keep
their proportion.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from schemas.config import OneCycleSchedule, PlateauSchedule
from schemas.config import Schedule as ScheduleConfig
from training.optim.curves import flat_cos, one_cycle, require_reached, share

SMALLEST_CHANGE = 1e-8  # a plateau reduction smaller than this is not made, as in torch


@dataclass
class Plateau:
    """Count evaluations without a better metric, and the reductions after them.

    It follows torch's ReduceLROnPlateau.

    One difference: a relative threshold is a share of the best value's size, so that it is right
    for negative metrics too.
    """

    best: float | None = None
    waited: int = 0
    cooling: int = 0
    reductions: int = 0

    def observe(self, metric: float, greater_is_better: bool, config: PlateauSchedule) -> None:
        """Count one evaluation."""
        if self.best is None or self._is_better(metric, self.best, greater_is_better, config):
            self.best, self.waited = metric, 0
        else:
            self.waited += 1
        if self.cooling:
            self.cooling, self.waited = self.cooling - 1, 0
        if self.waited > config.patience:
            self.waited, self.cooling, self.reductions = 0, config.cooldown, self.reductions + 1

    def _is_better(
        self, metric: float, best: float, greater_is_better: bool, config: PlateauSchedule
    ) -> bool:
        margin = config.threshold * (abs(best) if config.threshold_mode == "rel" else 1.0)
        return metric > best + margin if greater_is_better else metric < best - margin

    def rate(self, peak: float, config: PlateauSchedule) -> float:
        """Return the reduced rate of a peak; a peak below `min_lr` stays unchanged."""
        for _ in range(self.reductions):
            reduced = max(peak * config.factor, config.min_lr)
            if peak - reduced <= SMALLEST_CHANGE:
                break
            peak = reduced
        return peak


class Schedule:
    """Rate of every update of a run.

    Args:
        config: the declared schedule.
        peak: the optimizer's rate, `lr_scaling` resolved.
        total_steps: optimizer updates of all epochs.
        greater_is_better: direction of the watched metric.

    Raises:
        ConfigError: a length of the schedule is longer than the run.
    """

    def __init__(
        self, config: ScheduleConfig, peak: float, total_steps: int, greater_is_better: bool
    ) -> None:
        require_reached(config, total_steps)
        self.config, self.peak, self.total_steps, self.greater_is_better = (
            config,
            peak,
            total_steps,
            greater_is_better,
        )
        self.plateau = Plateau()

    def rate(self, updates: int, peak: float | None = None) -> float:
        """Return the rate of the update after this many, for a group with this peak.

        The default is the declared peak.
        """
        peak = self.peak if peak is None else peak
        left = (
            self.plateau.rate(peak, self.config)
            if isinstance(self.config, PlateauSchedule)
            else peak
        )
        return left * share(self.config, updates, self.total_steps)

    def momentum(self, updates: int) -> float | None:
        """Return momentum or beta1 of that update, if the schedule changes it."""
        if not (isinstance(self.config, OneCycleSchedule) and self.config.cycle_momentum):
            return None
        low, high = self.config.low_momentum, self.config.high_momentum
        return one_cycle(self.config, updates, self.total_steps, (high, low, high))

    def apply(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        """Set the rate (and momentum, and weight decay if it has a schedule) of the next update.

        Call it after an update that was made, and before the first. It never waits for the device.
        """
        momentum = self.momentum(updates)
        for group in optimizer.param_groups:
            group["lr"] = self.rate(updates, group["peak"])
            if "peak_decay" in group:
                left = flat_cos(updates / max(1, self.total_steps))
                group["weight_decay"] = group["peak_decay"] * left
            if momentum is not None and "betas" in group:
                group["betas"] = (momentum, group["betas"][1])
            elif momentum is not None:
                group["momentum"] = momentum

    def observe(self, metric: float) -> None:
        """Count one evaluation (plateau)."""
        if isinstance(self.config, PlateauSchedule):
            self.plateau.observe(metric, self.greater_is_better, self.config)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs besides the number of updates."""
        return asdict(self.plateau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.plateau = Plateau(**state)
