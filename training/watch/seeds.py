"""Seeds that are set again during training, and epochs that repeat the same row order."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from training.watch.events import Call, Listener, Place
from training.watch.loaders import hashes
from training.watch.patches import around
from training.watch.record import Watch, guarded

SOME = 5  # repetitions between steps of one optimizer
# repeated orders; least rows; share of rows trained in between; most orders kept
AGAIN, FEWEST, NEARLY, MOST = 3, 20, 0.9, 10_000


class Seeds(Listener):
    """Listener for seeds, for restored generator states such as the end of `fork_rng`, and for
    permutations, including those of loaders.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.since: set[tuple[Place, int]] = set()  # seeds set since the last step
        self.times: weakref.WeakKeyDictionary[torch.optim.Optimizer, Counter[tuple[Place, int]]] = (
            weakref.WeakKeyDictionary()
        )
        # permutation of a line: rows trained before it, and its count
        self.orders: dict[tuple[Place, bytes], tuple[int, int]] = {}
        self.rows = 0  # rows trained so far
        self.batch = 0  # rows of the current batch

    def install(self) -> None:
        """Install hooks for seeds, generator states and permutations."""
        for owner in (torch, torch.random):
            around(owner, "manual_seed", self._set)
            around(owner, "set_rng_state", self._put_back)
        around(torch, "randperm", self._permuted)

    def _set(self, original: Callable[..., Any], seed: Any) -> Any:
        if not self.watch.quiet:
            self.since.add((self.watch.here(), int(seed)))
        return original(seed)

    def _put_back(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self.since.clear()
        return original(*args, **kwargs)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Count seeds set between two steps, from the second step on."""
        times = self.times.setdefault(optimizer, Counter())
        times.update(self.since)
        for place, seed in self.since:
            if times[place, seed] > SOME:
                told = f"the generator is seeded with {seed} again and again between steps"
                self.watch.tell("BH859", f"{told}: the same numbers are drawn each time", place)
        self.since.clear()

    def _permuted(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)
        if not self.watch.quiet and isinstance(drawn, Tensor) and len(drawn) >= FEWEST:
            self._keep(drawn, self.watch.here())
        return drawn

    @guarded
    def _keep(self, drawn: Tensor, place: Place) -> None:
        size = len(drawn)
        with self.watch.unwatched():
            key = place, hashes(drawn[None])[0]
        if len(self.orders) > MOST:
            self.orders.clear()
        at, times = self.orders.get(key, (self.rows, 0))
        # a batch may be drawn ahead
        trained = NEARLY * size <= self.rows - at <= (2 - NEARLY) * size
        self.orders[key] = self.rows, times + 1 if trained else 1
        if trained and times + 1 == AGAIN:
            told = f"{AGAIN} permutations of {size} rows are the same, and their rows were trained"
            self.watch.tell("BH822", f"{told} on in between: the generator is seeded again", place)

    def forwarded(self, call: Call) -> None:
        """Count the train rows of a network. Two calls may get the same rows, as for pairs."""
        if call.grad and call.training:
            self.batch = max(self.batch, call.rows)

    def backed(self, *_: object) -> None:
        """Add the rows of a finished batch."""
        self.rows, self.batch = self.rows + self.batch, 0
