"""Copies of a trained network that are evaluated without the trained weights."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field

import torch
from torch import nn

from training.watch.events import Call, Listener, Place
from training.watch.forwards import Forwards, Norm
from training.watch.record import Watch

SOME = 10  # least number of training steps
OFTEN = 0.25  # share of all steps; a network that runs more often is a teacher
# share of weights that training moves beyond their initial bounds; least number of weights
OUTSIDE, FEWEST = 0.01, 200
ROUNDED = 1e-5
Row = tuple[float, ...]


@dataclass(eq=False)
class Evaluated:
    """A network that is evaluated and that no optimizer updates."""

    module: weakref.ref[nn.Module]
    name: str
    place: Place
    values: float  # the sum of its parameters
    fresh: bool = True
    steps: set[int] = field(default_factory=set)
    rows: set[Row] = field(default_factory=set)  # the first row of each batch


class Copies(Listener):
    """Listener for evaluations of networks of the same class as a trained one."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        self.trained: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.of: dict[int, Evaluated] = {}
        # rows that were given to networks with trained weights
        self.learned: set[Row] = set()

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember that the network of this step is trained."""
        call = self.forwards.last
        if call is not None and call.grad:
            self.trained.add(call.module)

    def forwarded(self, call: Call) -> None:
        """Check an evaluation, once per step and network."""
        module, twins = call.module, [t for t in self.trained if type(t) is type(call.module)]
        if call.grad or self.watch.steps < SOME or not call.rows:
            return
        if not call.training:
            self._norms(call, twins)
        if not twins or call.inputs[0].layout is not torch.strided:
            return
        row = tuple(call.inputs[0].detach()[0].flatten()[:64].tolist())
        if self.forwards.trains(module):
            self.learned.add(row)
        elif not call.training:  # in train mode it makes targets
            values = sum(float(p.detach().double().sum()) for p in module.parameters())
            known = self.of.get(id(module))
            if known is None or known.module() is not module:
                known = Evaluated(weakref.ref(module), type(module).__name__, call.place, values)
                self.of[id(module)] = known
            if self.watch.steps not in known.steps:
                known.steps.add(self.watch.steps)
                known.fresh &= known.values == values and self._fresh(module, twins)
            (known.rows if known.fresh else self.learned).add(row)

    def _fresh(self, module: nn.Module, twins: list[nn.Module]) -> bool:
        """Check that a network has its initial weights and that its trained twins do not."""
        loaded = any(part in self.forwards.loaded for part in module.modules())
        return not loaded and outside(module) == 0 and all(outside(t) > OUTSIDE for t in twins)

    def _norms(self, call: Call, twins: list[nn.Module]) -> None:
        """Find norms in eval mode that still have their initial statistics."""
        still = [n for n, m in call.module.named_modules() if not m.training and at_start(m)]
        theirs = [dict(t.named_modules()) for t in twins if still and t is not call.module]
        behind = [n for n in still if any(n in ms and not at_start(ms[n]) for ms in theirs)]
        if behind and not self._fresh(call.module, twins):
            told = (
                f"the running mean of {behind[0]} in {type(call.module).__name__} is 0 and its"
                " variance 1, those of the network that was trained are not"
            )
            self.watch.tell("BH845", told, call.place)

    def ended(self) -> None:
        """Report evaluated networks that received nothing of the training."""
        for known in self.of.values():
            often = len(known.steps) > max(2, OFTEN * self.watch.steps)
            module = known.module()
            trained_later = module is not None and self.forwards.trains(module)
            if known.fresh and not often and not trained_later and not known.rows & self.learned:
                told = (
                    f"the {known.name} that is evaluated holds nothing of what was learned in"
                    f" {self.watch.steps} steps: no optimizer steps it, and nothing was copied"
                    " into it since it was made"
                )
                self.watch.tell("BH844", told, known.place)


def at_start(norm: nn.Module) -> bool:
    """Check that a batch norm has its initial statistics."""
    if not isinstance(norm, Norm) or norm.running_mean is None or norm.running_var is None:
        return False
    return not bool(norm.running_mean.any() or (norm.running_var != 1).any())


def outside(module: nn.Module) -> float:
    """Return the share of weights of linear and convolution layers beyond their initial bounds in
    torch. It is below 0 if the network has too few weights.

    >>> outside(nn.Linear(30, 30))
    0.0
    """
    beyond = total = 0
    for m in module.modules():
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            bound = (1 + ROUNDED) / math.sqrt(max(m.weight[0].numel(), 1))
            for p in m.parameters(recurse=False):
                beyond += int((p.detach().abs() > bound).sum())
                total += p.numel()
    return beyond / total if total >= FEWEST else -1.0
