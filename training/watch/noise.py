"""Noise that a network is to find in its input: whether it is in there."""

from __future__ import annotations

import math
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Call
from training.watch.losses import Functions
from training.watch.record import Place, Watch

REMEMBERED = 32
FEWEST, STEPS = 5_000, 5  # values, and losses
CHANCE, OF_MANY = 4.0, 5.0  # deviations: of one sum, and of the largest of many
NARROW = 64  # values of a row whose pairs are all looked at


@dataclass
class Products:
    """Sums of products of an input and the noise, and of their squares, over the steps."""

    times: int = 0
    values: int = 0
    sums: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    total: float = 0.0
    total_squares: float = 0.0

    def add(self, given: Tensor, noise: Tensor) -> None:
        """Those of one step: of each value with its own noise, and of narrow rows [B, D] each with
        all.
        """
        x, n = (t.detach().double().reshape(len(t), -1) for t in (given, noise))
        self.times, self.values = self.times + 1, self.values + x.numel()
        self.total += float((x * n).sum())
        self.total_squares += float((x * n).square().sum())
        if x.shape[1] <= NARROW:
            self.sums, self.squares = self.sums + x.T @ n, self.squares + x.square().T @ n.square()

    @property
    def by_chance(self) -> bool:
        """Whether they are no larger than those of noise that has nothing to do with the input."""
        if self.times < STEPS or self.values < FEWEST:
            return False
        pairs = torch.as_tensor(self.sums).abs() < OF_MANY * torch.as_tensor(self.squares).sqrt()
        return abs(self.total) < CHANCE * math.sqrt(self.total_squares) and (
            not isinstance(self.sums, Tensor) or bool(pairs.all())
        )


class Noise:
    """Listens to what is drawn, and to losses that measure a distance to it."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.fresh: deque[weakref.ref[Tensor]] = deque(maxlen=REMEMBERED)
        self.seen: dict[Place, dict[int, Products]] = {}  # by line of the loss, and by input

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("randn", "randn_like", "normal", "normal_"), after=self._drawn)
        self.functions.on_loss.append(self.lost)

    def _drawn(self, name: str, result: Any, *_: Any, **__: Any) -> None:
        if isinstance(result, Tensor) and result.numel() > 1 and not result.requires_grad:
            self.fresh.append(weakref.ref(result))

    def is_fresh(self, tensor: Tensor) -> bool:
        """Whether it was drawn since the last step, and is no function of what was."""
        pointer = tensor.untyped_storage().data_ptr()
        return any(
            (drawn := known()) is not None and drawn.untyped_storage().data_ptr() == pointer
            for known in self.fresh
        )

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """A distance: is its target noise, and in the input?"""
        if (
            not self.fresh
            or target.ndim < 1
            or not target.is_floating_point()
            or not call.grad
            or not self.is_fresh(target)
        ):
            return
        inputs = [t for t in call.inputs if t.is_floating_point()]
        alike = [t for t in inputs if t.shape == target.shape]
        # what another network made, what is noise itself, and what holds more than the noisy values
        # is not what this looks for
        if any(t.requires_grad or self.is_fresh(t) for t in alike) or any(
            t.numel() > target.numel() for t in inputs
        ):
            return
        known = self.seen.setdefault(self.watch.here(), {}) if alike else {}
        for i, given in enumerate(alike):
            known.setdefault(i, Products()).add(given, target)

    def stepped(self, *_: object) -> None:
        """What is drawn for a step is drawn anew for the next."""
        self.fresh.clear()

    def ended(self) -> None:
        """What the whole run shows."""
        for place, inputs in self.seen.items():
            if all(products.by_chance for products in inputs.values()):
                values = max(products.values for products in inputs.values())
                self.watch.tell(
                    "BH834",
                    f"the noise that is to be found is not in the input: over {values} values the"
                    " two have nothing in common",
                    place,
                )
