"""Network calls, and mistakes in how networks are built, loaded and wrapped."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.events import Call, Listener
from training.watch.patches import around
from training.watch.record import Watch, guarded

Norm = nn.modules.batchnorm._BatchNorm
LEARNING = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.RNNBase)


def tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item, depth - 1)


class Forwards(Listener):
    """Listener for `nn.Module.__call__` that reports each call to the other listeners."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.stack: list[nn.Module] = []
        self.last: Call | None = None
        self.tail: nn.Module | None = None
        self.given = 0  # number of rows in the first input of the outermost call
        self.calls = 0  # network calls with gradients on
        self.evaluated = 0  # rows evaluated since the last step
        self.executed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.loaded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # DDP wrapper by id of the wrapped network, kept to the end: gloo's threads may wait forever
        # for a wrapper that is destroyed
        self.wrapped: dict[int, nn.Module] = {}
        self.trained: set[int] = set()  # ids of parameters that an optimizer has updated
        # called when the program compares the scores of the last call or takes decisions from them
        self.judged: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Install hooks for calls, gradients, construction, loading and wrapping."""
        around(nn.Module, "__call__", self._call)
        around(torch.autograd, "grad", self._grad)
        self._after(nn.Module, "__init__", self._made)
        self._after(nn.Module, "__setattr__", self._set)
        self._after(nn.Module, "load_state_dict", self._loaded)
        self._after(nn.DataParallel, "__init__", self._parallel)

    def trains(self, module: nn.Module) -> bool:
        """Check that an optimizer has updated a parameter of the network."""
        return any(id(p) in self.trained for p in module.parameters())

    def _call(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        parameters = list(module.parameters())
        # tensors under vmap or grad of torch.func have no own values
        if self.watch.quiet or any(
            torch._C._functorch.is_functorch_wrapped_tensor(t)
            for t in (*parameters, *tensors_in((args, kwargs)))
        ):
            return original(module, *args, **kwargs)
        if torch.is_grad_enabled():
            self.executed.add(module)
        outermost = not self.stack
        if outermost and not parameters:  # for example a loss without weights
            return original(module, *args, **kwargs)
        given = list(tensors_in((args, kwargs))) if outermost else []
        inputs = [t for t in given if not isinstance(t, nn.Parameter)]
        versions = [(t, t._version) for t in inputs if not t.is_inference()]
        if outermost:
            self.given = len(inputs[0]) if inputs and inputs[0].ndim else 0
        elif module._parameters:
            self.tail = module
        self.stack.append(module)
        try:
            result = original(module, *args, **kwargs)
        finally:
            self.stack.pop()
        changed = [t for t, version in versions if t._version != version]
        if changed and not any(t.requires_grad for t in changed):
            told = f"{type(module).__name__} changes the batch that it is given"
            self.watch.tell("BH819", told)
        call = self._entered(module, inputs, (args, kwargs), result) if outermost else None
        if call is not None:
            self.watch.emit(Listener.forwarded, call)
        return result

    @guarded
    def _entered(self, module: nn.Module, inputs: list[Tensor], given: Any, result: Any) -> Call:
        grad, outputs = torch.is_grad_enabled(), list(tensors_in(result))
        self.last = call = Call(
            module, inputs, outputs, given, grad, module.training, self.watch.here(), self.tail
        )
        self.calls += grad
        self.evaluated += 0 if grad else call.rows
        self.roots.add(module)
        return call

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the parameters that are trained."""
        self.trained |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.evaluated = 0

    def _grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = self.watch.differentiated
        result = original(*args, **kwargs)
        if not self.watch.quiet:
            # torch calls its own functions a second time for function modes
            self.watch.differentiated = before + 1
        return result

    def _after(self, owner: Any, name: str, seen: Callable[..., None]) -> None:
        """Call `seen(result, *args)` after each call of a function."""

        def replaced(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self.watch.quiet:
                seen(result, *args)
            return result

        around(owner, name, replaced)

    @guarded
    def _made(self, _: None, module: nn.Module, *__: Any) -> None:
        if self.stack and isinstance(module, LEARNING) and torch.is_grad_enabled():
            told = f"{type(module).__name__} is made while {type(self.stack[0]).__name__} runs"
            self.watch.tell("BH402", f"{told}: no optimizer knows its weights")

    @guarded
    def _loaded(self, result: Any, module: nn.Module, *_: Any) -> None:
        with self.watch.unwatched():
            own = len(module.state_dict())
        if own and result is not None and len(result.missing_keys) == own:
            few = ", ".join(result.unexpected_keys[:2])
            told = f"none of the {own} names of {type(module).__name__} is among those that are"
            self.watch.tell("BH827", f"{told} loaded ({few}, …): it keeps its random weights")
        else:
            self.loaded.update(module.modules())

    @guarded
    def _set(self, _: None, module: nn.Module, name: str, *__: Any) -> None:
        if name == "requires_grad":
            told = f"requires_grad is set on {type(module).__name__}, a module: its parameters are"
            self.watch.tell("BH407", f"{told} trained as before")

    @guarded
    def _parallel(self, *_: Any) -> None:
        self.watch.tell("BH601", "the network is wrapped in DataParallel")
