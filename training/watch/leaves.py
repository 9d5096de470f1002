"""Parameters in the graphs of losses: which of them get gradients that nothing uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from training.watch.forwards import Forwards
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

TWICE = 2
WALKED = 3  # backward passes of a line whose graph is walked, besides the 4th, 8th and so on
NODES = 50_000
# of networks that are being trained, after which graphs are walked anew: some programs put in a
# module at every step
CHANGES = 50


@dataclass(eq=False)
class Leaf:
    """A parameter in the graphs of losses."""

    parameter: (
        Tensor  # kept: a network that only a function of the program holds is gone at the end
    )
    name: str
    # at first sight: its version, which does not tell of changes by way of `.data`, and the sum of
    # its values
    state: tuple[int, float | None]
    taken_over: bool  # in eval mode, or its weights were loaded: it is not meant to learn
    times: int = 0
    restored: tuple[int, float | None] | None = (
        None  # when weights were loaded into it that nothing had moved before
    )
    restored_at: int = -1  # step


class Leaves(Listener):
    """Walks the graphs of losses before their backward passes."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        self.of: dict[int, Leaf] = {}  # by id of the parameter
        self.times: dict[Place, int] = {}
        self.changes = 0
        # where a parameter was put into a network that had run or was wrapped, by its id
        self.put: dict[int, Place] = {}

    def install(self) -> None:
        """Listen."""
        around(nn.Module, "load_state_dict", self._load)
        around(nn.Module, "__setattr__", self._set)
        around(nn.Module, "add_module", self._set)

    @guarded
    def walk(self, roots: list[Tensor], place: Place) -> list[Tensor]:
        """The parameters in the graph of the first backward passes of a line."""
        times = self.times[place] = self.times.get(place, 0) + 1
        if times > WALKED and times & (times - 1):
            return []
        found, pending, seen = (
            list[Tensor](),
            [t.grad_fn for t in roots if t.grad_fn is not None],
            set[int](),
        )
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
        self.watch.emit(Listener.walked, nodes)
        return found

    @guarded
    def reach(self, leaves: list[Tensor]) -> None:
        """Count a backward pass for these parameters."""
        with self.watch.unwatched():
            self._reach(leaves)

    def _reach(self, leaves: list[Tensor]) -> None:
        owners = (
            {
                id(p): (m, n)
                for m in self.forwards.executed
                for n, p in m.named_parameters(recurse=False)
            }
            if leaves
            else {}
        )
        spread = {
            id(p) for m in self.forwards.executed if hasattr(m, "unshard") for p in m.parameters()
        }  # by fully_shard
        for p in leaves:
            if spread and (id(p) not in owners or id(p) in spread) and not hasattr(p, "to_local"):
                # gathered for this pass alone, and let go of after it: the optimizer holds shares
                continue
            if id(p) not in self.of:
                owner, name = owners.get(id(p), (None, "a parameter"))
                taken_over = owner is not None and (
                    not owner.training or owner in self.forwards.loaded
                )
                self.of[id(p)] = Leaf(
                    p,
                    f"{type(owner).__name__}.{name}" if owner is not None else name,
                    state_of(p),
                    taken_over,
                )
            self.of[id(p)].times += 1

    def _set(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        original(module, *args, **kwargs)
        value = [None, *args, *kwargs.values()][-1]
        if isinstance(value, nn.Module | nn.Parameter) and not self.watch.quiet:
            self._changed(module, value)

    @guarded
    def _changed(self, module: nn.Module, value: nn.Module | nn.Parameter) -> None:
        """The graphs of lines whose walks have become rare are others from now on."""
        if self.times and self.changes < CHANGES:
            self.changes += 1
            self.times.clear()
        if module in self.forwards.executed or self.forwards.wrapped:
            place = self.watch.here()
            for p in value.parameters() if isinstance(value, nn.Module) else [value]:
                self.put[id(p)] = place

    def _load(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        if self.watch.quiet:
            return original(module, *args, **kwargs)
        still = self._still(module)
        result = original(module, *args, **kwargs)
        self._restored(still or [])
        return result

    @guarded
    def _still(self, module: nn.Module) -> list[Leaf]:
        with self.watch.unwatched():
            return [
                leaf
                for p in module.parameters()
                if (leaf := self.of.get(id(p))) is not None and self._unmoved(leaf)
            ]

    @guarded
    def _restored(self, leaves: list[Leaf]) -> None:
        with self.watch.unwatched():
            for leaf in leaves:
                leaf.restored, leaf.restored_at = state_of(leaf.parameter), self.watch.steps

    def _unmoved(self, leaf: Leaf) -> bool:
        """Whether a parameter is as at first sight, but for weights that were loaded after the last
        step.
        """
        now = state_of(leaf.parameter)
        # averaged weights may have been put in their place for a while
        same = now[1] == leaf.state[1] if now[1] and leaf.state[1] else now == leaf.state
        return same or (leaf.restored_at == self.watch.steps and now == leaf.restored)

    def unheld(self, held: set[int], place: Place) -> None:
        """Parameters that get gradients and that nothing moves.

        Args:
            held: ids of the parameters of all optimizers.
            place: where the first optimizer is made; those that are put into a network later are
                told where that is done.
        """
        told: dict[Place, list[str]] = {}
        for key, leaf in self.of.items():
            if (
                key not in held
                and leaf.times >= TWICE
                and not leaf.taken_over
                and self._unmoved(leaf)
            ):
                told.setdefault(self.put.get(key, place), []).append(leaf.name)
        for at, names in told.items():
            self.watch.tell(
                "BH422",
                f"{len(names)} parameters get gradients, and no optimizer holds them:"
                f" {', '.join(names[:4])}",
                at,
            )

    def moved(self) -> bool:
        """Whether any of them was changed since it was first seen; loading the values that it has
        changes none.
        """
        for leaf in self.of.values():
            (version, total), (first_version, first_total) = state_of(leaf.parameter), leaf.state
            if total != first_total or (total is None and version != first_version):
                return True
        return False


def state_of(parameter: Tensor) -> tuple[int, float | None]:
    """The version of a parameter and the sum of its values; the version and None of one that is
    spread over ranks, or whose gathered values FSDP has let go of.
    """
    values = parameter.detach()
    there = type(values) is Tensor and values.untyped_storage().nbytes() >= values.nbytes
    return parameter._version, float(values.double().sum()) if there else None
