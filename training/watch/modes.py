"""Network calls in training and evaluation: mode, frozen parts and bypassed wrappers."""

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
    """Return the names of layers in this mode that behave differently in the other one.

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
    """A network in train mode that no optimizer trains."""

    module: nn.Module
    version: int  # version of its first weight
    place: Place
    steps: set[int]  # steps of other networks in which it ran


class Modes(Listener):
    """Listener for network calls and optimizer steps."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        forwards.judged = self.judged
        # calls without a backward pass since the last one, by rule and network id
        self.idle: Counter[tuple[str, int]] = Counter()
        self.backwards = 0
        self.evaluated_at = -1  # step of the last evaluation
        self.single: Call | None = None  # single call in train mode between steps
        self.fixed: dict[int, Fixed] = {}
        self.trained: set[int] = set()  # ids of networks trained in train mode
        self.in_eval: Counter[int] = Counter()  # steps in eval mode, by network
        # id of a frozen weight: its version, and the number of steps without a change
        self.versions: dict[int, tuple[int, int]] = {}

    def forwarded(self, call: Call) -> None:
        """Check a network call that no backward pass follows."""
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
            # the program differentiates with respect to inputs that require a gradient
            rule = "" if any(t.requires_grad for t in call.inputs) else "BH202"
        self.idle[rule, id(call.module)] += 1
        if rule and self.idle[rule, id(call.module)] >= TWICE:
            self._idle(rule, call)
        elif rule == "BH201" and rare:
            self.single = call

    def judged(self) -> None:
        """Report a single call in train mode whose scores are used for decisions. The mode does not
        matter for a call that is only inspected.
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
        """Record a network in train mode that gets no gradient, perhaps a teacher."""
        version = next(call.module.parameters())._version
        known = self.fixed.get(id(call.module))
        if known is None or known[:2] != (call.module, version):
            known = self.fixed[id(call.module)] = Fixed(call.module, version, call.place, set())
        known.steps.add(self.watch.steps)

    def ended(self) -> None:
        """Report untrained networks that ran in train mode in many steps of another network."""
        for module, version, place, steps in self.fixed.values():
            if len(steps) > MANY and next(module.parameters())._version == version:
                told = f"{type(module).__name__}, which is not trained, runs in train mode in"
                self.watch.tell("BH882", f"{told} {len(steps)} steps of another network", place)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the mode and the frozen layers of a trained network."""
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
        """Check that a weight is frozen and has not changed for some steps. The averaged weights of
        a teacher change at each step.
        """
        version, times = self.versions.get(id(weight), (weight._version, 0))
        times = times + 1 if version == weight._version else 0
        self.versions[id(weight)] = (weight._version, times)
        return times > TWICE and not weight.requires_grad


class Wrappers(Listener):
    """Listener for DDP that compares the wrapped parameters with the trained ones."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        # ids of all wrapped parameters: a network may be wrapped again
        self.known: set[int] = set()
        # true if the program has communicated between ranks since the last network call
        self.exchanged = False

    def install(self) -> None:
        """Install hooks for DDP and collectives."""
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
        """Reset the record of communication when a step begins."""
        self.exchanged &= not call.grad

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Report a network called without its wrapper, and parameters unknown to the wrapper."""
        call = self.forwards.last
        if call is None or not call.grad or self.exchanged:
            return  # the program may average gradients itself
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
    """Return the parameters of a network that an optimizer holds, by name."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {n: p for n, p in call.module.named_parameters() if id(p) in held}


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
