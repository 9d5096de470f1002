"""Raw scores that are compared with a number as if they were probabilities."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.forwards import Call, Forwards
from training.watch.losses import Functions
from training.watch.record import Place, Watch

COMPARISONS = ("gt", "ge", "lt", "le", "greater", "greater_equal", "less", "less_equal")
LOW, HIGH = 0.3, 0.7
TWICE = 2
TYPED = 1e-6  # a number of two decimals is typed by somebody; others may well have been tuned on raw scores


@dataclass(eq=False)
class Cut:
    """What the scores of one network are compared with at one line."""

    numbers: set[float] = field(default_factory=set)
    outside: float = 0.0  # the score furthest from what a probability can be


@dataclass(eq=False)
class Scores:
    """A network that learns from raw scores."""

    losses: dict[int, int] = field(default_factory=dict)  # by which of its outputs
    storages: set[int] = field(default_factory=set)  # where those of the last evaluation are
    held: list[Tensor] = field(default_factory=list)  # these, so that no other tensor is put there
    cuts: dict[Place, Cut] = field(default_factory=dict)


class Cuts:
    """Listens to losses over raw scores, and to comparisons."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.of: weakref.WeakKeyDictionary[nn.Module, Scores] = weakref.WeakKeyDictionary()
        self.kept: list[Scores] = []  # a network that only a function of the program holds is gone at the end

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("binary_cross_entropy_with_logits",), before=self._lost)
        self.functions.listen((*COMPARISONS, "__gt__", "__ge__", "__lt__", "__le__"), before=self._compared)

    def _lost(self, name: str, input: Tensor, *_: Any, **__: Any) -> None:
        call = self.forwards.last
        if call is None or not call.grad or not input.requires_grad:
            return
        for i, output in enumerate(call.outputs):
            if output.numel() == input.numel() and where(output) == where(input) != 0:  # a part of an output says nothing about its other parts
                known = self._scores(unwrapped(call.module))
                known.losses[i] = known.losses.get(i, 0) + 1

    def _scores(self, module: nn.Module) -> Scores:
        if module not in self.of:
            self.of[module] = Scores()
            self.kept.append(self.of[module])
        return self.of[module]

    def forwarded(self, call: Call) -> None:
        """Remember where the scores of an evaluation are."""
        known = self.of.get(unwrapped(call.module))
        if known is None:
            return
        known.storages.clear()
        known.held.clear()
        if not call.grad or not call.training:
            raw = [t for i, t in enumerate(call.outputs) if known.losses.get(i, 0) >= TWICE]
            known.held += [t.detach() for t in raw]
            known.storages.update(map(where, raw))

    def _compared(self, name: str, scores: Any, other: Any, *_: Any, **__: Any) -> None:
        evaluated = [known for known in self.kept if known.storages]
        if isinstance(scores, Tensor) and isinstance(other, Tensor) and scores.numel() == 1 < other.numel():
            scores, other = other, scores
        if not evaluated or not isinstance(scores, Tensor) or not scores.is_floating_point() or not scores.numel() or self.forwards.stack:
            return
        number = other if isinstance(other, int | float) else other.item() if isinstance(other, Tensor) and other.numel() == 1 else None
        if number is None:
            return
        place = where(scores)
        for known in evaluated:
            if place and place in known.storages:
                cut = known.cuts.setdefault(self.watch.here(), Cut())
                cut.numbers.add(float(number))
                cut.outside = max((cut.outside, *(float(v) for v in scores.detach().aminmax())), key=lambda v: max(-v, v - 1))

    def ended(self) -> None:
        """Lines at which nothing but a probability would be cut in the middle."""
        for known in self.kept:
            if any(len(c.numbers) > 1 and not all(map(halfway, c.numbers)) for c in known.cuts.values()):
                continue  # cuts are tried one after another, and the best of them may lie anywhere
            for place, cut in known.cuts.items():
                number = min(cut.numbers)
                if all(map(halfway, cut.numbers)) and not 0 <= cut.outside <= 1:
                    told = f"scores that the loss takes raw are compared with {number:g}, and go as far as {cut.outside:.2g}: their middle is 0"
                    self.watch.tell("BH311", told, place)


def halfway(number: float) -> bool:
    """Whether somebody means a probability by a number.

    >>> halfway(0.5), halfway(0.0), halfway(0.48213)
    (True, False, False)
    """
    return LOW < number < HIGH and abs(round(number, 2) - number) < TYPED


def where(tensor: Tensor) -> int:
    """The memory of a tensor and of its views; 0 of one that has none of its own: sparse, spread over ranks, batched by vmap."""
    try:
        return tensor.untyped_storage().data_ptr() if type(tensor) is Tensor and tensor.layout == torch.strided else 0
    except (RuntimeError, NotImplementedError):
        return 0


def unwrapped(module: nn.Module) -> nn.Module:
    """A network without the wrappers for several ranks or devices, in which it is often trained and not evaluated."""
    while isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        module = module.module
    return module
