"""Preflight checks of `optimizer`, `schedule` and `loss` for this model and number of rows."""

from __future__ import annotations

import math

from torch import nn

from schemas.config import Declaration
from schemas.errors import BulkheadError, first_few
from schemas.records import CheckResult, Statistics
from training.engine.sampling import Sampler
from training.models.parameter_names import unfreeze_steps
from training.objectives.targets import targets_of
from training.optim.optimizer import describe_rates, make_optimizer
from training.optim.schedule import Schedule
from training.preflight.verdict import Check, Figure

OPTIMIZER = Check("optimizer")
SMOOTHING = Check("smoothing")
# sampled updates of the rate; least mean share of the peak
SAMPLED, LEFT = 1000, 0.02
FLAT = 0.9  # least loss with label smoothing, as a share of that of a uniform guess


def check_optimizer(declaration: Declaration, network: nn.Module, train_rows: int) -> CheckResult:
    """Check that every parameter is in one group, every rule and depth is known, and the schedule
    fits the run. The evidence contains the groups.
    """
    train = declaration.train
    try:
        rates = declaration.optimizer.scaled(train.batch_size)
        optimizer = make_optimizer(rates, network)
        sampler = Sampler(train_rows, train.batch_size, train.seed, train.drop_last)
        steps = train.epochs * sampler.steps_per_epoch
        schedule = Schedule(declaration.schedule, rates.lr, steps, declaration.greater_is_better)
        waiting = unfreeze_steps(network, declaration.model)
    except BulkheadError as error:
        return CheckResult(name="optimizer", verdict="fail", summary=str(error))
    if late := [name for name, first in waiting.items() if first >= steps]:
        return OPTIMIZER.failed(
            f"model.unfreeze_at: {first_few(late)} would be trained from step"
            f" {waiting[late[0]]} on, and the run has {steps} steps.",
            "lower the step, raise train.epochs, or list them under model.freeze",
        )
    sampled = min(steps, SAMPLED)
    mean = sum(schedule.rate(k * steps // sampled) for k in range(sampled)) / sampled
    left = mean / max(rates.lr, 1e-30)
    if left < LEFT:
        return OPTIMIZER.warned(
            f"schedule {declaration.schedule.kind}: over the {steps} updates of the run the rate is"
            f" {left:.2g} of its peak on average: it is gone before anything is learned.",
            "let the schedule fall more slowly; its lengths count updates, not epochs",
        )
    groups = [
        {"group": g["name"], "peak": g["peak"], "weight_decay": g["weight_decay"]}
        | {"parameters": len(g["params"])}
        for g in optimizer.param_groups
    ]
    told = f"Every parameter is in one group: {describe_rates(optimizer)}."
    result = OPTIMIZER.passed(told, groups=len(groups))
    return result.model_copy(update={"evidence": tuple(groups[:10])})


def check_smoothing(declaration: Declaration, statistics: Statistics) -> list[CheckResult]:
    """Check that the least loss under label smoothing is well below that of a uniform guess. There
    is no result without smoothing.
    """
    smoothing = declaration.loss.label_smoothing
    targets = targets_of(declaration, statistics)
    sizes = [len(t.statistics.classes) for t in targets if t.kind == "multiclass"]
    if not targets:
        sizes = [len(statistics.classes)]
    if not smoothing or not sizes:
        return []
    classes = max(sizes)
    kept, spread = 1 - smoothing + smoothing / classes, smoothing / classes
    least = -kept * math.log(kept) - (classes - 1) * spread * math.log(spread)
    uniform = math.log(classes)
    told = (
        f"With loss.label_smoothing {smoothing:g} over {classes} classes the loss can fall from"
        f" {uniform:.4g} to {least:.4g} at best"
    )
    figures: dict[str, Figure] = {"least_loss": least, "uniform_loss": uniform}
    if least < FLAT * uniform:
        return [SMOOTHING.passed(f"{told}.", **figures)]
    told += ": hardly anything of the labels is left to learn."
    return [SMOOTHING.failed(told, "set loss.label_smoothing to about 0.1", **figures)]
