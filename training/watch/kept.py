"""What is kept longer than meant, or not kept: graphs of earlier steps, best weights that are those
of now, states that are not restored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

ALIVE = 5  # graphs of earlier steps
MOST_GRAPHS, MOST_STATES = 5000, 20


# in a file from which a training goes on
COUNTERS = {"epoch", "step", "iteration", "global_step", "epochs", "steps", "updates"}


class Token:
    """Lives as long as the node of a graph that holds it."""


class Kept(Listener):
    """Listens to losses, state dicts and files."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.graphs: list[tuple[int, weakref.ref[Token], Place]] = []
        # by id of the state dict: itself, the step, where
        self.states: dict[int, tuple[dict[str, Any], int, Place]] = {}
        self.checkpoints: set[frozenset[str]] = set()  # keys of what was saved to go on from
        self.resumed: Place | None = (
            None  # where such a file was read, until an optimizer is restored
        )
        self.reloaded: set[int] = set()  # parameters that were loaded since

    def install(self) -> None:
        """Listen."""
        around(nn.Module, "state_dict", self._state_dict)
        around(nn.Module, "load_state_dict", self._load)
        around(torch.optim.Optimizer, "load_state_dict", self._restored)
        around(torch, "save", self._save)
        around(torch, "load", self._read)
        torch.serialization.save, torch.serialization.load = torch.save, torch.load

    # --------------------------------------------------------------------------------------- graphs

    def backed(self, loss: Tensor, place: Place) -> None:
        """Mark the graph of a loss."""
        if loss.grad_fn is not None and len(self.graphs) < MOST_GRAPHS:
            token = Token()
            loss.grad_fn.metadata[Token] = token
            self.graphs.append((self.watch.steps, weakref.ref(token), place))

    def stepped(self, *_: object) -> None:
        """Tell of graphs that were used up steps ago and still are."""
        self.graphs = [g for g in self.graphs if g[1]() is not None]
        old = [g for g in self.graphs if g[0] < self.watch.steps - ALIVE]
        if len(old) >= ALIVE:
            self.watch.tell(
                "BH308",
                f"the graphs of {len(old)} losses of earlier steps are kept: memory grows with each"
                " step",
                old[0][2],
            )

    # -------------------------------------------------------------------------------------- weights

    def _state_dict(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(module, *args, **kwargs)
        if (
            not self.watch.quiet
            and not args
            and not kwargs.get("prefix")
            and isinstance(result, dict)
        ):
            self.states[id(result)] = (result, self.watch.steps, self.watch.here())
            while len(self.states) > MOST_STATES:
                del self.states[next(iter(self.states))]
        return result

    def _load(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        # by name from torch.distributed.checkpoint
        state = args[0] if args else kwargs.get("state_dict")
        by_helper = self.watch.calling("set_model_state_dict") or self.watch.calling(
            "set_state_dict"
        )  # which fills the network's own tensors first
        if not self.watch.quiet and isinstance(state, dict) and not by_helper:
            self._loading(module, state)
        return original(module, *args, **kwargs)

    @guarded
    def _loading(self, module: nn.Module, state: dict[str, Any]) -> None:
        if self.resumed is not None:
            self.reloaded |= same_network(module, state)
        own = {p.data_ptr() for p in module.parameters() if p.numel()}
        alias = [
            t for t in state.values() if isinstance(t, Tensor) and t.numel() and t.data_ptr() in own
        ]
        made = self._made(state, alias)
        if made is not None and (made[0] or made[1] != self.watch.here()):
            self.watch.tell(
                "BH207",
                f"{type(module).__name__} is given back its own weights of now: what was kept"
                f" {made[0]} steps ago was no copy",
                made[1],
            )
        elif alias and self.watch.steps:
            self.watch.tell(
                "BH821",
                f"{type(module).__name__} is given its own weights: what should be a copy is the"
                " same network",
            )

    def _made(self, state: dict[str, Any], alias: list[Tensor]) -> tuple[int, Place] | None:
        """Steps since the state dict was made of which these tensors are, and where; None where
        that is not known.
        """
        if not alias:
            return None
        pointers = {t.data_ptr() for t in alias}
        known = [self.states[id(state)]] if id(state) in self.states else list(self.states.values())
        for made, step, place in known:
            if pointers <= {t.data_ptr() for t in made.values() if isinstance(t, Tensor)}:
                return self.watch.steps - step, place
        return None

    # ---------------------------------------------------------------------------------------- files

    def _save(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self._saving(args[0] if args else kwargs.get("obj"))
        return original(*args, **kwargs)

    @guarded
    def _saving(self, what: Any) -> None:
        inside = list(what.values()) if isinstance(what, dict) else []
        if isinstance(what, dict) and (
            any(map(of_optimizer, inside)) or COUNTERS & {str(k).lower() for k in what}
        ):
            self.checkpoints.add(frozenset(map(str, what)))
        for state in [what, *inside]:
            if isinstance(state, nn.Module):
                self.watch.tell("BH702", f"{type(state).__name__} is pickled as a whole")
            elif isinstance(state, dict) and id(state) in self.states:
                made = self._made(state, [t for t in state.values() if isinstance(t, Tensor)])
                if made is not None and made[0]:
                    self.watch.tell(
                        "BH207",
                        f"the weights that are saved were kept {made[0]} steps ago without a copy:"
                        " they are those of now",
                        made[1],
                    )

    def _read(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if (
            not self.watch.quiet
            and isinstance(found, dict)
            and frozenset(map(str, found)) in self.checkpoints
        ):
            self.resumed, self.reloaded = self.watch.here(), set()
        return found

    def _restored(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self.resumed = None
        return original(*args, **kwargs)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of an optimizer that was not restored, on weights that all were."""
        held = {id(p) for g in optimizer.param_groups for p in g["params"]}
        if self.resumed is not None and not optimizer.state and held and held <= self.reloaded:
            self.watch.tell(
                "BH707",
                f"training goes on from a checkpoint, and the state of {type(optimizer).__name__}"
                " is not restored",
                self.resumed,
            )
            self.resumed = None


def same_network(module: nn.Module, state: dict[str, Any]) -> set[int]:
    """Ids of the parameters of a network whose whole state this is; none of one that takes over a
    part of another, which is no resume.

    >>> half = nn.Sequential(nn.Linear(2, 2))
    >>> (len(same_network(half, half.state_dict())),
    ...     len(same_network(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), half.state_dict())))
    (2, 0)
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    own = {*parameters, *(name for name, _ in module.named_buffers(remove_duplicate=False))}
    names = {str(name) for name in state if not str(name).endswith("_extra_state")}
    return {id(p) for p in parameters.values()} if set(parameters) <= names <= own else set()


def of_optimizer(state: Any) -> bool:
    """Whether a value is the state of an optimizer."""
    return isinstance(state, dict) and "state" in state and "param_groups" in state
