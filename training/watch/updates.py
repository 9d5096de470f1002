"""Optimizer steps: gradient clipping and scaling, weight decay, group rates, state and movement."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from training.watch.events import Call, Listener
from training.watch.gradients import Gradients, Held, mark, same, share
from training.watch.patches import around
from training.watch.record import Watch, guarded
from training.watch.schedules import Schedules

FEW, MANY, STEPS = 3, 10, 20  # lost states; least steps with decay; least steps without movement
LARGE = 0.01  # share of a weight that decays per step
DECOUPLED = {"SGD", "AdamW", "Muon"}
STILL, TINY, CUT = 1e-4, 1e-5, 1e3  # relative movement; a rate; reduction by clipping
FALLEN, WARM = 0.9, 1.5  # last loss and last rate relative to the first


class Precision(Listener):
    """Listener for clipping and gradient scalers."""

    def __init__(self, watch: Watch, gradients: Gradients) -> None:
        self.watch, self.gradients = watch, gradients
        self.scaled = self.scales = 0  # scaled losses since the last step; in total
        self.steps_past = 0
        self.unscaled = self.in_scaler = self.at_half = False

    def install(self) -> None:
        """Install hooks for clipping and gradient scalers."""
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            around(nn.utils.clip_grad, name, self._clip)
            setattr(nn.utils, name, getattr(nn.utils.clip_grad, name))
        around(GradScaler, "scale", self._scale)
        around(GradScaler, "unscale_", self._unscale)
        around(GradScaler, "step", self._scaler_step)

    def _clip(self, original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if self.watch.quiet:
            return original(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        self._clipping(original.__name__, given)
        norm = original(given, *args, **kwargs)
        if isinstance(norm, Tensor):
            most = float(args[0] if args else kwargs["max_norm"])
            self.watch.emit(Listener.clipped, given, norm, most)
        return norm

    @guarded
    def _clipping(self, name: str, given: list[Tensor]) -> None:
        """Check that the gradients to clip exist, are unused and are not scaled."""
        states = {id(p): s for h in self.gradients.held.values() for p, s in h.items()}
        graded = [p for p in given if p.grad is not None]
        known = [(mark(p), states[id(p)].used) for p in graded if id(p) in states]
        if not graded:
            what = "no gradient is there yet" if given else "its generator was used up, or empty"
            self.watch.tell("BH106", f"{name} clips nothing: {what}")
        elif known and all(used is not None and same(now, used) for now, used in known):
            self.watch.tell("BH106", f"{name} clips gradients that a step has used already")
        if self.scaled and known and not self.unscaled:
            self.watch.tell("BH131", f"{name} clips gradients that are still scaled")

    def _scale(self, original: Any, scaler: GradScaler, outputs: Any) -> Any:
        self.scaled += scaler.is_enabled()
        self.scales += 1
        return original(scaler, outputs)

    def _unscale(self, original: Any, scaler: GradScaler, optimizer: Any) -> Any:
        self.unscaled |= not self.in_scaler
        return original(scaler, optimizer)

    def _scaler_step(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.in_scaler = True
        try:
            return original(*args, **kwargs)
        finally:
            self.in_scaler = self.unscaled = False
            self.scaled = 0

    def forwarded(self, call: Call) -> None:
        """Record that a trained network runs in float16."""
        if call.grad:
            on = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
            self.at_half = torch.float16 in map(torch.get_autocast_dtype, on)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Report a step without the scaler, and float16 without a scaler."""
        if self.scaled and not self.in_scaler:
            self.scaled = 0
            self.steps_past += 1
            if self.steps_past > 1:
                told = f"the loss is scaled, and {type(optimizer).__name__} steps past the scaler"
                self.watch.tell("BH133", told)
        elif self.at_half and not self.scales:
            told = "the network runs in float16 under autocast, and the loss is not scaled"
            self.watch.tell("BH134", f"{told}: small gradients become 0")


@dataclass(eq=False)
class Updated:
    """Steps of one optimizer."""

    optimizer: torch.optim.Optimizer
    steps: int = 0
    decayed: int = 0  # steps with a large weight decay
    had: bool = False  # its weights had a state after the last step
    lost: int = 0
    rates: list[list[float]] = field(default_factory=list)  # rates of each group, by step
    scheduled: bool = False
    given: set[int] = field(default_factory=set)  # groups with gradients
    clips: list[tuple[float, float]] = field(default_factory=list)  # norm before and after
    share: float = 0.0  # largest relative movement so far


class Updates(Listener):
    """Listener for optimizers and clipping."""

    def __init__(self, watch: Watch, gradients: Gradients, schedules: Schedules) -> None:
        self.watch, self.gradients, self.schedules = watch, gradients, schedules
        self.of: dict[int, Updated] = {}
        self.cut: tuple[Tensor, float] | None = None  # norm and norm limit since the last step

    def clipped(self, gradients: list[Tensor], norm: Tensor, most: float) -> None:
        """Record the norm before clipping and its limit."""
        self.cut = norm, most

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Record decay, rates, clipping and lost state of a step."""
        known = self.of.setdefault(id(optimizer), Updated(optimizer))
        groups = optimizer.param_groups
        known.steps += 1
        known.lost += known.had and not has_state(optimizer)
        known.decayed += any(erased(optimizer, group) for group in groups)
        known.scheduled |= bool(getattr(optimizer.step, "_wrapped_by_lr_sched", False))
        known.rates.append([float(group.get("lr") or 0.0) for group in groups])
        known.given |= {i for i, g in enumerate(groups) if graded(g)}
        if self.cut is not None and not known.steps & (known.steps - 1):  # reading makes a GPU wait
            norm, most = float(self.cut[0]), self.cut[1]
            known.clips.append((norm, min(norm, most)))
        self.cut = None

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the movement of the weights, which the program may restore before the end."""
        known = self.of[id(optimizer)]
        known.had = has_state(optimizer)
        if not known.steps & (known.steps - 1) and known.share < STILL:
            before = self.gradients.held[id(optimizer)].before
            known.share = max(known.share, moved(before))

    def ended(self) -> None:
        """Report the findings of the whole run."""
        for key, known in self.of.items():
            held = self.gradients.held[key]
            counted = f"of {known.steps} steps of {type(known.optimizer).__name__}"
            if known.steps >= MANY and known.decayed > known.steps / 2:
                told = f"in {known.decayed} {counted} the rate times weight_decay takes"
                self.watch.tell("BH839", f"{told} {LARGE:.0%} and more of every weight", held.made)
            if known.lost >= max(FEW, (known.steps - 1) / 2):
                told = f"before {known.lost} {counted} its state was emptied"
                self.watch.tell("BH123", f"{told}: moments are lost", held.stepped_at)
            if known.steps >= MANY and len({len(rates) for rates in known.rates}) == 1:
                self._groups(known, held)
            if known.steps >= STEPS and self.watch.complete:
                self._still(known, held)

    def _groups(self, known: Updated, held: Held) -> None:
        """Report groups with a rate of 0, or a fixed rate while that of the first group changes."""
        name, of_groups = type(known.optimizer).__name__, list(zip(*known.rates, strict=True))
        still = [i for i, rates in enumerate(of_groups) if not any(rates) and i in known.given]
        changed = [i for i, rates in enumerate(of_groups) if len(set(rates)) > 1]
        others = known.given - {0, *still}
        if still and len(still) < len(of_groups):
            told = f"the rate of group {still[0]} of {name} is 0 in all {known.steps} steps"
            self.watch.tell("BH881", f"{told}: it gets gradients and never moves", held.made)
        elif changed == [0] and others and not known.scheduled:
            told = f"the rate of group 0 of {name} changes, and that of the others stays"
            self.watch.tell("BH881", told, held.made)

    def _still(self, known: Updated, held: Held) -> None:
        """Report weights that have hardly moved without a lower loss: a tiny rate or strong
        clipping.
        """
        highest = [max(rates) for rates in known.rates]
        warms = highest[-1] >= max(highest) and highest[-1] > WARM * highest[0]
        far = max(known.share, moved(held.before))
        whole = len(held.before) == len(held.ids()) and not held.empty
        if warms or not whole or not 0 < far < STILL or self._fallen(held):
            return  # BH807 reports a movement of 0
        told = f"{known.steps} steps of {type(known.optimizer).__name__} have moved its weights by"
        told = f"{told} {far:.1g} of their size"
        clips = known.clips or [(0.0, 0.0)]
        before, after = (statistics.median(c[i] for c in clips) for i in range(2))
        if before > CUT * after:
            told = f"{told}: clipping makes gradients of {before:.2g} ones of {after:.2g}"
            self.watch.tell("BH841", told, held.made)
        elif max(highest) <= TINY:
            told = f"{told}: the rate was never above {max(highest):.2g}"
            self.watch.tell("BH841", told, held.made)

    def _fallen(self, held: Held) -> bool:
        """Check that a loss fell nevertheless."""
        return any(
            statistics.median(losses[-MANY:]) < FALLEN * statistics.median(losses[:MANY])
            for line, losses in self.schedules.losses.items()
            if line in held.lines and len(losses) >= STEPS
        )


def graded(group: dict[str, Any]) -> list[Tensor]:
    """Return the parameters of a group that have a gradient."""
    return [p for p in group["params"] if p.grad is not None]


def moved(before: list[tuple[Tensor, Tensor]]) -> float:
    """Return the relative movement of all weights, without their decay.

    >>> moved([(torch.full((2, 2), 1.5), torch.ones(2, 2))])
    0.5
    """
    far = size = 0.0
    for now, then in before:
        change, norm = share(now) - then, float(then.norm())
        decay = min(float((change * then).sum()) / norm**2, 0.0) if norm else 0.0
        far, size = far + float((change - decay * then).norm()) ** 2, size + norm**2
    return math.sqrt(far / size) if size else 1.0


def has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Check that the optimizer has a state for a parameter with a gradient."""
    return any(optimizer.state.get(p) for g in optimizer.param_groups for p in graded(g))


def erased(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Check that the decay of a group removes a large part of each weight per step."""
    kinds = {k.__name__ for k in type(optimizer).__mro__ if k.__module__.startswith("torch.optim")}
    decay = float(group.get("weight_decay") or 0.0) * float(group.get("lr") or 0.0)
    decoupled = bool(group.get("decoupled_weight_decay") or kinds & DECOUPLED)
    return decoupled and decay >= LARGE and bool(graded(group))
