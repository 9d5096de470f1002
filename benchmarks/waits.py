"""Places where a step waits for the device, found even without one: copies from the device, or to
it from pageable memory.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that read a value, whose result has a size that only the device knows, or that begin
# as Python numbers (a blocking copy to the device).
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
    """Count operations that wait, also those of a backward pass."""

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
    """Count methods that give values to Python, and record their order."""

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
    """Counts of what waits within `with` by name (`found`), and the order of reads among other
    entries (`order`).
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
