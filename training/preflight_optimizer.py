"""The preflight check of `optimizer` and `schedule`: whether they fit this model and this many rows."""

from __future__ import annotations

from torch import nn

from schemas.config import Declaration
from schemas.errors import BulkheadError
from schemas.records import CheckResult
from training.optim import describe_rates, make_optimizer
from training.sampling import Sampler
from training.schedule import Schedule


def check_optimizer(declaration: Declaration, network: nn.Module, train_rows: int) -> CheckResult:
    """Every parameter is in one group, every rule and depth is known, and the schedule fits into the run; evidence: the groups."""
    train = declaration.train
    try:
        rates = declaration.optimizer.scaled(train.batch_size)
        optimizer = make_optimizer(rates, network)
        sampler = Sampler(train_rows, train.batch_size, train.seed, train.drop_last)
        Schedule(declaration.schedule, rates.lr, train.epochs * sampler.steps_per_epoch, declaration.greater_is_better)
    except BulkheadError as error:
        return CheckResult(name="optimizer", verdict="fail", summary=str(error))
    groups = [{"group": g["name"], "peak": g["peak"], "weight_decay": g["weight_decay"], "parameters": len(g["params"])} for g in optimizer.param_groups]
    return CheckResult(
        name="optimizer",
        verdict="pass",
        summary=f"Every parameter is in one group: {describe_rates(optimizer)}.",
        figures={"groups": len(groups)},
        evidence=tuple(groups[:10]),
    )
