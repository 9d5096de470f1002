"""Learning rates equal torch's schedulers step by step, also when resumed in the middle."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.optim import lr_scheduler as torchs
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from schemas.config import (
    AdamWConfig,
    ConstantSchedule,
    PlateauSchedule,
    SgdConfig,
    WarmupCosineSchedule,
)
from schemas.config import Optimizer as OptimizerConfig
from schemas.config import Schedule as ScheduleConfig
from schemas.errors import ConfigError
from tests.training.toys import declare
from training.optim.curves import flat_cos
from training.optim.optimizer import describe_rates, make_optimizer
from training.optim.schedule import Schedule

TOTAL, PEAKS = 200, (0.3, 0.004)  # two groups: the base, and one with a peak of its own
ADAPTER: TypeAdapter[ScheduleConfig] = TypeAdapter(ScheduleConfig)


def config(kind: str, **section: Any) -> ScheduleConfig:
    return ADAPTER.validate_python({"kind": kind, **section})


def optimizer(kind: str = "sgd") -> torch.optim.Optimizer:
    """Ours, over a module with the base rate and one with another."""
    model = torch.nn.Sequential(
        torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    )
    options = {"lr": PEAKS[0], "modules": ({"match": "1", "lr": PEAKS[1]},)}
    return make_optimizer(
        AdamWConfig(**options) if kind == "adamw" else SgdConfig(**options), model
    )


def plain(kind: str = "sgd") -> torch.optim.Optimizer:
    """Torch's, with the same groups."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": peak} for peak in PEAKS]
    return torch.optim.AdamW(groups) if kind == "adamw" else torch.optim.SGD(groups, momentum=0.9)


def after(
    warmup: int, make: Callable[[torch.optim.Optimizer], LRScheduler]
) -> Callable[[torch.optim.Optimizer], LRScheduler]:
    """torch's linear warm-up, then its scheduler."""

    def chained(found: torch.optim.Optimizer) -> LRScheduler:
        parts = [torchs.LinearLR(found, 1 / warmup, total_iters=warmup), make(found)]
        return torchs.SequentialLR(found, parts, milestones=[warmup])

    return chained


CASES: list[tuple[ScheduleConfig, Callable[[torch.optim.Optimizer], LRScheduler]]] = [
    (config("constant"), lambda o: torchs.ConstantLR(o, factor=1.0)),
    (config("constant", warmup=30), after(30, lambda o: torchs.ConstantLR(o, factor=1.0))),
    (config("step", every=30, factor=0.5), lambda o: torchs.StepLR(o, 30, 0.5)),
    (
        config("step", every=0.25, factor=0.3, warmup=0.1),
        after(20, lambda o: torchs.StepLR(o, 50, 0.3)),
    ),
    (
        config("multi_step", milestones=[10, 90, 91, 180], factor=0.7),
        lambda o: torchs.MultiStepLR(o, [10, 90, 91, 180], 0.7),
    ),
    (
        config("multi_step", milestones=[0.5, 0.75], warmup=5),
        after(5, lambda o: torchs.MultiStepLR(o, [100, 150], 0.1)),
    ),
    (config("exponential", every=1, factor=0.98), lambda o: torchs.ExponentialLR(o, 0.98)),
    (
        config("exponential", every=0.1, factor=0.5, warmup=0.05),
        after(10, lambda o: torchs.ExponentialLR(o, 0.5 ** (1 / 20))),
    ),
    (config("cosine", final=0.0), lambda o: torchs.CosineAnnealingLR(o, TOTAL)),
    (config("cosine_restarts", period=50), lambda o: torchs.CosineAnnealingWarmRestarts(o, 50)),
    (
        config("cosine_restarts", period=0.1, growth=2),
        lambda o: torchs.CosineAnnealingWarmRestarts(o, 20, 2),
    ),
    (
        config("cosine_restarts", period=7, growth=3, warmup=11),
        after(11, lambda o: torchs.CosineAnnealingWarmRestarts(o, 7, 3)),
    ),
    (
        config("warmup_cosine", warmup=0.05, final=0.0),
        after(10, lambda o: torchs.CosineAnnealingLR(o, TOTAL - 10)),
    ),
    (
        config("warmup_cosine", warmup=40, final=0.0),
        after(40, lambda o: torchs.CosineAnnealingLR(o, TOTAL - 40)),
    ),
    (
        config("warmup_linear", warmup=0.05),
        after(10, lambda o: torchs.LinearLR(o, 1.0, 0.0, TOTAL - 10)),
    ),
    (
        config("warmup_linear", warmup=40, final=0.2),
        after(40, lambda o: torchs.LinearLR(o, 1.0, 0.2, TOTAL - 40)),
    ),
]


def rates(found: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in found.param_groups]


@pytest.mark.req("T7")
@pytest.mark.parametrize(("declared", "make"), CASES, ids=lambda v: getattr(v, "kind", ""))
def test_every_rate_is_torchs(
    declared: ScheduleConfig, make: Callable[[torch.optim.Optimizer], LRScheduler]
) -> None:
    mine, other = optimizer(), plain()
    scheduler, schedule = make(other), Schedule(declared, PEAKS[0], TOTAL, True)
    for update in range(TOTAL):
        schedule.apply(mine, update)
        # torch multiplies the rates of the steps before, so towards a rate of 0 it keeps fewer
        # digits: 1e-12 of the peak there.
        assert all(
            a == pytest.approx(b, rel=1e-12, abs=1e-12 * peak)
            for a, b, peak in zip(rates(mine), rates(other), PEAKS, strict=True)
        ), update
        assert schedule.rate(update) == rates(mine)[0]
        other.step()
        scheduler.step()


@pytest.mark.req("T7")
@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize(
    "declared",
    [
        config("cosine", final=0.01),
        config("cosine_restarts", period=60, final=0.2),
        config("warmup_cosine", warmup=30, final=0.1),
    ],
)
def test_final_is_a_share_of_each_groups_own_peak(declared: Any, group: int) -> None:
    makers = {
        "cosine": lambda o: torchs.CosineAnnealingLR(o, TOTAL, declared.final * PEAKS[group]),
        "cosine_restarts": lambda o: torchs.CosineAnnealingWarmRestarts(
            o, 60, eta_min=declared.final * PEAKS[group]
        ),
        "warmup_cosine": after(
            30, lambda o: torchs.CosineAnnealingLR(o, TOTAL - 30, declared.final * PEAKS[group])
        ),
    }
    mine, other = optimizer(), plain()
    scheduler, schedule = makers[declared.kind](other), Schedule(declared, PEAKS[0], TOTAL, True)
    for update in range(TOTAL):
        schedule.apply(mine, update)
        assert rates(mine)[group] == pytest.approx(rates(other)[group], rel=1e-12)
        other.step()
        scheduler.step()


@pytest.mark.req("T7")
@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize("warmup", [0.3, 0.25, 0.997, 50])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_one_cycle_is_torchs_in_rate_and_momentum(anneal: Any, warmup: float, kind: str) -> None:
    mine, other = optimizer(kind), plain(kind)
    scheduler = torchs.OneCycleLR(
        other,
        list(PEAKS),
        total_steps=TOTAL,
        pct_start=warmup if warmup < 1 else warmup / TOTAL,
        anneal_strategy=anneal,
    )
    schedule = Schedule(config("one_cycle", anneal=anneal, warmup=warmup), PEAKS[0], TOTAL, True)
    for update in range(TOTAL):
        schedule.apply(mine, update)
        assert rates(mine) == pytest.approx(rates(other), rel=1e-12)
        key = "betas" if kind == "adamw" else "momentum"
        assert [g[key] for g in mine.param_groups] == [
            pytest.approx(g[key], rel=1e-12) for g in other.param_groups
        ]
        other.step()
        if update < TOTAL - 1:
            scheduler.step()


@pytest.mark.req("T7")
def test_one_cycle_may_leave_momentum_alone_and_be_short() -> None:
    mine = optimizer()
    schedule = Schedule(config("one_cycle", cycle_momentum=False), PEAKS[0], TOTAL, True)
    schedule.apply(mine, 60)
    assert {g["momentum"] for g in mine.param_groups} == {0.9}
    for total in (1, 2, 3, 4):
        found = [
            Schedule(config("one_cycle"), 1.0, total, True).rate(update) for update in range(total)
        ]
        assert max(found) == 1.0 or total > 3
        assert all(4e-6 * (1 - 1e-9) <= rate <= 1.0 for rate in found)


@pytest.mark.req("T7")
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("greater", [True, False])
@pytest.mark.parametrize(("threshold", "cooldown"), [(0.0, 0), (0.05, 0), (0.05, 4), (0.3, 1)])
def test_plateau_is_torchs_counted_in_evaluations(
    greater: bool, threshold: float, cooldown: int, threshold_mode: Any
) -> None:
    section = {
        "factor": 0.5,
        "patience": 2,
        "threshold": threshold,
        "threshold_mode": threshold_mode,
        "cooldown": cooldown,
        "min_lr": 1e-3,
    }
    mine, other = optimizer(), plain()
    theirs = ReduceLROnPlateau(other, mode="max" if greater else "min", **section)
    ours, noise = Schedule(config("plateau", **section), PEAKS[0], 1000, greater), random.Random(0)
    for evaluation in range(200):
        metric = noise.random() + (1 if greater else -1) * 0.01 * min(evaluation, 50) + 1
        theirs.step(metric)
        ours.observe(metric)
        ours.apply(mine, evaluation)
        assert rates(mine) == pytest.approx(rates(other), rel=1e-12), evaluation
    assert rates(mine) == [1e-3, 1e-3]


@pytest.mark.req("T7")
def test_a_relative_threshold_is_right_for_negative_metrics_too() -> None:
    for greater in (True, False):
        schedule = Schedule(PlateauSchedule(threshold=0.1, patience=0), 1.0, 100, greater)
        # within a tenth: torch's rule would take one of them for better
        for metric in (-1.0, -1.05, -0.95):
            schedule.observe(metric)
        assert (schedule.plateau.best, schedule.plateau.reductions) == (-1.0, 2)
        schedule.observe(-0.5 if greater else -1.5)
        assert schedule.plateau.reductions == 2


@pytest.mark.req("T7")
def test_plateau_spares_rates_below_the_floor_and_may_warm_up() -> None:
    mine = optimizer()
    schedule = Schedule(
        PlateauSchedule(factor=0.1, patience=0, min_lr=0.01, warmup=10), PEAKS[0], 100, True
    )
    assert schedule.rate(0) == PEAKS[0] / 10
    for _ in range(3):
        schedule.observe(0.0)
    schedule.apply(mine, 10)
    assert rates(mine) == [0.01, PEAKS[1]], "reduced to the floor; never raised to it"


EVERY = [declared for declared, _ in CASES] + [
    config("one_cycle"),
    config("plateau", patience=2, cooldown=1, warmup=20),
]


@pytest.mark.req("T7")
@pytest.mark.req("C2")
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("declared", EVERY, ids=lambda v: v.kind)
def test_resumed_in_the_middle_every_rate_and_parameter_is_the_same_to_the_bit(
    declared: ScheduleConfig, kind: str
) -> None:
    """Saved at update 87 with the optimizer, loaded with weights_only into new objects."""
    noise = [random.Random(update).random() for update in range(TOTAL)]

    def go(
        found: torch.optim.Optimizer, schedule: Schedule, updates: range, at: int | None = None
    ) -> tuple[list[list[float]], bytes]:
        trace, saved = [], io.BytesIO()
        for update in updates:
            if update == at:
                weights = [group["params"][0].detach().clone() for group in found.param_groups]
                torch.save(
                    {
                        "weights": weights,
                        "optimizer": found.state_dict(),
                        "schedule": schedule.state_dict(),
                    },
                    saved,
                )
            schedule.apply(found, update)
            for group in found.param_groups:
                group["params"][0].grad = torch.full((1, 1), noise[update] - 0.3)
            found.step()
            if update % 5 == 4:
                schedule.observe(noise[update])
            trace.append(
                rates(found) + [float(group["params"][0].detach()) for group in found.param_groups]
            )
        return trace, saved.getvalue()

    def start() -> tuple[torch.optim.Optimizer, Schedule]:
        torch.manual_seed(0)
        return optimizer(kind), Schedule(declared, PEAKS[0], TOTAL, True)

    whole, saved = go(*start(), range(TOTAL), at=87)
    found, schedule = start()
    state = torch.load(io.BytesIO(saved), weights_only=True)
    found.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    for group, weight in zip(found.param_groups, state["weights"], strict=True):
        group["params"][0].data.copy_(weight)
    assert go(found, schedule, range(87, TOTAL))[0] == whole[87:]


@pytest.mark.req("T7")
def test_warmup_may_be_nothing_and_the_rate_is_never_zero_at_the_start() -> None:
    none = Schedule(WarmupCosineSchedule(warmup=0.0, final=0.1), 1.0, 10, True)
    assert none.rate(0) == 1.0
    one_step = Schedule(WarmupCosineSchedule(warmup=0.1, final=0.1), 1.0, 10, True)
    assert [one_step.rate(0), one_step.rate(1)] == [1.0, 1.0]
    assert Schedule(WarmupCosineSchedule(), 1.0, 1, True).rate(0) == 1.0


@pytest.mark.req("T7")
def test_constant_stays_to_the_bit() -> None:
    schedule = Schedule(ConstantSchedule(), 0.2, 50, True)
    schedule.observe(1.0)
    assert {schedule.rate(update) for update in range(50)} == {0.2}


@pytest.mark.req("T7")
@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "step", "every": 1.5}, "a share below 1 or a whole number of updates, got 1.5"),
        (
            {"kind": "multi_step", "milestones": [0.5, 0.5]},
            r"milestones must rise, got \[0.5, 0.5\]",
        ),
        ({"kind": "multi_step", "milestones": [0.5, 100]}, "all shares below 1 or all numbers"),
        ({"kind": "one_cycle", "low_momentum": 0.97}, "exchange them"),
        ({"kind": "cosine", "warmup": 0.1}, "Extra inputs"),
        ({"kind": "plateau", "factor": 1.0}, "less than 1"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ADAPTER.validate_python(section)


@pytest.mark.req("T7")
@pytest.mark.parametrize(
    ("section", "key"),
    [
        (
            {"kind": "constant", "warmup": 50},
            "warmup: expected fewer updates than the run has .50., got 50",
        ),
        ({"kind": "one_cycle", "warmup": 60}, "warmup"),
        ({"kind": "step", "every": 60}, "every"),
        ({"kind": "multi_step", "milestones": [10, 60]}, "milestones"),
    ],
)
def test_a_schedule_that_the_run_never_reaches_is_refused(
    section: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"schedule.{key}"):
        Schedule(config(**section), 1.0, 50, True)
    Schedule(config(**section), 1.0, 61, True)


@pytest.mark.req("T7")
def test_one_cycle_without_momentum_to_cycle_is_refused() -> None:
    sgd = {"kind": "sgd", "momentum": 0.0}
    with pytest.raises(
        ValidationError, match=r"optimizer.momentum is 0; set schedule.cycle_momentum: false"
    ):
        declare("binary", optimizer=sgd, schedule={"kind": "one_cycle"})
    declare("binary", optimizer=sgd, schedule={"kind": "one_cycle", "cycle_momentum": False})


@pytest.mark.req("T7")
def test_coslog4_and_flat_cos_are_their_closed_forms() -> None:
    schedule = Schedule(config("coslog4"), PEAKS[0], TOTAL, True)
    for update in range(TOTAL):
        t = update / TOTAL
        expected = (1 - math.cos(2 * math.pi * math.log(1 + 15 * t, 2))) / 2
        assert schedule.rate(update) == pytest.approx(PEAKS[0] * expected, abs=1e-12)
        flat = 1.0 if t <= 0.5 else (1 + math.cos(math.pi * (2 * t - 1))) / 2
        assert flat_cos(t) == pytest.approx(flat, abs=1e-12)
    peaks = [
        k
        for k in range(1, TOTAL)
        if schedule.rate(k - 1) < schedule.rate(k) >= schedule.rate(k + 1)
    ]
    assert len(peaks) == 4, "four cycles"


@pytest.mark.req("T7")
@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_weight_decay_follows_its_schedule_and_a_loaded_optimizer_goes_on(kind: str) -> None:
    declared = TypeAdapter(OptimizerConfig).validate_python(
        {"kind": kind, "weight_decay": 0.2, "weight_decay_schedule": "flat_cos"}
    )
    schedule = Schedule(config("constant"), declared.lr, TOTAL, True)
    ours = make_optimizer(declared, torch.nn.Linear(3, 3))
    resumed = make_optimizer(declared, torch.nn.Linear(3, 3))
    for update in (0, 100, 150, 199, 200):
        schedule.apply(ours, update)
        found = {group["name"]: group["weight_decay"] for group in ours.param_groups}
        assert found == {"decay": pytest.approx(0.2 * flat_cos(update / TOTAL)), "no_decay": 0.0}
    resumed.load_state_dict(ours.state_dict())
    schedule.apply(resumed, 150)
    assert resumed.param_groups[0]["weight_decay"] == pytest.approx(0.1)
    assert "weight decay on 1 of 2" in describe_rates(ours), "0 at the end is a decay, too"
    constant = declared.model_copy(update={"weight_decay_schedule": "constant"})
    assert "peak_decay" not in make_optimizer(constant, torch.nn.Linear(3, 3)).param_groups[0]
