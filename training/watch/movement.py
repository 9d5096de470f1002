"""How far weights move in a whole run: whether anything is learned at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.watch.gradients import nonzero
from training.watch.record import Listener, Place, Watch
from training.watch.schedules import Schedules

STEPS = 20
MOST = 20_000_000  # values that are kept
STILL, BARELY = 1e-4, 1e-2  # of the size of the weights; where clipping cuts all gradients
CUT = 1e3  # times that clipping makes gradients smaller
TINY = 1e-5  # rate
LOST = 0.1  # of the eps of Adam: what is left of a gradient beside it is not followed
FALLEN = 0.9  # the last losses against the first
WARM = 1.5  # the last rate against the first, while it still rises


@dataclass(eq=False)
class Moved:
    """The weights of one optimizer at its first step, and since."""

    optimizer: torch.optim.Optimizer
    values: int
    # parameter, values at the first step; None where they are too many or all 0, and once they have
    # moved
    before: list[tuple[Tensor, Tensor]] | None
    steps: int = 0
    share: float = 0.0  # the largest movement that was seen, as a share of the weights
    graded: bool = False
    rates: list[float] = field(default_factory=list)
    clips: list[tuple[float, float]] = field(default_factory=list)  # norm before, and after
    place: Place | None = None


class Movement(Listener):
    """Listens to optimizers and to clipping."""

    def __init__(self, watch: Watch, schedules: Schedules) -> None:
        self.watch, self.schedules = watch, schedules
        self.of: dict[int, Moved] = {}
        # since the last step: parameters, norm before, largest norm
        self.cuts: list[tuple[set[int], Any, float]] = []
        self.made: Callable[[torch.optim.Optimizer], Place | None] = lambda _: None
        # of the backward passes of an optimizer
        self.lines: Callable[[torch.optim.Optimizer], set[Place]] = lambda _: set()

    def clipped(self, given: list[Tensor], norm: Any, most: float) -> None:
        """Gradients were clipped to a norm."""
        self.cuts = [*self.cuts[-7:], ({id(p) for p in given}, norm, most)]

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """The weights before the first step, rates, and now and then what clipping left."""
        known = self.of.get(id(optimizer))
        held = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
        if known is None or known.optimizer is not optimizer:
            known = self.of[id(optimizer)] = Moved(
                optimizer, sum(p.numel() for p in held), kept(held)
            )
        known.steps += 1
        known.place = self.watch.here()
        known.rates.append(
            max((float(g["lr"]) for g in optimizer.param_groups if "lr" in g), default=0.0)
        )
        if known.steps & (known.steps - 1) == 0:  # to read a norm makes a GPU wait
            mine = {id(p) for p in held}
            known.clips += [
                (float(norm), min(float(norm), most)) for ids, norm, most in self.cuts if ids & mine
            ]
        self.cuts.clear()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """After 1, 20, 40, 80 … steps: weights may be put back before the end."""
        known = self.of.get(id(optimizer))
        if known is not None and (
            known.steps == 1
            or (known.steps % STEPS == 0 and (turn := known.steps // STEPS) & (turn - 1) == 0)
        ):
            self._measure(known)

    def _measure(self, known: Moved) -> None:
        if known.before is None:
            return
        known.share = max(known.share, moved(known.before))
        known.graded = known.graded or any(nonzero(p) for p, _ in known.before)
        if known.share >= (BARELY if plain(known.optimizer) and cut_off(known) else STILL):
            known.before = None

    def ended(self) -> None:
        """Optimizers that came to the end and have moved nothing."""
        if not self.watch.complete or any(rule == "BH807" for rule, _ in self.watch.found):
            return
        for known in self.of.values():
            if known.steps < STEPS or self._fallen(self.lines(known.optimizer)):
                continue
            self._measure(known)
            if known.rates[-1] >= max(known.rates) and known.rates[-1] > WARM * known.rates[0]:
                continue  # still warming up
            name, place = type(known.optimizer).__name__, self.made(known.optimizer) or known.place
            before, after = (
                (statistics.median(c[i] for c in known.clips) for i in range(2))
                if known.clips
                else (0.0, 0.0)
            )
            cut = bool(known.clips) and before > CUT * after
            still = known.graded and known.before is not None and known.share < STILL
            told = (
                f"{known.steps} steps of {name} have moved its weights by {known.share:.1g} of"
                " their size"
            )
            barely = (
                known.graded
                and known.before is not None
                and plain(known.optimizer)
                and cut_off(known)
            )
            if cut and (still or barely or beside_eps(known, after)):
                told = (
                    told
                    if still or barely
                    else f"{known.steps} steps of {name} follow next to nothing"
                )
                self.watch.tell(
                    "BH841",
                    f"{told}: clipping makes gradients with a norm of {before:.2g} ones of"
                    f" {after:.2g}",
                    place,
                )
            elif still and max(known.rates) <= TINY:
                self.watch.tell(
                    "BH841", f"{told}: the rate was never above {max(known.rates):.2g}", place
                )

    def _fallen(self, lines: set[Place]) -> bool:
        """Whether a loss fell all the same: what is learned does not show in the size of the
        weights.
        """
        for place, losses in self.schedules.losses.items():
            few = len(losses) // 4
            if (
                (place in lines or not lines)
                and few
                and statistics.median(losses[-few:]) < FALLEN * statistics.median(losses[:few])
            ):
                return True
        return False


def kept(held: list[Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    """Parameters and copies of their values; None where they are too many, spread over ranks, or
    all 0.
    """
    if (
        sum(p.numel() for p in held) > MOST
        or not all(type(p.detach()) is Tensor for p in held)
        or not any(bool(p.any()) for p in held)
    ):
        return None
    return [(p, p.detach().cpu().clone()) for p in held]


def moved(before: list[tuple[Tensor, Tensor]]) -> float:
    """The largest share by which a matrix, or all weights together, have moved; of those that began
    at 0, their root mean square.

    >>> moved([(torch.full((2, 2), 1.5), torch.ones(2, 2))])
    0.5
    """
    shares, total, size = [0.0], 0.0, 0.0
    for now, then in before:
        difference, norm = now.detach().cpu() - then, float(then.norm())
        # nothing is learned by it
        decay = min(float((difference * then).sum()) / norm**2, 0.0) if norm else 0.0
        change = float((difference - decay * then).norm())
        total, size = total + change**2, size + norm**2
        if now.ndim > 1:
            shares.append(change / (norm or math.sqrt(then.numel())))
    return max(*shares, math.sqrt(total / size) if size else 1.0)


def plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps are as long as gradients are."""
    return any(kind.__name__ == "SGD" for kind in type(optimizer).__mro__)


def cut_off(known: Moved) -> bool:
    """Whether clipping has made every gradient that was looked at many times smaller."""
    return bool(known.clips) and all(before > CUT * after for before, after in known.clips)


def beside_eps(known: Moved, norm: float) -> bool:
    """Whether the gradients that clipping leaves are small beside the number that Adam adds to
    their size.
    """
    eps = min(
        (float(g["eps"]) for g in known.optimizer.param_groups if "eps" in g and "betas" in g),
        default=0.0,
    )
    return norm / math.sqrt(max(known.values, 1)) < LOST * eps
