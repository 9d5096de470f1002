"""Networks that are trained against each other: whether the gradients of one hold the loss of the
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from training.watch.gradients import Gradients, Held, Mark, mark, nonzero, same
from training.watch.record import Place, Watch

TWICE = 2


@dataclass(eq=False)
class Reached:
    """A backward pass: the optimizers whose parameters it reached, and those that made a step on
    it.
    """

    place: Place
    optimizers: set[int]
    stepped: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Turn:
    """Of one optimizer: the backward passes that its gradients are the sum of, and its steps on
    such as were another's.
    """

    passes: list[Reached] = field(default_factory=list)
    doubtful: Reached | None = (
        None  # the last pass of a step that used two, until it is known which optimizers use it
    )
    first: Place | None = None  # of the other's
    mingled: int = 0


class Adversaries:
    """Listens to the backward passes and steps of several optimizers.

    A generator whose gradients still hold the discriminator's loss is told from several losses of
    one network: the discriminator has made a step on the first pass, and the second reaches it as
    well without its making a step on that one; or, of a discriminator whose gradients hold the
    generator's loss, the second reaches the discriminator alone.
    """

    def __init__(self, watch: Watch, gradients: Gradients) -> None:
        self.watch, self.gradients = watch, gradients
        # the gradient of each parameter as the last backward pass left it
        self.left: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.turns: dict[int, Turn] = {}
        # optimizers whose gradients were not cleared before this backward pass
        self.carried: set[int] = set()

    def backing(self, place: Place) -> None:
        """Before a backward pass: which gradients it is added to, and whether the last one was used
        by all whom it was meant for.
        """
        self._settle()
        held = self.gradients.held
        self.carried = {
            key
            for key, h in held.items()
            if len(held) >= TWICE and any(self._as_left(p) for p, _ in h.items())
        }

    def _as_left(self, parameter: Tensor) -> bool:
        known: Mark | None = self.left.get(parameter)
        return known is not None and same(mark(parameter), known) and nonzero(parameter)

    def backed(self, root: Tensor, place: Place) -> None:
        """After it: whom it reached."""
        held = self.gradients.held
        if len(held) < TWICE:
            return
        reached = {key for key, h in held.items() if self._reached(h)}
        this = Reached(place, reached)
        for key in reached:
            turn = self.turns.setdefault(key, Turn())
            turn.passes = [*(turn.passes if key in self.carried else []), this]

    def _reached(self, held: Held) -> bool:
        found = False
        for p, state in held.items():
            self.left[p] = state.left
            found |= state.left is not None and not same(state.left, state.before)
        return found

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Whether the step used a pass that was another's, and one that reaches that other again,
        or this one alone.
        """
        key = id(optimizer)
        turn = self.turns.get(key)
        if turn is None or not turn.passes:
            return
        for one in turn.passes:
            one.stepped.add(key)
        *earlier, latest = turn.passes
        turn.passes = []
        for one in earlier:
            again = latest.optimizers if latest.optimizers != {key} else one.optimizers
            others = (one.stepped & one.optimizers & again) - {key}
            if (
                any(self._apart(key, other) for other in others)
                and not self.gradients.held[key].by_closure
            ):
                turn.doubtful, turn.first = latest, one.place

    def _apart(self, key: int, other: int) -> bool:
        held = self.gradients.held
        return not {id(p) for p, _ in held[key].items()} & {id(p) for p, _ in held[other].items()}

    def _settle(self) -> None:
        """A step is counted where no other optimizer has used its last pass: what that left in
        their gradients is thrown away.
        """
        for key, turn in self.turns.items():
            if turn.doubtful is not None:
                turn.mingled += turn.doubtful.stepped == {key}
                turn.doubtful = None

    def ended(self) -> None:
        """What the whole run shows."""
        self._settle()
        for key, turn in self.turns.items():
            held = self.gradients.held[key]
            if turn.mingled >= max(TWICE, held.steps / 2) and turn.first is not None:
                told = (
                    f"in {turn.mingled} of {held.steps} steps the gradients of"
                    f" {type(held.optimizer).__name__} held those of the loss of line"
                    f" {turn.first.line} as well"
                )
                self.watch.tell(
                    "BH101",
                    f"{told}, on which another optimizer had made its step: detach there, or clear"
                    " them after it",
                    held.stepped_at,
                )
