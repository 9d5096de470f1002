"""Learning rates as they were, against the schedules that were to set them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from training.watch.forwards import Forwards
from training.watch.horizons import (
    better,
    counts_steps,
    never_stops,
    rises_again,
    swings_on_purpose,
    tries_out,
    warms_to_the_end,
)
from training.watch.loaders import Loaders
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

FEW, SOME, MANY = 4, 5, 10
LAYERS = 2
GONE, LOW, HIGH = 1e-4, 0.02, 1000.0  # of the first rate
DIVERGED, RISEN = 10.0, 3.0  # of any loss, of one with labels
TOGETHER, WHOLE = 0.5, 1e-4
IDLE, TENTH = 3, 0.1  # first steps at rate 0; of a metric
RISEN_TO = 0.5  # of the rate that was asked for, at the end of a run that only warmed up
LONGER, CLIMBED = 1.3, 0.4  # times its steps, of a cosine that is past its end; of its largest rate
FALLING, CLIMBS = ("ExponentialLR", "StepLR", "MultiStepLR", "CosineAnnealingLR"), 1.5
SHORT = 3  # times the steps of a run, of a schedule that it leaves at its beginning
# rates that move each weight so far, and the loss at the end
ADAPTIVE, TOO_HIGH, FALLEN = (("Adam", "NAdam", "RAdam", "RMSprop"), 0.1, 0.95)


@dataclass(eq=False)
class Schedule:
    """A schedule and how often it was stepped."""

    scheduler: Any
    made: Place
    steps: int = 0
    place: Place | None = None
    before_first: bool = False
    metrics: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # evaluated before each of them
    idle: int = 0  # times in a row that it was stepped, and its optimizer was not
    own: int = 0  # steps of its optimizer, and of all, when it was stepped last
    all: int = 0


@dataclass(eq=False)
class Rates:
    """Of one optimizer: the first, and the largest of its groups at each step."""

    optimizer: torch.optim.Optimizer
    declared: float
    rates: list[float] = field(default_factory=list)


class Schedules(Listener):
    """Listens to schedulers, rates and losses."""

    def __init__(self, watch: Watch, forwards: Forwards, loaders: Loaders) -> None:
        self.watch, self.forwards, self.loaders = watch, forwards, loaders
        self.schedules: dict[int, Schedule] = {}
        self.rates: dict[int, Rates] = {}
        self.losses: dict[Place, list[float]] = {}
        self.after_bad = 0
        self.supervised: Callable[[], dict[Place, list[float]]] = dict
        # where an optimizer is
        self.made: Callable[[torch.optim.Optimizer], Place | None] = lambda _: None
        # backward passes that reached an optimizer
        self.passes: Callable[[torch.optim.Optimizer], int] = lambda _: 0
        self._depth = 0

    def install(self) -> None:
        """Listen."""
        for kind in (
            lr_scheduler.LRScheduler,
            lr_scheduler.ReduceLROnPlateau,
            lr_scheduler.SequentialLR,
            lr_scheduler.ChainedScheduler,
        ):
            if "__init__" in vars(kind):
                around(kind, "__init__", self._made)
        for kind in {
            v
            for v in vars(lr_scheduler).values()
            if isinstance(v, type) and issubclass(v, lr_scheduler.LRScheduler) and "step" in vars(v)
        }:
            around(kind, "step", self._step)

    def _made(
        self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._depth += 1
        try:
            original(scheduler, *args, **kwargs)
        finally:
            self._depth -= 1
        if not self.watch.quiet and not self._depth:
            for part in getattr(scheduler, "_schedulers", ()):
                self.schedules.pop(id(part), None)  # stepped by the one that holds it
            self.schedules[id(scheduler)] = Schedule(scheduler, self.watch.here())

    def _step(self, original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._depth and not self.watch.quiet and id(scheduler) in self.schedules:
            self._count(
                self.schedules[id(scheduler)], kwargs.get("metrics", args[0] if args else None)
            )
        self._depth += 1
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._depth -= 1

    @guarded
    def _count(self, known: Schedule, metric: Any) -> None:
        """A step of a schedule, and what a plateau is given."""
        known.steps += 1
        known.place = self.watch.here()
        self._idle(known)
        rates = self._rates_of(known.scheduler)
        sets = (
            isinstance(known.scheduler, lr_scheduler.CosineAnnealingWarmRestarts)
            and metric is not None
        )  # a place on the curve, not one step more
        if known.steps == 1 and not sets and (rates is None or not rates.rates):
            known.before_first = True
        if isinstance(known.scheduler, lr_scheduler.ReduceLROnPlateau) and metric is not None:
            known.metrics.append(float(metric))
            known.rows.append(self.forwards.evaluated)

    def _idle(self, known: Schedule) -> None:
        """A schedule that goes on while its optimizer has stopped, and another makes the steps."""
        rates = self._rates_of(known.scheduler)
        own = len(rates.rates) if rates is not None else 0
        known.idle = (
            known.idle + 1 if own and own == known.own and self.watch.steps > known.all else 0
        )
        known.own, known.all = own, self.watch.steps
        if known.idle >= SOME:
            self.watch.tell(
                "BH112",
                f"{type(known.scheduler).__name__} sets the rate of an optimizer that makes no more"
                " steps: another one does",
                known.made,
            )

    def _rates_of(self, scheduler: Any) -> Rates | None:
        """Of the optimizer that a schedule sets, which may be held in a wrapper with the same
        groups.
        """
        groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
        return next((r for r in self.rates.values() if r.optimizer.param_groups is groups), None)

    # -------------------------------------------------------------------------------------
    # listening

    def backed(self, loss: Tensor, place: Place) -> None:
        """Keep the loss of a line."""
        if loss.numel() == 1:
            value = float(loss.detach())
            self.losses.setdefault(place, []).append(value)
            self.after_bad = self.after_bad + 1 if not math.isfinite(value) else 0

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the rate of a step."""
        rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g]
        if not rates:
            return
        declared = float(optimizer.defaults.get("lr", rates[0]))
        self.rates.setdefault(id(optimizer), Rates(optimizer, declared)).rates.append(max(rates))
        if self.after_bad > SOME:
            self.watch.tell(
                "BH808", "the loss is not a finite number, and steps go on: all weights are lost"
            )

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """What the whole run shows."""
        for schedule in self.schedules.values():
            rates = self._rates_of(schedule.scheduler)
            steps = len(rates.rates) if rates is not None else 0
            self._used(schedule, steps)
            if rates is not None and schedule.steps and self.watch.complete:
                self._cadence(schedule, rates)
                self._warms(schedule, rates)
                self._stairs(schedule, len(rates.rates))
                self._climbs(schedule, rates.rates)
        scheduled = {
            id(r) for s in self.schedules.values() if (r := self._rates_of(s.scheduler)) is not None
        }
        for rates in self.rates.values():
            if id(rates) not in scheduled and self.watch.complete:
                self._by_hand(rates)
        self._diverged()
        if self.watch.complete and not any(rule == "BH808" for rule, _ in self.watch.found):
            self._too_high()

    def _used(self, schedule: Schedule, steps: int) -> None:
        name = type(schedule.scheduler).__name__
        epochs = max((u.epochs for u in self.loaders.used.values() if u.steps), default=1)
        if not schedule.steps and steps >= SOME and (self.watch.complete or epochs > 2):
            self.watch.tell(
                "BH112",
                f"{name} was made, and in {steps} steps of its optimizer it was never stepped",
                schedule.made,
            )
        elif schedule.steps and not steps and self.watch.steps >= SOME:
            self.watch.tell(
                "BH112", f"{name} sets the rate of an optimizer that makes no step", schedule.made
            )
        elif schedule.before_first and steps:
            self.watch.tell("BH111", f"{name} was stepped before its optimizer", schedule.place)

    def _stairs(self, schedule: Schedule, steps: int) -> None:
        """Whether a schedule of stairs counts batches and is stepped once an epoch."""
        scheduler, calls = schedule.scheduler, schedule.steps
        if (
            isinstance(scheduler, lr_scheduler.MultiStepLR | lr_scheduler.StepLR)
            and calls <= steps / 2
            and calls < changes(scheduler) <= steps
        ):
            told = (
                f"{type(scheduler).__name__} changes the rate after {changes(scheduler)} steps for"
                f" the first time, and was stepped {calls} times"
            )
            self.watch.tell(
                "BH114",
                f"{told} in {steps} steps of its optimizer: it counts batches, and is stepped once"
                " an epoch",
                schedule.place,
            )

    def _cadence(self, schedule: Schedule, rates: Rates) -> None:
        """Whether a schedule counts batches or epochs, against what it was made for."""
        scheduler, steps, calls = schedule.scheduler, len(rates.rates), schedule.steps
        name, place, first = type(scheduler).__name__, schedule.place, rates.declared
        each, seldom = calls >= 0.8 * steps, calls <= steps / 2
        meant = getattr(scheduler, "total_steps", None) or (
            scheduler.T_max if isinstance(scheduler, lr_scheduler.CosineAnnealingLR) else None
        )
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            self._plateau(schedule, steps)
        elif meant and seldom and calls <= meant / 2 and meant >= 0.8 * steps:
            self.watch.tell(
                "BH114",
                f"{name} is made for {meant} steps, and was stepped {calls} times in {steps} steps"
                " of its optimizer",
                place,
            )
        elif (
            meant
            and each
            and isinstance(scheduler, lr_scheduler.CosineAnnealingLR)
            and calls >= 2 * meant
        ):
            self.watch.tell(
                "BH113",
                f"{name} is made for {meant} steps, and was stepped {calls} times: it counts"
                " batches where epochs are meant",
                place,
            )
        elif steps >= MANY and each and sum(r < GONE * first for r in rates.rates) > 0.4 * steps:
            self.watch.tell(
                "BH113",
                f"{name} has brought the rate from {first:g} to {rates.rates[-1]:.2g}: it counts"
                " batches where epochs are meant",
                place,
            )
        elif (
            seldom
            and rising(rates.rates) >= SOME
            and max(rates.rates) < RISEN_TO * first
            and name != "CyclicLR"
        ):
            told = (
                f"the rate under {name} rises to the end, to {max(rates.rates) / first:.0%} of"
                f" {first:g}: its {calls} calls do not leave a warm-up"
            )
            self.watch.tell(
                "BH114", f"{told} that counts the {steps} steps of its optimizer", place
            )
        elif (
            meant
            and isinstance(scheduler, lr_scheduler.CosineAnnealingLR)
            and calls >= LONGER * meant
            and (calls <= 2 * meant or not swings_on_purpose(self.watch.program))
            and rates.rates[-1] >= CLIMBED * max(rates.rates)
            and min(rates.rates) <= max(rates.rates) / 10
        ):
            told = (
                f"{name} is made for {meant} steps and was stepped {calls} times: past its end the"
                " rate rises again"
            )
            self.watch.tell(
                "BH848",
                f"{told}, from {min(rates.rates):.2g} to {rates.rates[-1]:.2g} at the last step",
                place,
            )
        elif (again := rises_again(rates.rates)) and name not in (
            "OneCycleLR",
            "CyclicLR",
            "CosineAnnealingWarmRestarts",
        ):
            told = (
                f"the rate under {name} falls from {rates.rates[again - 1]:.2g} to"
                f" {rates.rates[again]:.2g} at step {again + 1}"
            )
            self.watch.tell(
                "BH848", f"{told} and rises from there to the end, to {rates.rates[-1]:.2g}", place
            )
        elif (
            meant
            and each
            and steps >= 2 * MANY
            and calls * SHORT <= meant
            and never_stops(self.watch.program)
        ):
            told = (
                f"{name} is made for {meant} steps, and the whole run makes {steps}: the rate goes"
                f" through {calls / meant:.0%} of its curve"
            )
            self.watch.tell("BH114", told, place)
        elif (
            steps >= MANY
            and max(rates.rates) <= LOW * first
            and not (first == 1.0 and name == "LambdaLR")
        ):  # whose factors are the rates, as Noam's
            self.watch.tell(
                "BH118",
                f"under {name} the rate was never above {max(rates.rates):.2g}, {first:g} was"
                " asked for",
                place,
            )
        elif (
            steps >= MANY
            and max(rates.rates) >= HIGH * max(first, 1e-12)
            and name not in ("OneCycleLR", "CyclicLR")
        ):
            self.watch.tell(
                "BH118",
                f"under {name} the rate rose to {max(rates.rates):.2g}, {first:g} was asked for",
                place,
            )

    def _warms(self, schedule: Schedule, rates: Rates) -> None:
        """A warm-up that the run does not leave, and a function of the number of steps that is
        given that of epochs.
        """
        scheduler, steps, first, name = (
            schedule.scheduler,
            len(rates.rates),
            rates.declared,
            type(schedule.scheduler).__name__,
        )
        if (
            schedule.steps >= 0.8 * steps
            and warms_to_the_end(rates.rates)
            and max(rates.rates) <= first
            and not tries_out(self.watch.program)
        ):
            told = (
                f"the rate under {name} rises in each of {steps} steps, to"
                f" {max(rates.rates) / first:.0%} of {first:g}: its warm-up is longer than the run"
            )
            self.watch.tell("BH848", told, schedule.place)
        if (
            isinstance(scheduler, lr_scheduler.LambdaLR)
            and schedule.steps <= steps / 2
            and (counted := counts_steps(scheduler, steps))
        ):
            told = (
                f"what {name} multiplies the rate with reads {counted}, near the {steps} steps of"
                f" its optimizer, and it was stepped {schedule.steps} times"
            )
            self.watch.tell("BH114", told, schedule.place)

    def _by_hand(self, rates: Rates) -> None:
        """Rates that the program writes into the groups itself."""
        seen, place = rates.rates, self.made(rates.optimizer)
        if again := rises_again(seen):
            told = (
                f"the rate that is set by hand falls from {seen[again - 1]:.2g} to"
                f" {seen[again]:.2g} at step {again + 1}"
            )
            self.watch.tell(
                "BH848", f"{told} and rises from there to the end, to {seen[-1]:.2g}", place
            )
        elif warms_to_the_end(seen) and not tries_out(self.watch.program):
            told = (
                f"the rate that is set by hand rises in each of {len(seen)} steps, from"
                f" {seen[0]:.2g} to {seen[-1]:.2g}: its warm-up is longer than the run"
            )
            self.watch.tell("BH848", told, place)

    def _climbs(self, schedule: Schedule, rates: list[float]) -> None:
        """Whether a schedule that is there to lower the rate raises it; `ExponentialLR` at each
        step may try rates from low to high.
        """
        name = type(schedule.scheduler).__name__
        if (
            len(rates) >= MANY
            and climbs(name, rates)
            and not (name == "ExponentialLR" and schedule.steps > len(rates) / 2)
        ):
            told = (
                f"{name} is to lower the rate, and raises it from {rates[0]:.2g} to {rates[-1]:.2g}"
                " at the last step"
            )
            self.watch.tell("BH848", told, schedule.made)

    def _plateau(self, schedule: Schedule, steps: int) -> None:
        scheduler, metrics = schedule.scheduler, schedule.metrics
        if (
            steps >= 2 * MANY
            and schedule.steps >= 0.8 * steps
            and sum(map(bool, schedule.rows)) < steps / 2
        ):
            self.watch.tell(
                "BH116",
                f"ReduceLROnPlateau was stepped {schedule.steps} times in {steps} steps: patience"
                " counts batches",
                schedule.place,
            )
        if len(metrics) >= FEW and metrics == [metrics[0] + i for i in range(len(metrics))]:
            told = (
                f"ReduceLROnPlateau is given {metrics[0]:g}, {metrics[1]:g}, {metrics[2]:g}, …: the"
                " number of the epoch, and no metric"
            )
            self.watch.tell("BH119", told, schedule.place)
            return
        place = schedule.place
        said = (
            better(self.watch.program, place.line)
            if place is not None and metrics and Path(place.path) == self.watch.program
            else ""
        )
        if place is not None and said not in ("", scheduler.mode):
            waits = "higher" if scheduler.mode == "max" else "lower"
            told = (
                f"ReduceLROnPlateau waits for a {waits} metric, and what it is given in line"
                f" {place.line} gets better the other way"
            )
            self.watch.tell("BH119", told, schedule.made)
            return
        losses = max(self.losses.values(), key=len, default=[])
        if len(metrics) < FEW or len(losses) < len(metrics):
            return
        size = len(losses) // len(metrics)
        means = torch.tensor(
            [sum(losses[i * size : (i + 1) * size]) / size for i in range(len(metrics))],
            dtype=torch.float64,
        )
        together = float(
            torch.corrcoef(torch.stack([means, torch.tensor(metrics, dtype=torch.float64)]))[0, 1]
        )
        if (
            scheduler.mode == "min"
            and shares(metrics, max(schedule.rows))
            and together < -TOGETHER
            and metrics[-1] > metrics[0]
        ):  # a share of rows, as no loss is
            self.watch.tell(
                "BH119",
                "ReduceLROnPlateau waits for a lower metric, and is given a share of right rows,"
                " which rises as the loss falls",
                schedule.made,
            )
        elif (
            scheduler.mode == "max" and together > 0.9 and falls_as_a_loss(metrics, means.tolist())
        ):
            self.watch.tell(
                "BH119",
                "ReduceLROnPlateau waits for a higher metric, and is given one that falls with the"
                " loss",
                schedule.made,
            )

    def _diverged(self) -> None:
        """A single optimizer under which a loss with labels, or the longest series of losses, grew
        many times over.
        """
        longest = max(self.losses, key=lambda p: len(self.losses[p]), default=None)
        series = self.supervised() | (
            {longest: self.losses[longest]} if longest is not None else {}
        )
        for place, losses in series.items():
            times = RISEN if place in self.supervised() else DIVERGED
            if (
                len(self.rates) != 1
                or len(losses) < 2 * MANY
                or not all(map(math.isfinite, losses))
                or min(losses) < 0
            ):
                continue
            first, last = (sorted(part)[len(part) // 2] for part in (losses[:SOME], losses[-SOME:]))
            if last > times * first and last > 1.0:
                self.watch.tell("BH808", f"the loss rose from {first:.3g} to {last:.3g}", place)
                return

    def _too_high(self) -> None:
        """A single optimizer that moves each weight by a tenth and more at a time, under which no
        loss with labels has fallen.
        """
        if len(self.rates) != 1:
            return
        rates = next(iter(self.rates.values()))
        usual = statistics.median(rates.rates)
        layers = [p for g in rates.optimizer.param_groups for p in g["params"] if p.ndim > 1]
        series = [losses for losses in self.supervised().values() if len(losses) >= 2 * MANY]
        if (
            not type(rates.optimizer).__name__.startswith(ADAPTIVE)
            or usual < TOO_HIGH
            or len(layers) < LAYERS
            or not series
        ):
            return
        if all(
            statistics.median(losses[-len(losses) // 4 :]) > FALLEN * losses[0] for losses in series
        ):
            losses = max(series, key=len)
            told = (
                f"the loss began at {losses[0]:.3g} and is at"
                f" {statistics.median(losses[-len(losses) // 4 :]):.3g} after {len(rates.rates)}"
                " steps"
            )
            self.watch.tell(
                "BH831",
                f"{told} of {type(rates.optimizer).__name__} with a rate of {usual:g}",
                self.made(rates.optimizer),
            )


def climbs(name: str, rates: list[float]) -> bool:
    """Whether the rate never falls and ends higher, under a schedule that is there to lower it.

    >>> (climbs("StepLR", [0.1, 0.1, 0.5]), climbs("StepLR", [0.1, 0.1]),
    ...     climbs("LambdaLR", [0.1, 0.5]))
    (True, False, False)
    """
    return name in FALLING and rates == sorted(rates) and rates[-1] >= CLIMBS * rates[0]


def falls_as_a_loss(metrics: list[float], losses: list[float]) -> bool:
    """Whether a metric falls; a share of rows may well fall a little as the train loss falls: rows
    are learned by heart.

    >>> (falls_as_a_loss([2.1, 1.4], [2.0, 1.0]), falls_as_a_loss([0.74, 0.71], [0.7, 0.5]),
    ...     falls_as_a_loss([0.69, 0.4], [0.68, 0.3]))
    (True, False, True)
    """
    if metrics[-1] >= metrics[0]:
        return False
    if min(metrics) < 0 or max(metrics) > 1:
        return True
    fall, of_losses = (1 - values[-1] / max(values[0], 1e-12) for values in (metrics, losses))
    return fall > max(TENTH, of_losses / 2)


def changes(scheduler: Any) -> int:
    """After how many of its steps a schedule of stairs changes the rate for the first time.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> (changes(lr_scheduler.StepLR(optimizer, 30)),
    ...     changes(lr_scheduler.MultiStepLR(optimizer, [40, 60])))
    (30, 40)
    """
    return (
        int(scheduler.step_size)
        if isinstance(scheduler, lr_scheduler.StepLR)
        else min(scheduler.milestones, default=0)
    )


def rising(rates: list[float]) -> int:
    """How many rates there were one after the other, each above the one before; 0 where one was
    below.

    >>> rising([0.1, 0.1, 0.2, 0.3, 0.3]), rising([0.1, 0.2, 0.1])
    (3, 0)
    """
    changes = [b for a, b in itertools.pairwise([-1.0, *rates]) if a != b]
    return len(changes) if changes == sorted(changes) else 0


def shares(metrics: list[float], most: int) -> bool:
    """Whether all of them are shares of one number of rows, as a count of right answers is, and no
    loss.

    >>> shares([0.25, 0.5, 0.75, 0.875], 100), shares([0.2513, 0.3471, 0.1234, 0.4321], 100)
    (True, False)
    """
    if not all(0 <= m <= 1 for m in metrics):
        return False
    return any(
        all(abs(m * n - round(m * n)) < WHOLE for m in metrics)
        for n in range(2, min(most, 5000) + 1)
    )
