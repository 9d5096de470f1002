"""Find where a value first became non-finite in a network, with hooks during one step.

Forward: hooks run as modules end, so the first non-finite output belongs to the innermost faulty
module. Backward: gradients arrive in reverse order. The first non-finite one comes from an
operation on that module's output, or from the gradient of a parameter itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn


class Place(NamedTuple):
    """Place of the first non-finite value.

    `direction`: forward or backward. `module`: dotted path of a module, or of a parameter; empty
    for the whole network. `kind`: class of the module, or Parameter. `micro_batch`: its number in
    the share. `rows`: non-finite rows of the micro-batch; empty if the tensor has no row per
    sample.
    """

    direction: Literal["forward", "backward"]
    module: str
    kind: str
    micro_batch: int
    rows: tuple[int, ...]


class Watch(AbstractContextManager["Watch"]):
    """Monitor outputs and gradients of every module while it is open.

    Args:
        model: neither compiled nor wrapped.

    Attributes:
        forward: the first output that was not finite.
        backward: the first gradient that was not finite.
        largest: module path → largest finite magnitude of its outputs, in forward order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.forward: Place | None = None
        self.backward: Place | None = None
        self.largest: dict[str, float] = {}
        self._micro_batch, self._rows = -1, 0
        self._handles: list[Any] = []

    def __enter__(self) -> Watch:
        self._handles.append(self.model.register_forward_pre_hook(self._begin))
        for name, module in self.model.named_modules():
            self._handles.append(module.register_forward_hook(partial(self._output, name)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(
                    parameter.register_hook(partial(self._gradient, name, "Parameter", None))
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._micro_batch += 1
        self._rows = next((len(t) for t in _tensors(inputs)), 0)

    def _output(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        kind = type(module).__name__
        for tensor in _tensors(output):
            finite = tensor.detach()[torch.isfinite(tensor)]
            self.largest[name] = max(
                self.largest.get(name, 0.0), float(finite.abs().max()) if finite.numel() else 0.0
            )
            if self.forward is None and finite.numel() < tensor.numel():
                self.forward = Place(
                    "forward", name, kind, self._micro_batch, self._wrong_rows(tensor)
                )
            if tensor.requires_grad:
                self._handles.append(
                    tensor.register_hook(partial(self._gradient, name, kind, self._micro_batch))
                )

    def _gradient(self, name: str, kind: str, micro_batch: int | None, gradient: Tensor) -> None:
        if self.backward is None and not bool(torch.isfinite(gradient).all()):
            rows = () if micro_batch is None else self._wrong_rows(gradient)
            self.backward = Place(
                "backward",
                name,
                kind,
                self._micro_batch if micro_batch is None else micro_batch,
                rows,
            )

    def _wrong_rows(self, tensor: Tensor) -> tuple[int, ...]:
        if tensor.ndim == 0 or len(tensor) != self._rows:
            return ()
        wrong = ~torch.isfinite(tensor.detach()).reshape(len(tensor), -1).all(dim=1)
        return tuple(wrong.nonzero().flatten().tolist())


def _tensors(value: Any) -> Iterator[Tensor]:
    """Return floating-point tensors in an output or a batch, at any depth."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors(inner)
