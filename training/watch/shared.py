"""Parameters that two optimizers hold which take turns: a generator's that moves the critic as well."""

from __future__ import annotations

from collections import Counter

import torch

from training.watch.gradients import Gradients
from training.watch.record import Watch

TURNS = 10  # changes from one optimizer to the other; phases of a training change once or twice


class Shared:
    """Listens to the steps of several optimizers."""

    def __init__(self, watch: Watch, gradients: Gradients) -> None:
        self.watch, self.gradients = watch, gradients
        self.last = 0  # who made the last step
        self.turns: Counter[tuple[int, int]] = Counter()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Who steps after whom."""
        if self.last not in (0, id(optimizer)):
            self.turns[self.last, id(optimizer)] += 1
        self.last = id(optimizer)

    def ended(self) -> None:
        """Whether one of two that take turns holds all that the other holds, and more."""
        for small, large in self.turns:
            held = self.gradients.held
            if min(self.turns[small, large], self.turns[large, small]) < TURNS or small not in held or large not in held:
                continue
            own, all_held = ({id(p) for p, _ in held[key].items()} for key in (small, large))
            if own and own < all_held:
                names = type(held[small].optimizer).__name__, type(held[large].optimizer).__name__
                told = f"this {names[1]} holds {len(all_held)} parameters, among them all {len(own)} of the {names[0]} of line {held[small].made.line}"
                self.watch.tell("BH863", f"{told}, with which it takes turns: each of its steps undoes what the other learned", held[large].made)
