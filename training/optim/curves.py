"""Share of the peak rate at an update (from 0), for every schedule.

All functions are pure functions of the update number. u updates made, of `total` in the run;
lengths below 1 are shares of `total`, as in the declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from schemas.config import (
    CosineRestartsSchedule,
    CosineSchedule,
    CosLog4Schedule,
    ExponentialSchedule,
    MultiStepSchedule,
    OneCycleSchedule,
    Schedule,
    StepSchedule,
    WarmupCosineSchedule,
    WarmupLinearSchedule,
)
from schemas.errors import ConfigError
from schemas.schedule_config import WarmedSection


def updates_of(length: float, total: int) -> int:
    """Return a declared length in updates.

    >>> updates_of(0.05, 200), updates_of(30, 200)
    (10, 30)
    """
    return round(length * total) if length < 1 else int(length)


def require_reached(config: Schedule, total: int) -> None:
    """Refuse a length in updates that the run never reaches: the schedule would silently change.

    Raises:
        ConfigError: naming the key, its value, and the updates of the run.
    """
    lengths: dict[str, float] = {}
    if isinstance(config, WarmedSection | OneCycleSchedule):
        lengths["warmup"] = config.warmup
    if isinstance(config, StepSchedule):
        lengths["every"] = config.every
    if isinstance(config, MultiStepSchedule):
        lengths["milestones"] = config.milestones[-1]
    for key, length in lengths.items():
        if length >= max(1, total):
            raise ConfigError(
                f"schedule.{key}: expected fewer updates than the run has ({total}), got"
                f" {length:g}; give a share below 1, or train for longer"
            )


def share(config: Schedule, update: int, total: int) -> float:
    """Return the share of the peak at an update.

    It is in (0, 1] during warm-up, then follows the schedule; it is always 1 for constant and
    plateau, and 0 at the first update of coslog4. With w > 0 warm-up updates it begins at 1 / w and
    rises in equal steps to 1 at update w. The schedule proper counts from there, as in torch's
    SequentialLR of LinearLR(1 / w, total_iters=w) and its own scheduler.
    """
    warmup = updates_of(config.warmup, total) if isinstance(config, WarmedSection) else 0
    if update < warmup:
        return 1 / warmup + (1 - 1 / warmup) * update / warmup
    return _after_warmup(config, update - warmup, max(1, total - warmup), total)


def _after_warmup(config: Schedule, update: int, remaining: int, total: int) -> float:
    match config:
        case CosineSchedule() | WarmupCosineSchedule():
            return cosine(min(1.0, update / remaining), config.final)
        case CosLog4Schedule():
            return cos_log4(update / remaining)
        case WarmupLinearSchedule():
            return 1 + (config.final - 1) * min(1.0, update / remaining)
        case CosineRestartsSchedule():
            return cosine(
                progress_of_period(update, max(1, updates_of(config.period, total)), config.growth),
                config.final,
            )
        case StepSchedule():
            return float(config.factor ** (update // max(1, updates_of(config.every, total))))
        case ExponentialSchedule():
            return float(config.factor ** (update / max(1, updates_of(config.every, total))))
        case MultiStepSchedule():
            return float(
                config.factor ** sum(update >= updates_of(m, total) for m in config.milestones)
            )
        case OneCycleSchedule():
            return one_cycle(config, update, total, (config.initial, 1.0, config.final))
    return 1.0


def cosine(progress: float, final: float) -> float:
    """Return half a cosine from 1 to `final`.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5.
    """
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def cos_log4(progress: float) -> float:
    """Return four cosines from 0 to 1 and back, each twice as long as the one before.

    Source: Holzmüller et al. 2024, arXiv:2407.04491, sec. 3.2.

    >>> [round(cos_log4(t), 6) for t in (0, 1 / 15, 3 / 15, 7 / 15, 1)]
    [0.0, 0.0, 0.0, 0.0, 0.0]
    """
    return (1 - math.cos(2 * math.pi * math.log2(1 + 15 * progress))) / 2


def flat_cos(progress: float) -> float:
    """Return 1 for the first half of a run, then half a cosine from 1 to 0.

    Source: Holzmüller et al. 2024, arXiv:2407.04491, sec. 3.2.

    >>> [flat_cos(t) for t in (0.0, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.5, 0.0]
    """
    return (1 + math.cos(math.pi * min(1.0, max(0.0, 2 * progress - 1)))) / 2


def progress_of_period(update: int, period: int, growth: int) -> float:
    """Return the position of the update in its period, in [0, 1).

    Each period is `growth` times as long as the previous one.

    >>> [progress_of_period(u, 2, 2) for u in range(7)]
    [0.0, 0.5, 0.0, 0.25, 0.5, 0.75, 0.0]
    """
    if growth == 1:
        return update % period / period
    while update >= period:
        update, period = update - period, period * growth
    return update / period


def one_cycle(
    config: OneCycleSchedule, update: int, total: int, levels: tuple[float, float, float]
) -> float:
    """Return one cycle of three levels, like torch's OneCycleLR.

    It goes from the first level to the second at the end of the way up, then to the third at the
    last update.

    Source: Smith and Topin 2017, arXiv:1708.07120.
    """
    first, middle, last = levels
    way_up = config.warmup * total if config.warmup < 1 else config.warmup
    turn = max(0.0, way_up - 1)  # the update at the peak; not rounded, as in torch
    between = ANNEAL[config.anneal]
    if update <= turn:
        return between(first, middle, update / turn if turn > 0 else 1.0)
    return between(middle, last, min(1.0, (update - turn) / max(total - 1 - turn, 1e-9)))


def _between_cos(start: float, end: float, progress: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))


def _between_linear(start: float, end: float, progress: float) -> float:
    return start + (end - start) * progress


ANNEAL: dict[Literal["cos", "linear"], Callable[[float, float, float], float]] = {
    "cos": _between_cos,
    "linear": _between_linear,
}
