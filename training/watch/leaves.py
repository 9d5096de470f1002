"""Parameters in the graphs of losses that get gradients which no optimizer uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.patches import around
from training.watch.record import Watch, guarded

WALKED = 3  # backward passes per line with a graph walk, besides the 4th, 8th and so on
NODES = 50_000
CHANGES = 50  # changes that restart the walks: some programs set a module at every step


@dataclass(eq=False)
class Leaf:
    """A parameter in the graphs of losses. It is kept because its network may be freed early."""

    parameter: Tensor
    name: str
    first: float  # its state when first seen
    taken_over: bool  # in eval mode or loaded, so it need not learn
    times: int = 0


class Leaves(Listener):
    """Listener that walks the graphs of losses before their backward passes."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        self.of: dict[int, Leaf] = {}  # by parameter id
        self.times: dict[Place, int] = {}
        self.changes = 0
        # parameter id: where it was put into a network that had run or was wrapped
        self.put: dict[int, Place] = {}

    def install(self) -> None:
        """Install hooks for changes of modules."""
        around(nn.Module, "__setattr__", self._set)
        around(nn.Module, "add_module", self._set)

    @guarded
    def walk(self, roots: list[Tensor], place: Place) -> list[Tensor]:
        """Return the parameters in the graph of a line's first backward passes."""
        times = self.times[place] = self.times.get(place, 0) + 1
        if times > WALKED and times & (times - 1):
            return []
        pending: list[Any] = [t.grad_fn for t in roots]
        nodes: dict[int, Any] = {}  # kept alive, so that ids stay unique
        while pending and len(nodes) < NODES:
            node = pending.pop()
            if node is not None and id(node) not in nodes:
                nodes[id(node)] = node
                pending += [n for n, _ in node.next_functions]
        found = [getattr(node, "variable", None) for node in nodes.values()]
        return [p for p in found if isinstance(p, nn.Parameter)]

    @guarded
    def reach(self, leaves: list[Tensor]) -> None:
        """Count a backward pass for these parameters."""
        owners: dict[int, tuple[nn.Module, str]] = {}
        spread: set[int] = set()  # sharded by fully_shard
        for module in self.forwards.executed if leaves else ():
            owners |= {id(p): (module, n) for n, p in module.named_parameters(recurse=False)}
            spread |= {id(p) for p in module.parameters() if hasattr(module, "unshard")}
        for p in leaves:
            if spread and (id(p) not in owners or id(p) in spread) and not hasattr(p, "to_local"):
                continue  # gathered for this pass only; the optimizer holds shards
            owner, name = owners.get(id(p), (None, "a parameter"))
            loaded = owner is not None and (not owner.training or owner in self.forwards.loaded)
            if id(p) not in self.of:
                named = f"{type(owner).__name__}.{name}" if owner is not None else name
                self.of[id(p)] = Leaf(p, named, state_of(p), loaded)
            self.of[id(p)].times += 1

    def _set(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(module, *args, **kwargs)
        value = [None, *args, *kwargs.values()][-1]
        if isinstance(value, nn.Module | nn.Parameter) and not self.watch.quiet:
            self._changed(module, value)

    @guarded
    def _changed(self, module: nn.Module, value: nn.Module | nn.Parameter) -> None:
        """Walk the graphs again after a module changed, and remember where it changed."""
        if self.times and self.changes < CHANGES:
            self.changes += 1
            self.times.clear()
        if module in self.forwards.executed or self.forwards.wrapped:
            inside = value.parameters() if isinstance(value, nn.Module) else [value]
            self.put |= dict.fromkeys(map(id, inside), self.watch.here())

    def unheld(self, held: set[int], place: Place) -> None:
        """Report parameters that get gradients but never change and are in no optimizer. `place` is
        the line of the first optimizer.
        """
        told: dict[Place, list[str]] = {}
        for key, leaf in self.of.items():
            meant = key not in held and leaf.times > 1 and not leaf.taken_over
            if meant and state_of(leaf.parameter) == leaf.first:
                told.setdefault(self.put.get(key, place), []).append(leaf.name)
        for at, names in told.items():
            few = ", ".join(names[:4])
            message = f"{len(names)} parameters get gradients, and no optimizer holds them: {few}"
            self.watch.tell("BH422", message, at)


def state_of(parameter: Tensor) -> float:
    """Return the sum of a parameter's values, or its version if it is sharded or freed."""
    values = parameter.detach()
    there = type(values) is Tensor and values.untyped_storage().nbytes() >= values.nbytes
    return float(values.double().sum()) if there else float(parameter._version)
