"""Optimizers and backward passes: check that each step uses the intended gradients."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards, tensors_in
from training.watch.leaves import Leaves
from training.watch.patches import around
from training.watch.record import Watch, guarded

TWICE, SOME, TURNS, UNEVEN = 2, 5, 4, 1.1
MOST_KEPT, LARGE = 200, 5_000_000  # parameters with stored values; most values
LOSSES = ("loss", "mean", "entropy", "nll", "mse", "logits")


# identity and version of a gradient; both show a change
Mark = tuple[weakref.ref[Tensor], int]


@dataclass(eq=False)
class Parameter:
    """State of a parameter's gradient at its last optimizer step and its last backward pass."""

    used: Mark | None = None
    left: Mark | None = None
    before: Mark | None = None
    fresh: bool = False  # a backward pass has added to it since the last step
    stale: bool = False  # a backward pass added to an already used gradient
    reached: int = 0  # steps with a nonzero gradient
    moved_by: list[int] = field(default_factory=list)  # ids of optimizers, in order


class Pass(NamedTuple):
    """A backward pass since the last step."""

    line: Place
    scaled: bool  # the loss was divided
    drawn: int  # batches drawn so far
    labels: int  # number of labels in its mean


@dataclass(eq=False)
class Held:
    """An optimizer and the gradients that its steps received."""

    optimizer: torch.optim.Optimizer
    made: Place
    states: WeakIdKeyDictionary  # states of the parameters of all optimizers
    before: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # initial values
    began: float = 0.0  # sum of the initial values
    stepped_at: Place | None = None
    steps: int = 0
    empty: int = 0  # steps without a new gradient
    cleared: int = 0  # empty steps with gradients cleared just before
    stale: int = 0
    unused: dict[Place, int] = field(default_factory=dict)  # passes cleared before a step
    since: list[Pass] = field(default_factory=list)  # passes since the last step
    by_hand: int = 0  # steps with gradients set by hand
    uneven: int = 0  # accumulation windows with unequal label counts
    crossed: bool = False  # an epoch began with gradients of the last one
    left_over: int = 0  # times that leftover gradients were cleared or enlarged the next window
    windows: list[tuple[int, bool]] = field(default_factory=list)  # batches; loss divided
    lines: set[Place] = field(default_factory=set)  # lines of backward passes used by steps
    ever: int = 0  # backward passes that reached its parameters
    by_closure: bool = False
    moved: bool = False  # weights have differed from their initial values

    def items(self) -> Iterator[tuple[Tensor, Parameter]]:
        """Yield all parameters, including those of groups that were added later."""
        for p in [p for group in self.optimizer.param_groups for p in group["params"]]:
            yield p, self.states.setdefault(p, Parameter())

    def ids(self) -> set[int]:
        """Return the ids of all parameters."""
        return {id(p) for p, _ in self.items()}

    def unmoved(self) -> bool:
        """Check that all initial weights are known and unchanged."""
        return len(self.before) == len(self.ids()) and all(
            torch.equal(share(p), b) for p, b in self.before
        )

    @property
    def name(self) -> str:
        """Class name of the optimizer."""
        return type(self.optimizer).__name__

    @property
    def largest(self) -> int:
        """Largest number of batches in one accumulation window."""
        return max((size for size, _ in self.windows), default=1)


def mark(parameter: Tensor) -> Mark | None:
    """Return the mark of the current gradient, or None without a gradient."""
    grad = parameter.grad
    return None if grad is None else (weakref.ref(grad), share(grad)._version)


def same(a: Mark | None, b: Mark | None) -> bool:
    """Check that two marks belong to the same unchanged gradient."""
    if a is None or b is None:
        return a is b
    return a[1] == b[1] and a[0]() is not None and a[0]() is b[0]()


def nonzero(parameter: Tensor) -> bool:
    """Check that a parameter has a nonzero gradient."""
    grad = parameter.grad
    if grad is None:
        return False
    mine = share(grad)
    # an empty shard shows nothing
    return bool((mine._values() if mine.is_sparse else mine).any()) or not mine.numel()


def share(values: Tensor) -> Tensor:
    """Return the local shard of an FSDP tensor, or the whole of any other tensor."""
    local: Callable[[], Tensor] | None = getattr(values, "to_local", None)
    return values.detach() if local is None else local().detach()


class Gradients(Listener):
    """Listener for backward passes and optimizers."""

    def __init__(self, watch: Watch, forwards: Forwards, drawn: Callable[[], int]) -> None:
        self.watch, self.forwards, self.drawn = watch, forwards, drawn
        self.held: dict[int, Held] = {}
        self.states: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.leaves = Leaves(watch, forwards)
        self.calls = 0  # network calls until the last backward pass
        self.valid: Callable[[], int] = lambda: 0  # labels in the last mean
        self.inside: list[torch.optim.Optimizer] = []

    def install(self) -> None:
        """Install hooks for backward passes and optimizers."""
        self.leaves.install()
        around(torch.autograd, "backward", self._backward)
        around(torch.optim.Optimizer, "__init__", self._made)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def _made(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        if not self.watch.quiet:
            self._hold(optimizer)

    @guarded
    def _hold(self, optimizer: torch.optim.Optimizer) -> None:
        held = self.held[id(optimizer)] = Held(optimizer, self.watch.here(), self.states)
        self.leaves.times.clear()
        held.before = [
            (p, share(p).clone())
            for p, _ in [*held.items()][:MOST_KEPT]
            if p.numel() < LARGE and not p.is_meta
        ]
        held.began = sum(float(values.double().sum()) for _, values in held.before)
        before = [h for h in self.held.values() if h.made == held.made and h.steps]
        again = [h for h in before if h.ids() & held.ids()]
        # with equal weights the program has reset the network, as for each fold
        if len(again) >= TWICE and all(h.began != held.began for h in again):
            told = f"{held.name} is made again for the same weights: momentum and moments are lost"
            self.watch.tell("BH123", told, held.made)

    @guarded
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.watch.quiet:
            return
        self.inside.append(optimizer)
        held = self.held.get(id(optimizer))
        if held is not None:
            held.by_closure |= any(callable(a) for a in [*args, *kwargs.values()])
            held.stepped_at = self.watch.here()
            self.watch.emit(Listener.stepping, optimizer)
            if not held.by_closure:
                self._use(held)

    def _use(self, held: Held) -> None:
        """Classify the gradients that a step is about to use."""
        new, states = False, list(held.items())
        for p, state in states:
            # the gradient of a bias may be exactly 0
            state.reached += p.ndim < TWICE and p.grad is not None and state.fresh
            if p.grad is not None and not same(mark(p), state.used) and nonzero(p):
                new = True
                state.reached += 1
                if state.moved_by[-1:] != [id(held.optimizer)]:
                    state.moved_by.append(id(held.optimizer))
        cleared = any(s.fresh and not same(mark(p), s.left) for p, s in states)
        held.empty += not new
        held.cleared += not new and cleared and self.forwards.calls == self.calls
        held.by_hand += any(
            s.left and p.grad is not None and s.left[0]() is not p.grad for p, s in states
        )
        held.stale += any(s.stale for _, s in states)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.watch.quiet:
            return
        if self.inside:
            self.inside.pop()
        held = self.held.get(id(optimizer))
        if held is not None:
            self.watch.steps += 1
            self._count(held)
            self.watch.emit(Listener.stepped, optimizer)

    @guarded
    def _count(self, held: Held) -> None:
        held.steps += 1
        if not held.moved and held.steps > 1 and not held.steps & (held.steps - 1):
            held.moved = not held.unmoved()  # the program may restore weights before the end
        self._window(held)
        for p, state in held.items():
            state.reached += held.by_closure and nonzero(p)
            state.used, state.fresh, state.stale = mark(p), False, False

    def _window(self, held: Held) -> None:
        """Count the batches and backward passes of one line that the step used."""
        lines = [p.line for p in held.since]
        window = [p for p in held.since if lines.count(p.line) >= TWICE]
        held.lines |= set(lines)
        if not held.by_closure:
            size = len({p.drawn for p in window}) if window else 1
            usual = statistics.mode(w for w, _ in held.windows) if held.windows else size
            held.left_over += held.crossed and size > usual
            held.crossed = False
            held.windows.append((size, all(p.scaled for p in window)))
            labels = [p.labels for p in window]
            held.uneven += bool(window) and 0 < UNEVEN * min(labels) < max(labels)
        held.since.clear()

    def _backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if self.watch.quiet:
            return original(tensors, *args, **kwargs)
        roots, place = list(tensors_in(tensors)), self.watch.here()
        self._look_before(place)
        self.watch.emit(Listener.backing, place)
        leaves = self.leaves.walk(roots, place) or []
        result = original(tensors, *args, **kwargs)
        self.watch.backwards += 1
        self.calls = self.forwards.calls
        self._look_after(place, roots)
        self.leaves.reach(leaves)
        for root in roots[:1]:
            self.watch.emit(Listener.backed, root, place)
        return result

    @guarded
    def _look_before(self, place: Place) -> None:
        """Check which earlier gradients are left."""
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.watch.tell("BH135", "backward runs under autocast", place)
        for held in self.held.values():
            wasted = False
            for p, state in held.items():
                now = state.before = mark(p)
                if now is None or not same(now, state.used):
                    state.stale = state.stale and now is not None and same(now, state.left)
                gone = now is None or (not same(now, state.left) and not nonzero(p))
                wasted |= state.fresh and gone
                state.fresh = state.fresh and not gone
            held.left_over += wasted and held.crossed
            held.crossed = held.crossed and not wasted
            if wasted and held.since:
                if held.since[-1].line == place and not held.by_closure:
                    held.unused[place] = held.unused.get(place, 0) + 1
                held.since.clear()

    @guarded
    def _look_after(self, place: Place, roots: list[Tensor]) -> None:
        """Record which parameters received a gradient."""
        name = type(roots[0].grad_fn).__name__.lower() if roots else ""
        scaled = not any(word in name for word in LOSSES)
        for held in self.held.values():
            reached = False
            for p, state in held.items():
                state.left = mark(p)
                if state.left is not None and not same(state.left, state.before):
                    reached = state.fresh = True
                    state.stale |= state.before is not None and same(state.before, state.used)
            if reached and held.optimizer not in self.inside:
                held.ever += 1
                held.since.append(Pass(place, scaled, self.drawn(), self.valid()))

    def began(self, *_: object) -> None:
        """Note the gradients that are left when a training epoch begins."""
        for held in self.held.values():
            held.crossed = bool(held.since) and any(s.fresh for _, s in held.items())

    def even_windows(self) -> bool | None:
        """Check that windows of several batches are equal and complete; None without any."""
        several = [h for h in self.held.values() if h.largest >= TWICE]
        even = (len(set(h.windows)) == 1 and not h.left_over and not h.since for h in several)
        return all(even) if several else None

    def ended(self) -> None:
        """Report the findings of the whole run."""
        every = list(self.held.values())
        unstepped = [h for h in every if not h.steps and h.ever >= SOME and h.unmoved()]
        for held in unstepped if self.watch.complete else ():
            told = f"{held.ever} backward passes reach what {held.name} holds"
            self.watch.tell("BH105", f"{told}, and it never makes a step", held.made)
        if unstepped:
            return
        for held in every:
            if held.steps >= TWICE:
                self._judge(held)
                self._windows(held)
        if every and self.watch.steps:
            self.leaves.unheld({i for h in every for i in h.ids()}, every[0].made)
        for one, other in permutations([h for h in every if h.steps >= SOME], TWICE):
            self._in_turns(one, other)

    def _judge(self, held: Held) -> None:
        """Check that steps used new gradients and changed weights."""
        place, counted = held.stepped_at, f"of {held.steps} steps of {held.name}"
        if held.stale >= TWICE:
            told = f"{held.stale} {counted} used gradients to which earlier ones had been added"
            self.watch.tell("BH101", told, place)
        if held.empty >= max(TWICE, held.steps / 2) and not held.by_closure:
            self._empty(held, f"{held.empty} {counted}")
        elif held.steps >= SOME:
            self._unreached(held)
        if held.steps >= SOME and held.empty < held.steps and not held.moved and held.unmoved():
            self.watch.tell("BH807", f"none {counted} has changed a weight", place)

    def _empty(self, held: Held, counted: str) -> None:
        """Report why steps had no gradient."""
        place = held.stepped_at
        if held.cleared >= max(TWICE, held.empty / 2):
            self.watch.tell("BH102", f"before {counted} the gradients were cleared", place)
        elif not self.watch.backwards:
            self.watch.tell("BH104", f"{counted} had no gradient: backward was never called", place)
        elif held.ever or held.ids() & set(self.leaves.of):
            self.watch.tell("BH103", f"{counted} had no new gradient", place)
        else:
            ran = {id(p) for m in self.forwards.executed for p in m.parameters(recurse=False)}
            rule, at = ("BH309", place) if ran & held.ids() else ("BH415", held.made)
            told = "the losses do not depend on its weights (other ones, or cut off from the graph)"
            self.watch.tell(rule, f"{counted} had no gradient: {told}", at)

    def _unreached(self, held: Held) -> None:
        """Report parameters that got no gradient, over all optimizers made at the same line."""
        others = [h for h in self.held.values() if h.made == held.made]
        reached = {i for h in others for i, (_, s) in enumerate(h.items()) if s.reached}
        trainable = [(i, p) for i, (p, _) in enumerate(held.items()) if p.requires_grad]
        without = [p for i, p in trainable if i not in reached]
        if without and len(without) < len(trainable):
            known = {id(p): n for root in self.forwards.roots for n, p in root.named_parameters()}
            names = ", ".join(known.get(id(p), "a parameter") for p in without[:4])
            told = f"{len(without)} of {len(trainable)} parameters got no gradient in any step"
            self.watch.tell("BH810", f"{told} of {held.name}: {names}", held.made)

    def _windows(self, held: Held) -> None:
        """Check the accumulation of gradients over several batches."""
        place, often = held.stepped_at, max(TWICE, held.steps / 2)
        large = [w for w, scaled in held.windows if w >= TWICE and not scaled]
        if len(large) >= often:
            told = f"the gradients of {max(large)} batches are summed for a step of {held.name}"
            self.watch.tell("BH121", f"{told}, and none was divided", place)
        elif held.uneven >= often:
            told = (
                f"in {held.uneven} of {held.steps} steps of {held.name} means over unequal numbers"
            )
            self.watch.tell("BH823", f"{told} of labels count alike", place)
        if held.left_over >= TWICE and held.largest >= TWICE:
            told = f"{held.left_over} epochs left gradients to the next one, where a step used too"
            self.watch.tell("BH122", f"{told} many, or none", place)
        # the program may have read gradients before it cleared them
        cleared = held.unused if held.by_hand < often and held.largest < TWICE else {}
        for line, times in cleared.items():
            if times >= often and line in held.lines:
                told = f"the gradients of {times} backward passes were cleared before a step"
                self.watch.tell("BH126", f"{told} used them", line)

    def _in_turns(self, one: Held, other: Held) -> None:
        """Report two optimizers that take turns to update the same parameters."""
        turns = {id(one.optimizer), id(other.optimizer)}
        if one.ids() < other.ids() and all(
            len(s.moved_by) > TURNS and set(s.moved_by) == turns for _, s in one.items()
        ):
            told = f"two optimizers take turns in moving the same {len(one.ids())} parameters"
            self.watch.tell("BH421", f"{told}: one of them holds all of the other's", other.made)
