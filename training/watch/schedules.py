"""Learning rates at each step, compared with their schedules."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.loaders import Loaders
from training.watch.patches import around
from training.watch.record import Watch, guarded

FEW, SOME, MANY, LONG = 4, 5, 10, 40
GONE, LOW, RISEN_TO = 1e-4, 0.02, 0.5  # shares of the first rate
DIVERGED, RISEN = 10.0, 3.0  # factors on the first loss: any loss, a loss with labels
LONGER, CLIMBED, CLIMBS = 1.3, 0.4, 1.5  # run past a cosine; its rate then; rise of a falling rate
FALLING = ("StepLR", "MultiStepLR", "CosineAnnealingLR")
# optimizers whose rate is the step size of each weight; too high rate; share of loss left
ADAPTIVE, TOO_HIGH, FALLEN = ("Adam", "NAdam", "RAdam", "RMSprop"), 0.1, 0.95
TRYING = ("debug", "smoke", "fast_dev", "dry_run", "dry-run")


@dataclass(eq=False)
class Rates:
    """Declared rate of an optimizer, and the largest rate of its groups at each step."""

    optimizer: torch.optim.Optimizer
    declared: float
    rates: list[float] = field(default_factory=list)


@dataclass(eq=False)
class Schedule:
    """A schedule and its number of steps."""

    scheduler: Any
    name: str
    made: Place
    steps: int = 0
    place: Place | None = None
    before_first: bool = False
    metrics: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # rows evaluated before each metric


class Schedules(Listener):
    """Listener for schedulers, rates and losses."""

    def __init__(self, watch: Watch, forwards: Forwards, loaders: Loaders) -> None:
        self.watch, self.forwards, self.loaders = watch, forwards, loaders
        self.schedules: dict[int, Schedule] = {}
        self.rates: dict[int, Rates] = {}
        self.losses: dict[Place, list[float]] = {}  # losses by line of their backward pass
        self.after_bad = 0
        self.supervised: Callable[[], dict[Place, list[float]]] = dict
        # returns the line of an optimizer
        self.made: Callable[[torch.optim.Optimizer], Place | None] = lambda _: None

    def install(self) -> None:
        """Install hooks for schedulers."""
        for kind in {v for v in vars(lr_scheduler).values() if isinstance(v, type)}:
            for name, wrapper in (("step", self._step), ("__init__", self._made)):
                if issubclass(kind, lr_scheduler.LRScheduler) and name in vars(kind):
                    around(kind, name, wrapper)

    def _made(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        if not self.watch.quiet:
            for part in getattr(scheduler, "_schedulers", ()):
                self.schedules.pop(id(part), None)  # its container steps it
            name, made = type(scheduler).__name__, self.watch.here()
            self.schedules[id(scheduler)] = Schedule(scheduler, name, made)

    def _step(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        known = self.schedules.get(id(scheduler))
        if known is not None and not self.watch.quiet:
            self._count(known, kwargs.get("metrics", args[0] if args else None))
        original(scheduler, *args, **kwargs)

    @guarded
    def _count(self, known: Schedule, metric: Any) -> None:
        known.steps += 1
        known.place = self.watch.here()
        if isinstance(known.scheduler, lr_scheduler.ReduceLROnPlateau):
            known.metrics.append(float(metric))
            known.rows.append(self.forwards.evaluated)
        elif known.steps == 1 and metric is None:
            known.before_first = self._rates_of(known) is None

    def _rates_of(self, schedule: Schedule) -> Rates | None:
        """Return the rates of its optimizer, which a wrapper with the same groups may hold."""
        groups = getattr(getattr(schedule.scheduler, "optimizer", None), "param_groups", None)
        return next((r for r in self.rates.values() if r.optimizer.param_groups is groups), None)

    def backed(self, loss: Tensor, place: Place) -> None:
        """Keep the loss of a line."""
        if loss.numel() == 1:
            value = float(loss.detach())
            self.losses.setdefault(place, []).append(value)
            self.after_bad = self.after_bad + 1 if not math.isfinite(value) else 0

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the rate of a step."""
        rates = [float(g["lr"]) for g in optimizer.param_groups if "lr" in g] or [0.0]
        first = Rates(optimizer, float(optimizer.defaults.get("lr", rates[0])))
        self.rates.setdefault(id(optimizer), first).rates.append(max(rates))
        if self.after_bad > SOME:
            told = "the loss is not a finite number, and steps go on: all weights are lost"
            self.watch.tell("BH808", told)

    def ended(self) -> None:
        """Report the findings of the whole run."""
        scheduled = set()
        for schedule in self.schedules.values():
            rates = self._rates_of(schedule)
            scheduled.add(id(rates))
            self._used(schedule, len(rates.rates) if rates is not None else 0)
            if rates is None or not schedule.steps or not self.watch.complete:
                continue
            if schedule.metrics:
                self._plateau(schedule, len(rates.rates))
            elif told := cadence(schedule, rates) or curve(schedule, rates):
                self.watch.tell(*told, schedule.place)
            elif schedule.steps >= 0.8 * len(rates.rates):
                self._warms(rates, f"the rate under {schedule.name}", schedule.place)
        for rates in self.rates.values() if self.watch.complete else ():
            if id(rates) not in scheduled:
                self._warms(rates, "the rate that is set by hand", self.made(rates.optimizer))
        if len(self.rates) == 1 and not self._diverged() and self.watch.complete:
            self._too_high(*self.rates.values())

    def _used(self, schedule: Schedule, steps: int) -> None:
        """Check that a schedule is stepped, and after its optimizer."""
        epochs = max((u.epochs for u in self.loaders.used.values() if u.steps), default=1)
        if not schedule.steps and steps >= SOME and (self.watch.complete or epochs > 2):
            told = f"in {steps} steps of its optimizer {schedule.name} was never stepped"
            self.watch.tell("BH112", told, schedule.made)
        elif schedule.before_first and steps:
            told = f"{schedule.name} was stepped before its optimizer"
            self.watch.tell("BH111", told, schedule.place)

    def _warms(self, rates: Rates, what: str, place: Place | None) -> None:
        """Report a warm-up that lasts the whole run, unless the program has short test runs."""
        seen = rates.rates
        text = self.watch.program.read_text(encoding="utf-8", errors="replace").lower()
        if warms_to_the_end(seen) and not any(word in text for word in TRYING):
            told = f"{what} rises in each of {len(seen)} steps, to {seen[-1]:.2g}"
            self.watch.tell("BH848", f"{told}: its warm-up is longer than the run", place)

    def _plateau(self, schedule: Schedule, steps: int) -> None:
        """Check the metric and the patience of a plateau. A share of right rows must not be
        minimized: it is above a half and rises while the loss falls.
        """
        name, metrics, calls = schedule.name, schedule.metrics, schedule.steps
        unevaluated = sum(not rows for rows in schedule.rows)
        if steps >= 2 * MANY and calls >= 0.8 * steps and unevaluated > steps / 2:
            told = f"{name} was stepped {calls} times in {steps} steps: patience counts batches"
            self.watch.tell("BH116", told, schedule.place)
        losses = max(self.losses.values(), key=len, default=[0.0])
        rises = metrics[-1] > max(metrics[0], 0.5) and losses[-1] < losses[0]
        if len(metrics) < FEW:
            return
        if metrics == [metrics[0] + i for i in range(len(metrics))]:
            told = f"{name} is given the number of the epoch, and no metric"
            self.watch.tell("BH119", told, schedule.place)
        elif schedule.scheduler.mode == "min" and rises and shares(metrics, max(schedule.rows)):
            told = f"{name} waits for a lower metric, and is given a share of right rows"
            self.watch.tell("BH119", told, schedule.made)

    def _diverged(self) -> bool:
        """Report a loss that grew many times or is not finite."""
        series = {p: (losses, RISEN) for p, losses in self.supervised().items()}
        longest = max(self.losses, key=lambda p: len(self.losses[p]), default=None)
        if longest is not None:
            series.setdefault(longest, (self.losses[longest], DIVERGED))
        for place, (losses, times) in series.items():
            if len(losses) < 2 * MANY or not all(0 <= loss < math.inf for loss in losses):
                continue
            first, last = statistics.median(losses[:SOME]), statistics.median(losses[-SOME:])
            if last > max(times * first, 1.0):
                self.watch.tell("BH808", f"the loss rose from {first:.3g} to {last:.3g}", place)
        return any(rule == "BH808" for rule, _ in self.watch.found)

    def _too_high(self, rates: Rates) -> None:
        """Report an adaptive optimizer with a rate of a tenth or more under which no supervised
        loss fell.
        """
        name, usual = type(rates.optimizer).__name__, statistics.median(rates.rates)
        layers = [p for g in rates.optimizer.param_groups for p in g["params"] if p.ndim > 1]
        long = [losses for losses in self.supervised().values() if len(losses) >= 2 * MANY]
        ends = [(series[0], statistics.median(series[-len(series) // 4 :])) for series in long]
        still = bool(ends) and all(last > FALLEN * first for first, last in ends)
        if name.startswith(ADAPTIVE) and usual >= TOO_HIGH and len(layers) > 1 and still:
            told = f"the loss began at {ends[0][0]:.3g} and is at {ends[0][1]:.3g} after"
            told = f"{told} {len(rates.rates)} steps of {name} with a rate of {usual:g}"
            self.watch.tell("BH831", told, self.made(rates.optimizer))


def cadence(schedule: Schedule, rates: Rates) -> tuple[str, str] | None:
    """Find a schedule that counts batches instead of epochs, or epochs instead of batches."""
    scheduler, name, calls = schedule.scheduler, schedule.name, schedule.steps
    steps, first = len(rates.rates), rates.declared
    each, seldom = calls >= 0.8 * steps, calls <= steps / 2
    meant = getattr(scheduler, "total_steps", 0) or getattr(scheduler, "T_max", 0)
    stairs = getattr(scheduler, "step_size", 0) or min(
        getattr(scheduler, "milestones", None) or [0]
    )
    changed = [r for r, _ in itertools.groupby(rates.rates)]
    rises = len(changed) >= SOME and changed == sorted(changed) and name != "CyclicLR"
    counted = f"and was stepped {calls} times in {steps} steps of its optimizer"
    if meant and seldom and calls <= meant / 2 and meant >= 0.8 * steps:
        return "BH114", f"{name} is made for {meant} steps, {counted}"
    if name in ("StepLR", "MultiStepLR") and seldom and calls < stairs <= steps:
        return "BH114", f"{name} changes the rate after {stairs} steps, {counted}"
    if seldom and rises and changed[-1] < RISEN_TO * first:
        return "BH114", f"the rate under {name} does not leave its warm-up, {counted}"
    if each and name == "CosineAnnealingLR" and calls >= 2 * meant:
        return "BH113", f"{name} is made for {meant} steps, {counted}: it counts batches"
    if steps >= MANY and each and sum(r < GONE * first for r in rates.rates) > 0.4 * steps:
        return "BH113", f"{name} has brought the rate to {rates.rates[-1]:.2g}, {counted}"
    return None


def curve(schedule: Schedule, rates: Rates) -> tuple[str, str] | None:
    """Find rates that differ from the requested ones."""
    name, seen, lowest, highest = schedule.name, rates.rates, min(rates.rates), max(rates.rates)
    meant = schedule.scheduler.T_max if name == "CosineAnnealingLR" else 0
    past = LONGER * meant <= schedule.steps <= 2 * meant and lowest <= highest / 10
    if past and seen[-1] >= CLIMBED * highest:
        told = f"{name} is made for {meant} steps, and past them the rate rises"
        return "BH848", f"{told} from {lowest:.2g} to {seen[-1]:.2g}"
    if len(seen) < MANY:
        return None
    # factors may be the rates, as in Noam's schedule; a rising rate is a warm-up
    asked = name == "LambdaLR" and rates.declared != 1.0 and seen[-1] <= seen[0]
    if asked and highest <= LOW * rates.declared:
        told = f"under {name} the rate was never above {highest:.2g}"
        return "BH118", f"{told}, {rates.declared:g} was asked for"
    if name in FALLING and seen == sorted(seen) and seen[-1] >= CLIMBS * seen[0]:
        return "BH848", f"{name} is to lower the rate, and raises it to {seen[-1]:.2g}"
    return None


def warms_to_the_end(rates: list[float]) -> bool:
    """Check that a rate rises by equal steps during the whole run, as a warm-up does.

    >>> [warms_to_the_end(rates) for rates in ([*range(60)], [1.1**i for i in range(60)])]
    [True, False]
    """
    step = (rates[-1] - rates[0]) / len(rates[1:] or rates)
    even = all(abs((b - a) - step) <= 1e-6 * rates[-1] for a, b in itertools.pairwise(rates))
    return len(rates) >= LONG and step > 0 and even and rates[0] <= LOW * rates[-1] + 2 * step


def shares(metrics: list[float], most: int) -> bool:
    """Check that all metrics are shares of one number of rows, so they are no losses.

    >>> shares([0.25, 0.5, 0.75, 0.875], 100), shares([0.2513, 0.3471, 0.1234, 0.4321], 100)
    (True, False)
    """
    return all(0 <= m <= 1 for m in metrics) and any(
        all(abs(m * n - round(m * n)) < 1e-4 for m in metrics)
        for n in range(2, min(most, 5000) + 1)
    )
