"""Optimizers and backward passes: which gradient a step uses, and whether it is the one that was
meant.
"""

from __future__ import annotations

import statistics
import weakref
from collections import Counter
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

from training.watch.forwards import Forwards
from training.watch.leaves import Leaves
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded


class Mark(NamedTuple):
    """One gradient as it was: another tensor, or the same one changed, is another mark."""

    grad: weakref.ref[Tensor]
    version: int


TWICE, SOME = 2, 5  # times before something is told
UNEVEN, TURNS = 1.1, 4
# parameters whose first values are kept, and how many values are too many
MOST_KEPT, LARGE = (200, 5_000_000)
SCALED = ("Div", "Mul")
UNSCALED = "_before_scaling"  # attribute of a scaled loss: what made it
LOSSES = ("loss", "mean", "entropy", "nll", "mse", "logits")


@dataclass(eq=False)
class Parameter:
    """The gradient of one parameter: as it was last used by a step, and as the last backward pass
    left it.
    """

    used: Mark | None = None
    left: Mark | None = None
    before: Mark | None = None
    fresh: bool = False  # a backward pass added to it since the last step
    stale: bool = False  # what it was added to had been used already
    reached: int = 0  # steps with a gradient other than 0
    moved_by: list[int] = field(default_factory=list)  # optimizers in turn


class Pass(NamedTuple):
    """One backward pass: its line, whether the loss was scaled down, batches drawn until then,
    labels that its mean was taken over.
    """

    line: Place
    scaled: bool
    drawn: int
    labels: int


@dataclass(eq=False)
class Held:
    """An optimizer and what its steps were given."""

    optimizer: torch.optim.Optimizer
    made: Place
    states: WeakIdKeyDictionary  # of all parameters, whoever holds them
    before: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    began: tuple[float, ...] = ()  # the sum of each parameter when it was made
    stepped_at: Place | None = None
    steps: int = 0
    empty: int = 0
    cleared: int = 0
    stale: int = 0
    # gradients cleared before any step, by line of their backward
    unused: dict[Place, int] = field(default_factory=dict)
    since: list[Pass] = field(default_factory=list)  # backward passes since the last step
    by_hand: int = 0  # steps with gradients that were put there, and not left by a backward pass
    # how many passes had been added up when they were clipped, of this step
    clipped: set[int] = field(default_factory=set)
    in_part: int = 0  # steps whose gradients were clipped after each of several passes
    uneven: int = 0  # windows whose means were taken over unequal numbers of labels
    crossed: bool = False  # an epoch began with gradients of the last one
    left_over: int = 0  # times that these were cleared, or made the next window larger
    # batches a step, and whether each was scaled down
    windows: list[tuple[int, bool]] = field(default_factory=list)
    lines: set[Place] = field(default_factory=set)  # of the backward passes that steps used
    ever: int = 0  # backward passes that reached it
    by_closure: bool = False
    moved: bool = (
        False  # weights differ from those of the first step, or did before a state was loaded
    )
    made_at: int = 0  # steps of the program by then
    last_at: int = 0  # by its last step
    # parameters of networks that were frozen when it was made
    frozen: list[Tensor] = field(default_factory=list)
    # its steps at which these had gradients, by id
    thawed: Counter[int] = field(default_factory=Counter)

    def items(self) -> Iterator[tuple[Tensor, Parameter]]:
        """All its parameters, those of groups that were added later, too."""
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p not in self.states:
                    self.states[p] = Parameter()
                yield p, self.states[p]


def mark(parameter: Tensor) -> Mark | None:
    """Of the present gradient; None where there is none."""
    grad = parameter.grad
    return None if grad is None else Mark(weakref.ref(grad), share(grad)._version)


def same(a: Mark | None, b: Mark | None) -> bool:
    """Whether two marks are of one gradient that has not changed between them."""
    if a is None or b is None:
        return a is b
    return a.version == b.version and a.grad() is not None and a.grad() is b.grad()


def nonzero(parameter: Tensor) -> bool:
    """Whether there is a gradient other than 0."""
    grad = parameter.grad
    if grad is None:
        return False
    mine = share(grad)
    # an empty share tells nothing
    return bool((mine._values() if mine.is_sparse else mine).any()) or not mine.numel()


def share(values: Tensor) -> Tensor:
    """What this rank holds of a tensor, without a word to other ranks: of one that FSDP has spread
    its own rows, else all of it.
    """
    local: Callable[[], Tensor] | None = getattr(values, "to_local", None)
    return values.detach() if local is None else local().detach()


class Gradients(Listener):
    """Listens to backward passes and optimizers."""

    def __init__(self, watch: Watch, forwards: Forwards, drawn: Callable[[], int]) -> None:
        self.watch, self.forwards, self.drawn = watch, forwards, drawn
        self.held: dict[int, Held] = {}
        self.states: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.leaves = Leaves(watch, forwards)
        self.accumulated = 0  # calls of networks until the last backward pass
        self.valid: Callable[[], int] = lambda: 0  # labels that the last mean was taken over
        self.inside: list[torch.optim.Optimizer] = []
        self.first_backward: Place | None = None

    def install(self) -> None:
        """Listen."""
        self.leaves.install()
        around(torch.autograd, "backward", self._backward)
        around(torch.optim.Optimizer, "__init__", self._made)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    # -------------------------------------------------------------------------------------
    # optimizers

    def _made(
        self,
        original: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        original(optimizer, *args, **kwargs)
        if not self.watch.quiet and id(optimizer) not in self.held:
            self._hold(optimizer)

    @guarded
    def _hold(self, optimizer: torch.optim.Optimizer) -> None:
        held = Held(optimizer, self.watch.here(), self.states, made_at=self.watch.steps)
        held.frozen = [
            p for root in self.forwards.roots for p in root.parameters() if not p.requires_grad
        ]
        self.leaves.times.clear()
        mine = {id(p) for p, _ in held.items()}
        first = [p for p, _ in held.items()][:MOST_KEPT]
        held.began = tuple(
            float(share(p).sum())
            for p in first
            if p.is_floating_point() and p.element_size() > 1 and not p.is_meta
        )
        again = [
            h
            for h in self.held.values()
            if h.made == held.made and h.steps and mine & {id(p) for p, _ in h.items()}
        ]
        # else the weights were set back, as for each of several folds
        if len(again) >= TWICE and all(h.began != held.began for h in again):
            self.watch.tell(
                "BH123",
                f"{type(optimizer).__name__} is made anew for the same weights ({len(again) + 1}"
                " times): momentum and moments are lost",
                held.made,
            )
        self.held[id(optimizer)] = held
        held.before = [(p, share(p).clone()) for p in first if p.numel() < LARGE]

    @guarded
    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.watch.quiet:
            return
        self.inside.append(optimizer)
        held = self.held.get(id(optimizer))
        if held is None:
            return
        given = [*args, *kwargs.values()]
        held.by_closure |= any(callable(a) for a in given)
        held.stepped_at = self.watch.here()
        self.watch.emit(Listener.stepping, optimizer)
        if held.by_closure:
            return
        new = [
            (p, s)
            for p, s in held.items()
            if p.grad is not None and not same(mark(p), s.used) and nonzero(p)
        ]
        if not new:
            held.empty += 1
            held.cleared += self.forwards.calls == self.accumulated and any(
                s.fresh and not same(mark(p), s.left) for p, s in held.items()
            )
        held.by_hand += any(
            p.grad is not None and s.left is not None and s.left.grad() is not p.grad
            for p, s in held.items()
        )
        held.stale += any(s.stale for _, s in held.items())
        for p, state in held.items():
            # a bias may well have a gradient of exactly 0
            state.reached += p.ndim < 2 and p.grad is not None and state.fresh
        for _, state in new:
            state.reached += 1
            if state.moved_by[-1:] != [id(optimizer)]:
                state.moved_by.append(id(optimizer))

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
        held.last_at = self.watch.steps
        held.thawed.update(id(p) for p in held.frozen if p.requires_grad and p.grad is not None)
        if not held.moved and held.steps > 1 and not held.steps & (held.steps - 1):
            held.moved = any(not torch.equal(share(p), b) for p, b in held.before)
        self._window(held)
        for p, state in held.items():
            state.reached += held.by_closure and nonzero(p)
            state.used, state.fresh, state.stale = mark(p), False, False

    def _window(self, held: Held) -> None:
        """How many backward passes of one line the step used, over how many batches, and whether
        they were scaled down.
        """
        lines = [p.line for p in held.since]
        window = [p for p in held.since if lines.count(p.line) >= TWICE]
        held.lines |= set(lines)
        if not held.by_closure:
            size = len({p.drawn for p in window}) if window else 1
            held.left_over += (
                held.crossed
                and bool(held.windows)
                and size > statistics.mode(w for w, _ in held.windows)
            )
            held.crossed = False
            held.windows.append((size, all(p.scaled for p in window)))
            held.in_part += size >= TWICE and len(held.clipped) >= size
            labels = [p.labels for p in window]
            held.uneven += (
                len(window) >= TWICE and min(labels) > 0 and max(labels) > UNEVEN * min(labels)
            )
        held.since.clear()
        held.clipped.clear()

    def clipping(self, parameters: set[int]) -> None:
        """Gradients of these parameters are about to be clipped."""
        for held in self.held.values():
            if held.since and any(id(p) in parameters for p, _ in held.items()):
                held.clipped.add(len(held.since))

    # --------------------------------------------------------------------------------------
    # backward

    def _backward(
        self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self.watch.quiet:
            return original(tensors, *args, **kwargs)
        roots = [
            t
            for t in ([tensors] if isinstance(tensors, Tensor) else tensors)
            if isinstance(t, Tensor)
        ]
        place = self.watch.here()
        self._look_before(place)
        self.watch.emit(Listener.backing, place)
        leaves = self.leaves.walk(roots, place) or []
        result = original(tensors, *args, **kwargs)
        self.watch.backwards += 1
        self.accumulated = self.forwards.calls
        self.first_backward = self.first_backward or place
        self._look_after(place, roots)
        self.leaves.reach(leaves)
        for root in roots[:1]:
            self.watch.emit(Listener.backed, root, place)
        return result

    @guarded
    def _look_before(self, place: Place) -> None:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.watch.tell("BH135", "backward runs under autocast", place)
        for held in self.held.values():
            wasted = False
            for p, state in held.items():
                state.before = mark(p)
                if state.before is None or not same(state.before, state.used):
                    state.stale = (
                        state.stale and state.before is not None and same(state.before, state.left)
                    )
                if state.fresh and (
                    state.before is None or (not same(state.before, state.left) and not nonzero(p))
                ):
                    state.fresh, wasted = False, True
            held.left_over += wasted and held.crossed
            held.crossed = held.crossed and not wasted
            if wasted and held.since:
                if held.since[-1].line == place and not held.by_closure:
                    held.unused[place] = held.unused.get(place, 0) + 1
                held.since.clear()
                held.clipped.clear()

    @guarded
    def _look_after(self, place: Place, roots: list[Tensor]) -> None:
        name = getattr(roots[0], UNSCALED, type(roots[0].grad_fn).__name__) if roots else ""
        scaled = name.startswith(SCALED) or not any(word in name.lower() for word in LOSSES)
        for held in self.held.values():
            reached = False
            for p, state in held.items():
                state.left = mark(p)
                if state.left is None or same(state.left, state.before):
                    continue
                reached = state.fresh = True
                state.stale |= state.before is not None and same(state.before, state.used)
            if reached and held.optimizer not in self.inside:
                held.ever += 1
                held.since.append(Pass(place, scaled, self.drawn(), self.valid()))

    def began(self, *_: object) -> None:
        """An epoch of a loader for training begins."""
        for held in self.held.values():
            held.crossed = bool(held.since) and any(s.fresh for _, s in held.items())

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """What the whole run shows."""
        if (
            self.held
            and not any(h.steps for h in self.held.values())
            and self.watch.backwards >= SOME
            and not self.leaves.moved()
        ):
            self.watch.tell(
                "BH105",
                f"{self.watch.backwards} backward passes, and no optimizer has made a step",
                self.first_backward,
            )
        for held in self.held.values():
            moved = any(s.moved_by for _, s in held.items())
            if (
                not held.steps
                and held.ever >= SOME
                and not moved
                and self.watch.complete
                and self.watch.steps
            ):
                self.watch.tell(
                    "BH105",
                    f"{held.ever} backward passes reach what {type(held.optimizer).__name__} holds,"
                    " and it never makes a step",
                    held.made,
                )
        unstepped = any(rule == "BH105" for rule, _ in self.watch.found)
        for held in self.held.values():
            if held.steps >= TWICE and not (unstepped and held.ever):
                self._judge(held)
        if self.held and self.watch.steps:
            self.leaves.unheld(
                {id(p) for h in self.held.values() for p, _ in h.items()},
                next(iter(self.held.values())).made,
            )
        self._in_turns()
        self._thawed()

    def even_windows(self) -> bool | None:
        """Whether every window of several batches was of the same size, and none was left over;
        None where no step used several.
        """
        several = [
            h for h in self.held.values() if max((w for w, _ in h.windows), default=1) >= TWICE
        ]
        return (
            all(
                len({w for w, _ in h.windows}) == 1 and not h.left_over and not h.since
                for h in several
            )
            if several
            else None
        )

    def _thawed(self) -> None:
        """Networks that were unfrozen after their optimizer had been made of what was not
        frozen.
        """
        for held in self.held.values():
            others = {
                id(p)
                for h in self.held.values()
                if h is held or h.last_at > held.made_at
                for p, _ in h.items()
            }
            late = [p for p in held.frozen if held.thawed[id(p)] >= SOME and id(p) not in others]
            if late and not any(rule == "BH422" for rule, _ in self.watch.found):
                told = (
                    f"{len(late)} parameters were frozen when {type(held.optimizer).__name__} was"
                    " made, get gradients now, and no optimizer that steps holds them"
                )
                self.watch.tell("BH422", told, held.made)

    def _judge(self, held: Held) -> None:
        name, place = type(held.optimizer).__name__, held.stepped_at
        if held.stale >= TWICE:
            self.watch.tell(
                "BH101",
                f"{held.stale} of {held.steps} steps of {name} used gradients to which those of"
                " earlier steps had been added",
                place,
            )
        if held.empty >= max(TWICE, held.steps / 2) and not held.by_closure:
            self._empty(held, name)
        elif held.steps >= SOME:
            self._unreached(held)
        if (
            held.steps >= SOME
            and held.before
            and not held.moved
            and all(torch.equal(share(p), b) for p, b in held.before)
            and held.empty < held.steps
        ):
            self.watch.tell(
                "BH807", f"{held.steps} steps of {name} have changed none of its weights", place
            )
        large = [w for w, scaled in held.windows if w >= TWICE and not scaled]
        if len(large) >= TWICE and len(large) >= len(held.windows) / 2:
            self.watch.tell(
                "BH121",
                f"the gradients of {max(large)} batches are summed for a step of {name}, and none"
                " was divided",
                place,
            )
        elif held.uneven >= TWICE and held.uneven >= held.steps / 2:
            self.watch.tell(
                "BH823",
                f"in {held.uneven} of {held.steps} steps of {name} means over unequal numbers of"
                " labels count alike",
                place,
            )
        if held.in_part >= max(TWICE, held.steps / 2):
            told = (
                f"in {held.in_part} of {held.steps} steps of {name} gradients were clipped after"
                " every backward, and their sum is larger"
            )
            self.watch.tell("BH106", told, place)
        if held.left_over >= TWICE and max((w for w, _ in held.windows), default=1) >= TWICE:
            self.watch.tell(
                "BH122",
                f"{held.left_over} epochs left gradients to the next one, where a step of {name}"
                " used too many, or none",
                place,
            )
        # what was cleared may have been read before
        for line, times in held.unused.items() if held.by_hand < held.steps / 2 else ():
            if (
                times >= max(TWICE, held.steps / 2)
                and line in held.lines
                and max((w for w, _ in held.windows), default=1) == 1
            ):
                self.watch.tell(
                    "BH126",
                    f"the gradients of {times} backward passes were cleared before a step of {name}"
                    " used them",
                    line,
                )

    def _empty(self, held: Held, name: str) -> None:
        place, counted = held.stepped_at, f"{held.empty} of {held.steps} steps of {name}"
        if held.cleared >= max(TWICE, held.empty / 2):
            self.watch.tell("BH102", f"before {counted} the gradients were cleared", place)
        elif not self.watch.backwards:
            self.watch.tell("BH104", f"{counted} had no gradient: backward was never called", place)
        elif not held.ever and not any(id(p) in self.leaves.of for p, _ in held.items()):
            told = "the losses do not depend on its weights (other ones, or cut off from the graph)"
            unused = not any(
                p is q
                for m in self.forwards.executed
                for q in m.parameters(recurse=False)
                for p, _ in held.items()
            )
            self.watch.tell(
                "BH415" if unused else "BH309",
                f"{counted} had no gradient: {told}",
                held.made if unused else place,
            )
        else:
            self.watch.tell("BH103", f"{counted} had no new gradient", place)

    def _unreached(self, held: Held) -> None:
        names = {id(p): n for root in self.forwards.roots for n, p in root.named_parameters()}
        trainable = [(p, s) for p, s in held.items() if p.requires_grad]
        shapes = [p.shape for p, _ in held.items()]
        alike = [
            h
            for h in self.held.values()
            if h is not held and h.made == held.made and [p.shape for p, _ in h.items()] == shapes
        ]
        # in another run of the same lines: an input is left out in this one
        reached = {i for h in alike for i, (_, s) in enumerate(h.items()) if s.reached}
        places = {id(s): i for i, (_, s) in enumerate(held.items())}
        without = [
            names.get(id(p), "a parameter")
            for p, s in trainable
            if not s.reached and places[id(s)] not in reached
        ]
        if not without or len(without) == len(trainable):
            return
        told = (
            f"in {held.steps} steps of {type(held.optimizer).__name__} {len(without)} of"
            f" {len(trainable)} parameters got no gradient: {', '.join(without[:4])}"
        )
        self.watch.tell("BH810", told, held.made)

    def _in_turns(self) -> None:
        """Parameters that one optimizer has to itself, and another moves as well, in turns."""
        often = [h for h in self.held.values() if h.steps >= SOME]
        for one, other in permutations(often, TWICE):
            mine, others = ({id(p) for p, _ in h.items()} for h in (one, other))
            shared = [s for p, s in one.items() if id(p) in mine & others]
            if (
                mine
                and mine < others
                and all(
                    len(s.moved_by) > TURNS
                    and set(s.moved_by) == {id(one.optimizer), id(other.optimizer)}
                    for s in shared
                )
            ):
                told = (
                    f"two optimizers take turns in moving the same {len(shared)} parameters: one of"
                    " them holds all of the other's"
                )
                self.watch.tell("BH421", told, other.made)
