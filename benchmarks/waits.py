"""Finds where a step waits for the device, also on a machine that has none: whatever would copy
from it, or to it from pageable memory.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

# What reads a value, whose result has a size that only the device knows, or that begins as Python
# numbers (a copy to the device that is waited for).
WAITING = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "equal",
    "lift_fresh",
    "bincount",
}
READING = {
    "tolist",
    "item",
    "cpu",
    "numpy",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__array__",
}


class Operations(TorchDispatchMode):
    """Notes operations that wait, also those of a backward pass."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = function.overloadpacket.__name__
        masked = name.startswith("index") and any(
            isinstance(i, Tensor) and i.dtype == torch.bool
            for i in (args[1] if isinstance(args[1], list) else ())
        )
        if name in WAITING or masked:
            self.found[f"{name} with a mask" if masked else name] += 1
        return function(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Notes methods that hand values to Python; those of a tensor whose copy was begun earlier
    (`begun`) apart, as `arrived`.
    """

    def __init__(self, found: Counter[str], order: list[str]) -> None:
        super().__init__()
        self.found, self.order = found, order

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = (resolve_name(function) or "").rpartition(".")[2]
        if name in READING:
            self.found[f"Tensor.{name}"] += 1
            self.order.append(name)
        return function(*args, **(kwargs or {}))


class Waits:
    """Within `with`, `found` counts by name what waits, and `order` lists reads among whatever else
    is appended to it.
    """

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.order: list[str] = []
        self._modes = (Operations(self.found), Reads(self.found, self.order))

    def __enter__(self) -> Waits:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
