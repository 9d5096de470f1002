"""Seeds that are set again while a network is trained, and orders of rows that come out the same in
each epoch.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Call
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch

SOME = 5  # times, between steps of one optimizer
Seed = tuple[Place, int]
# the same orders, rows, share of the rows that were trained on in between
AGAIN, FEWEST, NEARLY = (3, 20, 0.9)


@dataclass(eq=False)
class Order:
    """The last permutation that a line drew, and how often it was the one before and its rows were
    trained on in between.
    """

    values: Tensor
    times: int = 0


class Seeds(Listener):
    """Listens to `torch.manual_seed`, to what keeps or puts back the state of its generator, and to
    permutations.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.forked = 0
        self.since: set[Seed] = set()  # that were set since the last step
        self.orders: dict[Place, Order] = {}
        self.rows = 0  # that were trained on since the last permutation
        self.batch = 0  # of them in the batch at hand
        self.times: weakref.WeakKeyDictionary[torch.optim.Optimizer, Counter[Seed]] = (
            weakref.WeakKeyDictionary()
        )

    def install(self) -> None:
        """Listen."""
        for owner in (torch, torch.random):
            around(owner, "manual_seed", self._set)
            around(owner, "set_rng_state", self._put_back)
        around(torch.random, "fork_rng", self._fork)
        around(torch, "randperm", self._permuted)

    def _permuted(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        drawn = original(*args, **kwargs)
        if self.watch.quiet or not isinstance(drawn, Tensor) or len(drawn) < FEWEST:
            return drawn
        place = self.watch.here()
        known = self.orders.get(place)
        if (
            known is not None
            and torch.equal(known.values, drawn)
            and NEARLY * len(drawn) <= self.rows <= (2 - NEARLY) * len(drawn)
        ):  # a batch may be drawn ahead
            known.times += 1
            if known.times == AGAIN - 1:
                told = (
                    f"{AGAIN} permutations of {len(drawn)} rows are the same, and their rows were"
                    " trained on in between"
                )
                self.watch.tell("BH822", f"{told}: the generator is seeded anew for each", place)
        else:
            self.orders[place] = Order(drawn.clone())
        self.rows = 0
        return drawn

    def forwarded(self, call: Call) -> None:
        """Rows that a network is trained on."""
        if call.grad and call.training:
            # two calls may be given the same rows, as of pairs
            self.batch = max(self.batch, call.rows)

    def backed(self, *_: object) -> None:
        """A batch is through."""
        self.rows, self.batch = self.rows + self.batch, 0

    def _set(self, original: Callable[..., Any], seed: Any) -> Any:
        if not self.watch.quiet and not self.forked:
            self.since.add((self.watch.here(), int(seed)))
        return original(seed)

    def _put_back(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self.since.clear()
        return original(*args, **kwargs)

    def _fork(
        self, original: Callable[..., AbstractContextManager[None]], *args: Any, **kwargs: Any
    ) -> AbstractContextManager[None]:
        @contextmanager
        def forked() -> Iterator[None]:
            with original(*args, **kwargs):
                self.forked += 1
                try:
                    yield
                finally:
                    self.forked -= 1

        return forked()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """What was set since the last step stands between two steps of one training, from its
        second step on.
        """
        if optimizer not in self.times:
            self.times[optimizer] = Counter()
        else:
            self.times[optimizer].update(self.since)
            for (place, seed), times in self.times[optimizer].items() if self.since else ():
                if times >= SOME:
                    told = (
                        f"the generator is seeded with {seed} again and again between steps: what"
                        " follows draws the same numbers each time"
                    )
                    self.watch.tell("BH859", told, place)
        self.since.clear()
