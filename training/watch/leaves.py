"""Parameters in the graphs of losses: which of them get gradients that nothing uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from training.watch.forwards import Forwards
from training.watch.patches import around
from training.watch.record import Place, Watch, guarded

TWICE = 2
WALKED = 3  # backward passes of a line whose graph is walked, besides the 4th, 8th and so on
NODES = 50_000


@dataclass(eq=False)
class Leaf:
    """A parameter in the graphs of losses."""

    parameter: Tensor  # kept: a network that only a function of the program holds is gone at the end
    name: str
    version: int  # at first sight
    taken_over: bool  # in eval mode, or its weights were loaded: it is not meant to learn
    times: int = 0
    restored: tuple[int, int] = (-1, -1)  # its version, and the step, when weights were loaded into it that nothing had moved before


class Leaves:
    """Walks the graphs of losses before their backward passes."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        self.of: dict[int, Leaf] = {}  # by id of the parameter
        self.walked: dict[Place, int] = {}
        self.on_walk: list[Callable[[list[Any]], None]] = []  # given the nodes of a graph

    def install(self) -> None:
        """Listen."""
        around(nn.Module, "load_state_dict", self._load)

    @guarded
    def walk(self, roots: list[Tensor], place: Place) -> list[Tensor]:
        """The parameters in the graph of the first backward passes of a line."""
        times = self.walked[place] = self.walked.get(place, 0) + 1
        if times > WALKED and times & (times - 1):
            return []
        found, pending, seen = list[Tensor](), [t.grad_fn for t in roots if t.grad_fn is not None], set[int]()
        nodes = list[Any]()  # kept, so that no id is given twice
        while pending and len(seen) < NODES:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            nodes.append(node)
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, nn.Parameter):
                found.append(leaf)
            pending += [n for n, _ in node.next_functions if n is not None]
        for listener in self.on_walk:
            listener(nodes)
        return found

    @guarded
    def reach(self, leaves: list[Tensor]) -> None:
        """Count a backward pass for these parameters."""
        owners = {id(p): (m, n) for m in self.forwards.executed for n, p in m.named_parameters(recurse=False)} if leaves else {}
        for p in leaves:
            if id(p) not in self.of:
                owner, name = owners.get(id(p), (None, "a parameter"))
                taken_over = owner is not None and (not owner.training or owner in self.forwards.loaded)
                self.of[id(p)] = Leaf(p, f"{type(owner).__name__}.{name}" if owner is not None else name, p._version, taken_over)
            self.of[id(p)].times += 1

    def _load(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        still = [] if self.watch.quiet else [leaf for p in module.parameters() if (leaf := self.of.get(id(p))) and self._unmoved(leaf)]
        result = original(module, *args, **kwargs)
        for leaf in still:
            leaf.restored = (leaf.parameter._version, self.watch.steps)
        return result

    def _unmoved(self, leaf: Leaf) -> bool:
        """Whether a parameter is as at first sight, but for weights that were loaded after the last step."""
        return leaf.parameter._version == leaf.version or leaf.restored == (leaf.parameter._version, self.watch.steps)

    def unheld(self, held: set[int], place: Place) -> None:
        """Parameters that get gradients and that nothing moves.

        Args:
            held: ids of the parameters of all optimizers.
            place: where the first optimizer is made.
        """
        told = [leaf.name for key, leaf in self.of.items() if key not in held and leaf.times >= TWICE and self._unmoved(leaf) and not leaf.taken_over]
        if told:
            self.watch.tell("BH422", f"{len(told)} parameters get gradients, and no optimizer holds them: {', '.join(told[:4])}", place)

    def moved(self) -> bool:
        """Whether any of them was changed since it was first seen."""
        return any(leaf.parameter._version != leaf.version for leaf in self.of.values())
