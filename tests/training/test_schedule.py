"""Learning rates equal torch's schedulers step by step, also when resumed in the middle."""

from __future__ import annotations

import random

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, ReduceLROnPlateau, SequentialLR

from schemas.config import ConstantSchedule, PlateauSchedule, WarmupCosineSchedule
from training.schedule import Schedule


def optimizer(lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.zeros(1))]}], lr=lr)


@pytest.mark.req("T7")
@pytest.mark.parametrize(("warmup", "final"), [(0.05, 0.01), (0.5, 0.0), (0.005, 1.0)])
def test_warmup_cosine_is_torchs(warmup: float, final: float) -> None:
    total, peak = 200, 0.3
    steps = round(warmup * total)
    plain = optimizer(peak)
    schedulers = [LinearLR(plain, 1 / steps, total_iters=steps), CosineAnnealingLR(plain, total - steps, eta_min=final * peak)]
    theirs = SequentialLR(plain, schedulers, milestones=[steps])
    ours, mine = Schedule(WarmupCosineSchedule(warmup=warmup, final=final), peak, total, True), optimizer(peak)
    for step in range(total):
        ours.apply(mine, step)
        assert [g["lr"] for g in mine.param_groups] == pytest.approx([g["lr"] for g in plain.param_groups], rel=1e-9)
        plain.step()
        theirs.step()
    assert ours.rate(total) == pytest.approx(final * peak)


@pytest.mark.req("T7")
def test_warmup_may_be_nothing_and_the_rate_is_never_zero_at_the_start() -> None:
    none = Schedule(WarmupCosineSchedule(warmup=0.0, final=0.1), 1.0, 10, True)
    assert none.rate(0) == 1.0
    one_step = Schedule(WarmupCosineSchedule(warmup=0.1, final=0.1), 1.0, 10, True)
    assert [one_step.rate(0), one_step.rate(1)] == [1.0, 1.0]
    assert Schedule(WarmupCosineSchedule(), 1.0, 1, True).rate(0) == 1.0


@pytest.mark.req("T7")
def test_constant_stays() -> None:
    schedule = Schedule(ConstantSchedule(), 0.2, 50, True)
    schedule.observe(1.0)
    assert {schedule.rate(step) for step in range(50)} == {0.2}


@pytest.mark.req("T7")
@pytest.mark.parametrize("greater", [True, False])
def test_plateau_is_torchs_counted_in_evaluations_and_resumes(greater: bool) -> None:
    config = PlateauSchedule(factor=0.5, patience=2, min_lr=1e-4)
    plain, mine = optimizer(0.1), optimizer(0.1)
    theirs = ReduceLROnPlateau(plain, mode="max" if greater else "min", factor=0.5, patience=2, threshold=0.0, threshold_mode="abs", min_lr=1e-4)
    ours = Schedule(config, 0.1, 1000, greater)
    noise = random.Random(0)
    for evaluation in range(200):
        metric = noise.random()
        theirs.step(metric)
        ours.observe(metric)
        if evaluation == 17:  # in mid-run
            state = ours.state_dict()
            ours = Schedule(config, 0.1, 1000, greater)
            ours.load_state_dict(state)
        ours.apply(mine, evaluation)
        assert mine.param_groups[0]["lr"] == pytest.approx(plain.param_groups[0]["lr"], rel=1e-12)
    assert mine.param_groups[0]["lr"] == 1e-4
