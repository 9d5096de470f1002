"""Objects that live too long or are not saved: old graphs, best weights and optimizer states."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.events import Listener, Place
from training.watch.patches import around
from training.watch.record import Watch, guarded

ALIVE = 5  # steps that a graph may live, and least number of old graphs
MOST_GRAPHS, MOST_STATES = 5000, 20
# keys of a checkpoint to resume from
COUNTERS = {"epoch", "step", "iteration", "global_step", "epochs", "steps", "updates"}


class Token:
    """Marker that lives as long as the graph node that holds it."""


class Kept(Listener):
    """Listener for losses, state dicts and files."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.graphs: list[tuple[int, weakref.ref[Token], Place]] = []
        # id of the state dict: state dict, step, place
        self.states: dict[int, tuple[dict[str, Any], int, Place]] = {}
        self.checkpoints: set[frozenset[str]] = set()  # keys of saved checkpoints
        self.resumed: Place | None = None  # until an optimizer is restored
        self.reloaded: set[int] = set()  # parameters loaded since then

    def install(self) -> None:
        """Install hooks for state dicts and files."""
        around(nn.Module, "state_dict", self._state_dict)
        around(nn.Module, "load_state_dict", self._load)
        around(torch.optim.Optimizer, "load_state_dict", self._restored)
        around(torch, "save", self._save)
        around(torch, "load", self._read)
        torch.serialization.save, torch.serialization.load = torch.save, torch.load

    def backed(self, loss: Tensor, place: Place) -> None:
        """Mark the graph of a loss."""
        if loss.grad_fn is not None and len(self.graphs) < MOST_GRAPHS:
            token = loss.grad_fn.metadata[Token] = Token()
            self.graphs.append((self.watch.steps, weakref.ref(token), place))

    def stepped(self, *_: object) -> None:
        """Report graphs of losses that are still alive many steps after their use."""
        self.graphs = [g for g in self.graphs if g[1]() is not None]
        old = [place for step, _, place in self.graphs if step < self.watch.steps - ALIVE]
        if len(old) >= ALIVE:
            told = "the graphs of losses of earlier steps are kept: memory grows with each step"
            self.watch.tell("BH308", told, old[0])

    def _state_dict(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        whole = not args and not kwargs.get("prefix") and isinstance(result, dict)
        if whole and not self.watch.quiet:
            self.states[id(result)] = (result, self.watch.steps, self.watch.here())
            while len(self.states) > MOST_STATES:
                del self.states[next(iter(self.states))]
        return result

    def _load(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # torch.distributed.checkpoint calls these functions and first fills the network's own
        # tensors
        helped = self.watch.calling("set_model_state_dict") or self.watch.calling("set_state_dict")
        state = args[0] if args else kwargs.get("state_dict")
        if not self.watch.quiet and isinstance(state, dict) and not helped:
            self._loading(module, state)
        return original(module, *args, **kwargs)

    @guarded
    def _loading(self, module: nn.Module, state: dict[str, Any]) -> None:
        name, parameters = type(module).__name__, list(module.parameters())
        every = dict(module.named_parameters(remove_duplicate=False)).keys()
        buffers = dict(module.named_buffers(remove_duplicate=False)).keys()
        # loading a part of another network is no resume
        if self.resumed is not None and every <= state.keys() <= every | buffers:
            self.reloaded |= {id(p) for p in parameters}
        own = pointers(state.values()) & pointers(parameters)
        known = [self.states[id(state)]] if id(state) in self.states else self.states.values()
        made = [(step, at) for kept, step, at in known if own and own <= pointers(kept.values())]
        if made and (made[0][0] < self.watch.steps or made[0][1] != self.watch.here()):
            told = f"{name} is given back its own weights of now: what was kept was no copy"
            self.watch.tell("BH207", told, made[0][1])
        elif own and self.watch.steps:
            told = f"{name} is given its own weights: what should be a copy is the same network"
            self.watch.tell("BH821", told)

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self._saving(args[0] if args else kwargs.get("obj"))
        return original(*args, **kwargs)

    @guarded
    def _saving(self, what: Any) -> None:
        inside = list(what.values()) if isinstance(what, dict) else []
        optimizers = [s for s in inside if isinstance(s, dict) and "param_groups" in s]
        if isinstance(what, dict) and (optimizers or COUNTERS & {str(k).lower() for k in what}):
            self.checkpoints.add(frozenset(map(str, what)))
        for state in [what, *inside]:
            if isinstance(state, nn.Module):
                self.watch.tell("BH702", f"{type(state).__name__} is pickled as a whole")
            elif id(state) in self.states and self.states[id(state)][1] < self.watch.steps:
                told = "the weights that are saved were kept without a copy: they are those of now"
                self.watch.tell("BH207", told, self.states[id(state)][2])

    def _read(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        known = isinstance(found, dict) and frozenset(map(str, found)) in self.checkpoints
        if known and not self.watch.quiet:
            self.resumed, self.reloaded = self.watch.here(), set()
        return found

    def _restored(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.resumed = self.resumed if self.watch.quiet else None
        return original(*args, **kwargs)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Report a resumed training whose optimizer was not restored."""
        held = {id(p) for g in optimizer.param_groups for p in g["params"]}
        if self.resumed is not None and not optimizer.state and held and held <= self.reloaded:
            told = f"training goes on from a file, the state of {type(optimizer).__name__} does not"
            self.watch.tell("BH707", told, self.resumed)
            self.resumed = None


def pointers(values: Iterable[Any]) -> set[int]:
    """Return the addresses of the tensors among the values."""
    return {v.data_ptr() for v in values if isinstance(v, Tensor) and v.numel()}
