"""How networks are called in training and evaluation: in which mode, with what frozen, and past
which wrapper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.watch.events import Call, Listener, Place
from training.watch.forwards import Forwards, Norm
from training.watch.patches import around
from training.watch.record import Watch

TWICE, MANY = 2, 10  # times in a row; steps of another network
REDUCING = ("all_reduce", "all_gather_into_tensor", "all_gather", "broadcast", "reduce_scatter")


def mode_dependent(module: nn.Module, training: bool) -> list[str]:
    """Names of layers in a mode that do something else in the other one.

    >>> mode_dependent(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.Dropout(0.0)), True)
    ['1']
    """
    return [
        name or type(m).__name__
        for name, m in module.named_modules()
        if m.training == training
        and (
            (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0)
            or (isinstance(m, Norm) and m.track_running_stats)
        )
    ]


class Fixed(NamedTuple):
    """A network in train mode that is not trained."""

    module: nn.Module
    version: int  # of its first weight
    place: Place
    steps: set[int]  # of others, in which it ran


class Modes(Listener):
    """Listens to calls and steps."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        forwards.judged = self.judged
        # how often a network was called for nothing since the last backward pass, by rule and id
        self.idle: Counter[tuple[str, int]] = Counter()
        self.backwards = 0
        self.evaluated_at = -1  # step
        self.single: Call | None = None  # in train mode, once between steps
        self.fixed: dict[int, Fixed] = {}
        self.trained: set[int] = set()  # modules that have been trained in train mode
        self.in_eval: Counter[int] = Counter()  # their steps in eval mode
        # of frozen weights, by id: their version, and for how many steps it has been the same
        self.versions: dict[int, tuple[int, int]] = {}

    def forwarded(self, call: Call) -> None:
        """A network is called: not for training where no backward pass follows."""
        backwards = self.watch.backwards + self.watch.differentiated
        if backwards != self.backwards:
            self.backwards = backwards
            self.idle.clear()
        self.single = None
        noisy = call.training and bool(mode_dependent(call.module, True))
        if noisy and not (call.grad and any(p.requires_grad for p in call.module.parameters())):
            self._give(call)
        if not self.forwards.trains(call.module):
            return
        rule, rare = "", 0 <= self.evaluated_at < self.watch.steps - 1
        if not call.grad:
            self.evaluated_at = self.watch.steps
            rule = "BH201" if noisy and not self.watch.calling("update_bn") else ""
        elif not call.training and any(t.requires_grad for t in call.outputs):
            # inputs that require a gradient are to be differentiated by
            rule = "" if any(t.requires_grad for t in call.inputs) else "BH202"
        self.idle[rule, id(call.module)] += 1
        if rule and self.idle[rule, id(call.module)] >= TWICE:
            self._idle(rule, call)
        elif rule == "BH201" and rare:
            self.single = call

    def judged(self) -> None:
        """The scores of a single call are decided on; where they are only looked at, its mode does
        not matter.
        """
        if self.single is not None:
            self._idle("BH201", self.single)

    def _idle(self, rule: str, call: Call) -> None:
        told = "is evaluated with gradients on, and nothing uses them"
        if rule == "BH201":
            few = _few(mode_dependent(call.module, True))
            told = f"runs without gradients in train mode, with {few} at work"
        self.watch.tell(rule, f"{type(call.module).__name__} {told}", call.place)

    def _give(self, call: Call) -> None:
        """A network in train mode without a part in the gradient, for another one perhaps."""
        version = next(call.module.parameters())._version
        known = self.fixed.get(id(call.module))
        if known is None or known[:2] != (call.module, version):
            known = self.fixed[id(call.module)] = Fixed(call.module, version, call.place, set())
        known.steps.add(self.watch.steps)

    def ended(self) -> None:
        """Networks that ran in train mode in many steps of others, and were never trained."""
        for module, version, place, steps in self.fixed.values():
            if len(steps) > MANY and next(module.parameters())._version == version:
                told = f"{type(module).__name__}, which is not trained, runs in train mode in"
                self.watch.tell("BH882", f"{told} {len(steps)} steps of another network", place)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """A network is trained."""
        call = self.forwards.last
        if call is None or not call.grad or not _held(call, optimizer):
            return
        key, name = id(call.module), type(call.module).__name__
        asleep = mode_dependent(call.module, False)
        if call.training:
            self.trained.add(key)
        elif asleep and not mode_dependent(call.module, True):
            self.in_eval[key] += 1
            if self.in_eval[key] == TWICE:
                since = "since an evaluation, " if key in self.trained else ""
                told = f"{since}{name} is trained in eval mode: {_few(asleep)} do nothing"
                self.watch.tell("BH203", told, call.place)
        norms = [
            n
            for n, m in call.module.named_modules()
            if isinstance(m, Norm) and m.training and m.track_running_stats and m.affine
            if not m.bias.requires_grad and self._frozen(m.weight)
        ]
        if norms:
            told = f"the weights of {_few(norms)} are frozen, but in train mode their running"
            self.watch.tell("BH811", f"{told} statistics move with each batch", call.place)
        tail = call.tail
        inside = tail in set(call.module.modules()) and tail not in self.forwards.loaded
        if isinstance(tail, nn.Linear) and inside and self._frozen(tail.weight):
            told = f"the last layer of {name} ({list(tail.weight.shape)}) is frozen as it was made"
            self.watch.tell("BH427", f"{told}, while layers before it are trained", call.place)

    def _frozen(self, weight: Tensor) -> bool:
        """Whether a weight is frozen, and nothing has written to it for some steps, as a teacher's
        average does at each.
        """
        version, times = self.versions.get(id(weight), (weight._version, 0))
        times = times + 1 if version == weight._version else 0
        self.versions[id(weight)] = (weight._version, times)
        return times > TWICE and not weight.requires_grad


class Wrappers(Listener):
    """Listens to DDP, and compares what it knew with what is trained through it."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        # ids of parameters that any wrapper was given: a network may be wrapped anew
        self.known: set[int] = set()
        # whether the program itself gave something to other ranks since the last call of a network
        self.exchanged = False

    def install(self) -> None:
        """Listen."""
        around(DistributedDataParallel, "__init__", self._wrap)
        for name in REDUCING:
            around(dist, name, self._reduced)

    def _wrap(self, original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        self.known |= {id(p) for p in wrapper.parameters()}
        self.forwards.wrapped[id(wrapper.module)] = wrapper

    def _reduced(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.exchanged |= not self.watch.quiet
        return original(*args, **kwargs)

    def forwarded(self, call: Call) -> None:
        """A step begins."""
        self.exchanged &= not call.grad

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """How the network of this step was called, and what its wrapper does not know."""
        call = self.forwards.last
        if call is None or not call.grad or self.exchanged:
            return  # the program may average gradients by itself
        mine = _held(call, optimizer)
        if id(call.module) in self.forwards.wrapped and mine:
            told = f"{type(call.module).__name__} is trained past its DistributedDataParallel"
            self.watch.tell("BH602", f"{told}: ranks do not exchange gradients", call.place)
        late = [n for n, p in mine.items() if p.grad is not None and id(p) not in self.known]
        if late and isinstance(call.module, DistributedDataParallel):
            told = (
                f"{_few(late)}: put into the network after it was wrapped, which does not average"
            )
            self.watch.tell("BH843", f"{told} their gradients", call.place)


def _held(call: Call, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The parameters of a network that an optimizer holds."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {n: p for n, p in call.module.named_parameters() if id(p) in held}


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
