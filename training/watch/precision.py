"""Clipping and gradient scaling: whether they stand where they act."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from training.watch.forwards import Call
from training.watch.gradients import UNSCALED, Gradients, mark, same
from training.watch.patches import around
from training.watch.record import Listener, Watch, guarded

TWICE = 2


class Precision(Listener):
    """Listens to clipping and to gradient scalers."""

    def __init__(self, watch: Watch, gradients: Gradients) -> None:
        self.watch, self.gradients = watch, gradients
        self.scaled = 0  # losses scaled since the last step
        self.scales = self.steps_past = 0
        self.unscaled: set[int] = set()  # optimizers
        self.off: weakref.WeakSet[GradScaler] = weakref.WeakSet()  # made so
        self.in_scaler = False
        self.at_half = False

    def install(self) -> None:
        """Listen."""
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            around(nn.utils.clip_grad, name, self._clip)
            setattr(nn.utils, name, getattr(nn.utils.clip_grad, name))
        around(GradScaler, "__init__", self._made)
        around(GradScaler, "scale", self._scale)
        around(GradScaler, "unscale_", self._unscale)
        around(GradScaler, "step", self._scaler_step)

    def _clip(
        self, original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self.watch.quiet:
            return original(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        self._clipped(original.__name__, given, args, kwargs)
        result = original(given, *args, **kwargs)
        self._keep_marks()
        self._cut(given, result, args, kwargs)
        return result

    @guarded
    def _cut(self, given: list[Tensor], norm: Any, args: Any, kwargs: Any) -> None:
        if isinstance(norm, Tensor):
            most = float(args[0] if args else kwargs["max_norm"])
            self.watch.emit(Listener.clipped, given, norm, most)

    @guarded
    def _clipped(self, name: str, given: list[Tensor], args: Any, kwargs: Any) -> None:
        states = {id(p): s for h in self.gradients.held.values() for p, s in h.items()}
        graded = [p for p in given if p.grad is not None]
        known = [p for p in graded if id(p) in states]
        if not graded:
            what = (
                "no parameters are given (a generator is used up after one pass)"
                if not given
                else "no gradient is there yet"
            )
            self.watch.tell("BH106", f"{name} clips nothing: {what}")
        elif known and all(
            states[id(p)].used is not None and same(mark(p), states[id(p)].used) for p in known
        ):
            self.watch.tell("BH106", f"{name} clips gradients that a step has used already")
        if math.isfinite(float(args[0] if args else next(iter(kwargs.values()), 1.0))):
            self.gradients.clipping({id(p) for p in known})
        if self.scaled and known and not self.unscaled:
            self.watch.tell("BH131", f"{name} clips gradients that are still scaled")

    @guarded
    def _keep_marks(self) -> None:
        """Gradients changed by clipping or scaling are still those of the backward pass."""
        for held in self.gradients.held.values():
            for p, state in held.items():
                state.left = mark(p) if state.fresh and p.grad is not None else state.left

    def _made(
        self, original: Callable[..., Any], scaler: GradScaler, *args: Any, **kwargs: Any
    ) -> None:
        original(scaler, *args, **kwargs)
        if kwargs.get("enabled", True) is False:
            # where there is no GPU one that is meant to be on is off as well, and its use can be
            # judged all the same
            self.off.add(scaler)

    def _scale(self, original: Callable[..., Any], scaler: GradScaler, outputs: Any) -> Any:
        result = original(scaler, outputs)
        if (
            not self.watch.quiet
            and scaler not in self.off
            and isinstance(outputs, Tensor)
            and isinstance(result, Tensor)
        ):
            self.scaled += 1
            self.scales += 1
            setattr(result, UNSCALED, type(outputs.grad_fn).__name__)
        return result

    def _unscale(
        self, original: Callable[..., Any], scaler: GradScaler, optimizer: torch.optim.Optimizer
    ) -> Any:
        if not self.in_scaler:
            self.unscaled.add(id(optimizer))
        result = original(scaler, optimizer)
        self._keep_marks()
        return result

    def _scaler_step(
        self,
        original: Callable[..., Any],
        scaler: GradScaler,
        optimizer: torch.optim.Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self.in_scaler = True
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            self.in_scaler = False
            self.scaled = 0
            self.unscaled.discard(id(optimizer))

    def forwarded(self, call: Call) -> None:
        """Whether a network that learns runs in float16."""
        halves = [
            torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16
            for kind in ("cpu", "cuda")
        ]
        if call.grad:
            self.at_half = any(halves)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Whether the step goes past the scaler, or there is none for float16."""
        if self.scaled and not self.in_scaler:
            self.steps_past += 1
            if self.steps_past >= TWICE:
                self.watch.tell(
                    "BH133",
                    f"the loss is scaled, and {type(optimizer).__name__} steps past the scaler",
                )
            self.scaled = 0
        elif self.at_half and not self.scales:
            self.watch.tell(
                "BH134",
                "the network runs in float16 under autocast, and the loss is not scaled: small"
                " gradients become 0",
            )
