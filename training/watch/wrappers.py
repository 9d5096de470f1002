"""What is put into a network after DistributedDataParallel has looked at it: its gradients stay on
their rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from training.watch.forwards import Call
from training.watch.gradients import nonzero
from training.watch.leaves import Leaves
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

REDUCING = ("all_reduce", "all_gather_into_tensor", "all_gather", "broadcast", "reduce_scatter")


class Wrappers(Listener):
    """Listens to wrappers, and compares what they knew with what is trained through them."""

    def __init__(self, watch: Watch, leaves: Leaves) -> None:
        self.watch, self.leaves = watch, leaves
        self.made: weakref.WeakKeyDictionary[nn.Module, Place] = weakref.WeakKeyDictionary()
        # parameters that any wrapper was given: a network may be wrapped anew
        self.known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # wrappers through which their network was last called, with gradients on
        self.used: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.exchanged = (
            0  # values that the program itself gave to other ranks since the last call of a network
        )

    def install(self) -> None:
        """Listen."""
        around(DistributedDataParallel, "__init__", self._wrap)
        for name in REDUCING:
            around(dist, name, self._reduced)

    def _wrap(
        self, original: Callable[..., Any], wrapper: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        original(wrapper, *args, **kwargs)
        self._wrapped(wrapper)

    @guarded
    def _wrapped(self, wrapper: nn.Module) -> None:
        self.made[wrapper] = self.watch.here()
        for p in wrapper.parameters():
            self.known[p] = True

    def _reduced(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._exchange([*args, *kwargs.values()])
        return original(*args, **kwargs)

    @guarded
    def _exchange(self, given: list[Any]) -> None:
        if self.made and not self.watch.quiet:
            flat = [
                t
                for value in given
                for t in (value if isinstance(value, list | tuple) else [value])
            ]
            self.exchanged += sum(
                t.numel() for t in flat if isinstance(t, Tensor) and t.is_floating_point()
            )

    def forwarded(self, call: Call) -> None:
        """Whether a network is called through its wrapper, or past it."""
        if not self.made or not call.grad:
            return
        self.exchanged = 0
        parts = set(call.module.modules())
        for wrapper in self.made:
            if wrapper in parts:
                self.used.add(wrapper)
            elif wrapper.module in parts:
                self.used.discard(wrapper)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Parameters with a gradient that their wrapper has never seen."""
        for wrapper in list(self.used):
            late = [
                (n, p)
                for n, p in wrapper.module.named_parameters()
                if p.requires_grad and p not in self.known and nonzero(p)
            ]
            # else the program may well average them by itself
            if late and self.exchanged < sum(p.numel() for _, p in late):
                names = ", ".join(n for n, _ in late[:3]) + (
                    f" and {len(late) - 3} more" if len(late) > 3 else ""
                )
                told = (
                    f"{names}: put into the network after {type(wrapper).__name__} was made, which"
                    " does not average their gradients"
                )
                self.watch.tell(
                    "BH843", told, self.leaves.put.get(id(late[0][1]), self.made[wrapper])
                )
