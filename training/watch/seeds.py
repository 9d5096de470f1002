"""Seeds that are set again while a network is trained."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from training.watch.patches import around
from training.watch.record import Place, Watch

SOME = 5  # times, between steps of one optimizer
Seed = tuple[Place, int]


class Seeds:
    """Listens to `torch.manual_seed`, and to what keeps or puts back the state of its generator."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.forked = 0
        self.since: set[Seed] = set()  # that were set since the last step
        self.times: weakref.WeakKeyDictionary[torch.optim.Optimizer, Counter[Seed]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Listen."""
        for owner in (torch, torch.random):
            around(owner, "manual_seed", self._set)
            around(owner, "set_rng_state", self._put_back)
        around(torch.random, "fork_rng", self._fork)

    def _set(self, original: Callable[..., Any], seed: Any) -> Any:
        if not self.watch.quiet and not self.forked:
            self.since.add((self.watch.here(), int(seed)))
        return original(seed)

    def _put_back(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self.since.clear()
        return original(*args, **kwargs)

    def _fork(self, original: Callable[..., AbstractContextManager[None]], *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
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
        """What was set since the last step stands between two steps of one training, from its second step on."""
        if optimizer not in self.times:
            self.times[optimizer] = Counter()
        else:
            self.times[optimizer].update(self.since)
            for (place, seed), times in self.times[optimizer].items() if self.since else ():
                if times >= SOME:
                    told = f"the generator is seeded with {seed} again and again between steps: what follows draws the same numbers each time"
                    self.watch.tell("BH859", told, place)
        self.since.clear()
