"""A state that goes from call to call: whether its gradient does, too."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from training.watch.forwards import tensors_in
from training.watch.losses import Functions
from training.watch.record import Place, Watch, guarded

# backward passes in which it is seen, calls that are cut off for each one that is not
TWICE, CUT = (2, 3)
NEAR = 100  # nodes between the result of a call and what is detached
MOST = 2_000
OUTPUTS = 4


class Mark(NamedTuple):
    """A call of a module, on the nodes of what it gave: all calls are counted between two backward
    passes.
    """

    turn: int
    module: int
    call: int


class Cut(NamedTuple):
    """What was detached, after which calls, and where."""

    tensor: Tensor
    after: frozenset[Mark]
    place: Place


@dataclass(eq=False)
class Chain:
    """Calls of a module since the last backward pass, and those that were given an earlier result
    without its graph.
    """

    name: str
    links: dict[Mark, Mark] = field(default_factory=dict)  # call -> the one before it
    place: Place | None = None


class Recurrence:
    """Listens to calls of modules and to `detach`."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.turn = 0
        self.calls = itertools.count()
        self.cuts: dict[int, Cut] = {}  # by id of what was detached
        self.chains: dict[int, Chain] = {}
        self.seen: dict[tuple[int, Place | None], int] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("detach",), after=self._detached)

    def _detached(self, name: str, result: Tensor, source: Tensor, *_: Any, **__: Any) -> None:
        if source.grad_fn is not None and len(self.cuts) < MOST and (after := self._behind(source)):
            self.cuts[id(result)] = Cut(result, after, self.watch.here())

    def _behind(self, tensor: Tensor) -> frozenset[Mark]:
        """The calls whose results lie a few nodes behind a tensor."""
        pending, found, seen = [tensor.grad_fn], set[Mark](), 0
        while pending and seen < NEAR:
            node, seen = pending.pop(), seen + 1
            marks = {m for m in marks_on(node) if m.turn == self.turn}
            found |= marks
            pending += (
                []
                if marks or node is None
                else [n for n, _ in node.next_functions if n is not None]
            )
        return frozenset(found)

    @guarded
    def called(self, module: nn.Module, given: Any, result: Any) -> None:
        """A module with weights was called with gradients on."""
        mark = Mark(self.turn, id(module), next(self.calls))
        for cut in (
            [self.cuts[id(t)] for t in tensors_in(given) if id(t) in self.cuts] if self.cuts else []
        ):
            for earlier in cut.after:
                if earlier.module == mark.module:
                    chain = self.chains.setdefault(mark.module, Chain(type(module).__name__))
                    chain.links[mark], chain.place = earlier, cut.place
        for t in itertools.islice(tensors_in(result), OUTPUTS):
            if t.grad_fn is not None:
                t.grad_fn.metadata.setdefault(Mark, []).append(mark)

    def walked(self, nodes: list[Any]) -> None:
        """The graph of a loss: whether, of each chain of calls, it holds the last one alone."""
        if not self.chains:
            return
        reached = {m for node in nodes for m in marks_on(node)}
        for key, chain in self.chains.items():
            last = [m for m in reached if m.module == key and m.turn == self.turn]
            if (
                last
                and set(last) <= set(chain.links)
                and not set(chain.links.values()) & reached
                and len(chain.links) >= CUT * len(last)
            ):
                times = self.seen[key, chain.place] = self.seen.get((key, chain.place), 0) + 1
                if times == TWICE:
                    told = (
                        f"{len(chain.links)} times before a backward pass the state of {chain.name}"
                        " is detached between two calls"
                    )
                    self.watch.tell(
                        "BH830", f"{told}: no gradient reaches any call but the last", chain.place
                    )

    def backed(self, *_: object) -> None:
        """A backward pass ends the calls before it."""
        self.turn += 1
        self.cuts.clear()
        self.chains.clear()


def marks_on(node: Any) -> list[Mark]:
    """The calls of which a node is a result."""
    return node.metadata.get(Mark, []) if node is not None else []
