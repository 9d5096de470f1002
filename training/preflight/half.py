"""Where a network computes in float16 by itself, whatever precision the run declares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from training.preflight.scores import scored


class _Halves(TorchDispatchMode):
    """Keeps the first operation that gives float16."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[str] = []  # the modules that are running
        self.found = ""

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if not self.found and isinstance(result, Tensor) and result.dtype == torch.float16:
            self.found = self.inside[-1] if self.inside else "the model"
        return result


def computed_in_half(network: nn.Module, inputs: dict[str, Tensor]) -> str:
    """The innermost module in which a network that is given float32 first computes in float16;
    empty where none does.
    """
    student, modes = copy.deepcopy(network), _Halves()

    def enter(name: str) -> Callable[[nn.Module, object], None]:
        return lambda _module, _given: modes.inside.append(name or "the model")

    def leave(_module: nn.Module, _given: object, _result: object) -> None:
        modes.inside.pop()

    for name, module in student.named_modules():
        module.register_forward_pre_hook(enter(name))
        module.register_forward_hook(leave)
    with modes:
        scored(student, inputs)
    return modes.found
