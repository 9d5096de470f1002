"""Every call of a network: in which mode, with or without gradients, what it changes, and what it
makes.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

Norm = nn.modules.batchnorm._BatchNorm
TWICE, MANY = 2, 10  # calls in a row; steps of another network


@dataclass(eq=False)
class Call:
    """One outermost call of a network."""

    module: nn.Module
    inputs: list[Tensor]
    outputs: list[Tensor]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    grad: bool
    training: bool
    switching: list[str]  # layers in train mode whose result depends on the mode
    place: Place
    tail: nn.Module | None = None  # the last layer with weights that ran

    @property
    def rows(self) -> int:
        """Of the batch, as the first input tells."""
        return len(self.inputs[0]) if self.inputs and self.inputs[0].ndim else 0


def tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item, depth - 1)


def mode_dependent(module: nn.Module, training: bool | None = None) -> list[str]:
    """Names of layers that do something else in train mode than in eval mode; only those in the
    given mode.
    """
    return [
        name or type(m).__name__
        for name, m in module.named_modules()
        if training in (None, m.training)
        and (
            (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0)
            or (isinstance(m, Norm) and m.track_running_stats)
        )
    ]


@dataclass(eq=False)
class Fixed:
    """A network in train mode without a part in the gradient, and in how many steps of another one
    it ran since its weights changed.
    """

    module: nn.Module
    switching: list[str]
    place: Place
    version: int  # of its first weight
    steps: int
    times: int = 0


class Forwards(Listener):
    """Listens to `nn.Module.__call__`, and judges modes at the steps."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.stack: list[nn.Module] = []
        self.last: Call | None = None
        self.tail: nn.Module | None = None  # the last layer with weights that ran
        self.given = 0  # rows of the first input of the outermost call
        self.calls = 0  # of networks, with gradients on
        self.evaluated = 0  # rows, since the last step
        self.executed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.loaded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # DDP by what it wraps, kept to the end: gloo's threads may wait for ever for one that is
        # taken down
        self.wrapped: dict[int, nn.Module] = {}
        self.trained: set[int] = set()  # ids of parameters that an optimizer has stepped
        self.kinds: set[type[nn.Module]] = set()  # of networks that were trained
        self._unbacked: list[Call] = []  # calls of a network in a row, no backward pass between
        self._trained_before: set[int] = set()  # modules that have been trained in train mode
        self._in_eval: dict[int, int] = {}
        self._steps_at: int = -1
        # of frozen weights, by id, and at how many steps in a row it was the same
        self._versions: dict[int, tuple[int, int]] = {}
        self._fixed: dict[int, Fixed] = {}  # networks in train mode that nothing trains, by id
        # dropout of networks that were trained, with the network and its name there
        self._dropping: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[nn.Module], str]] = (
            weakref.WeakKeyDictionary()
        )
        # parts of networks, that were trained in train mode
        self._parts_trained: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._parts_in_eval: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        # how often each ran by itself without gradients since the last backward pass
        self._idle: dict[int, int] = {}
        self._single: Call | None = (
            None  # made once between steps, in train mode and without gradients
        )

    def install(self) -> None:
        """Listen."""
        around(nn.Module, "__call__", self._call)
        around(nn.Module, "__init__", self._made)
        around(nn.Module, "load_state_dict", self._load)
        around(nn.Module, "__setattr__", self._set)
        around(torch.autograd, "grad", self._grad)
        around(DistributedDataParallel, "__init__", self._wrap)
        around(nn.DataParallel, "__init__", self._parallel)

    def _call(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        if self.watch.quiet:
            return original(module, *args, **kwargs)
        if any(
            torch._C._functorch.is_functorch_wrapped_tensor(t)
            for t in (*module.parameters(), *tensors_in((args, kwargs)))
        ):
            # under vmap or grad of torch.func: these have no values of their own
            return original(module, *args, **kwargs)
        root = not self.stack and next(module.parameters(), None) is not None
        if torch.is_grad_enabled():
            self.executed.add(module)
        if not root and not self.stack:
            self._dropped(module)
            # a loss without weights of its own, or dropout in another method than `forward`
            return original(module, *args, **kwargs)
        inputs = (
            [t for t in tensors_in((args, kwargs)) if not isinstance(t, nn.Parameter)]
            if root
            else []
        )
        versions = [t._version for t in inputs if not t.is_inference()]
        if root:
            self.given = len(inputs[0]) if inputs and inputs[0].ndim else 0
        self.stack.append(module)
        if self.stack[0] is not module and next(module.parameters(recurse=False), None) is not None:
            self.tail = module
        try:
            result = original(module, *args, **kwargs)
        finally:
            self.stack.pop()
        if torch.is_grad_enabled() and next(module.parameters(), None) is not None:
            self.watch.emit(Listener.called, module, (args, kwargs), result)
        if root:
            changed = [
                t
                for t, v in zip([t for t in inputs if not t.is_inference()], versions, strict=True)
                if t._version != v
            ]
            if changed and not any(t.requires_grad for t in changed):
                self.watch.tell(
                    "BH819", f"{type(module).__name__} changes the batch that it is given"
                )
            if (
                call := self._entered(module, inputs, list(tensors_in(result)), (args, kwargs))
            ) is not None:
                self.watch.emit(Listener.forwarded, call)
        return result

    @guarded
    def _entered(
        self, module: nn.Module, inputs: list[Tensor], outputs: list[Tensor], given: Any
    ) -> Call:
        call = Call(
            module,
            inputs,
            outputs,
            given,
            torch.is_grad_enabled(),
            module.training,
            mode_dependent(module, True),
            self.watch.here(),
            self.tail,
        )
        self.last = call
        self.calls += call.grad
        self.evaluated += 0 if call.grad else call.rows
        self.roots.add(module)
        return call

    def _made(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        original(module, *args, **kwargs)
        if (
            self.stack
            and not self.watch.quiet
            and torch.is_grad_enabled()
            and isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.Embedding | nn.RNNBase)
        ):
            self.watch.tell(
                "BH402",
                f"{type(module).__name__} is made while {type(self.stack[0]).__name__} runs: no"
                " optimizer knows its weights",
            )

    def _load(
        self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(module, *args, **kwargs)
        if not self.watch.quiet:
            self._loaded(module, result)
        return result

    @guarded
    def _loaded(self, module: nn.Module, result: Any) -> None:
        with self.watch.unwatched():
            own = len(module.state_dict())
            if own and result is not None and len(result.missing_keys) == own:
                few = ", ".join(result.unexpected_keys[:2])
                self.watch.tell(
                    "BH827",
                    f"none of the {own} names of {type(module).__name__} is among those that are"
                    f" loaded ({few}, …): it keeps its random weights",
                )
            else:
                for part in module.modules():
                    self.loaded.add(part)

    def _set(self, original: Callable[..., Any], module: nn.Module, name: str, value: Any) -> None:
        original(module, name, value)
        if name == "requires_grad" and not self.watch.quiet:
            self.watch.tell(
                "BH407",
                f"requires_grad is set on {type(module).__name__}, a module: its parameters are"
                " trained as before",
            )

    def _grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.watch.quiet:
            return original(*args, **kwargs)
        # torch hands its own functions to modes by calling them once more
        before = self.watch.differentiated
        self.backed()
        result = original(*args, **kwargs)
        self.watch.differentiated = before + 1
        return result

    def _wrap(
        self,
        original: Callable[..., Any],
        wrapper: nn.Module,
        module: nn.Module,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        original(wrapper, module, *args, **kwargs)
        self.wrapped[id(module)] = wrapper

    def _parallel(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        if not self.watch.quiet:
            self.watch.tell("BH601", "the network is wrapped in DataParallel")

    # ---------------------------------------------------------------------------------------- modes

    def forwarded(self, call: Call) -> None:
        """Modes of the calls between two backward passes."""
        self._untrained(call)
        if not self._learns(call.module):
            # what is made there can be no goal of a loss
            copied = type(call.module) in self.kinds and torch.is_inference_mode_enabled()
            if copied and call.training and call.switching and not self.watch.calling("update_bn"):
                self._in_train_mode(call)
            return
        self._unbacked.append(call)
        if len(self._unbacked) > TWICE * 50:
            del self._unbacked[: -TWICE * 25]
        without = [
            c for c in self._unbacked if c.module is call.module and c.training and not c.grad
        ]
        rare = self.watch.steps - self._steps_at > 1 and self._steps_at >= 0
        self._single = None
        if (
            call.training
            and call.switching
            and not call.grad
            and not self.watch.calling("update_bn")
        ):
            if len(without) >= TWICE:
                self._in_train_mode(call)
            elif rare:
                self._single = call
        if not call.grad:
            self._steps_at = self.watch.steps
        kept = [
            c
            for c in self._unbacked
            if c.module is call.module
            and c.grad
            and not c.training
            and any(o.requires_grad for o in c.outputs)
            and not any(t.requires_grad for t in c.inputs)  # by which it is to be differentiated
        ]
        if len(kept) >= TWICE and call in kept:
            self._evaluated(call, "is evaluated with gradients on, and nothing uses them", "BH202")

    def _untrained(self, call: Call) -> None:
        """A network in train mode that has no part in the gradient, in how many steps of another
        one its weights stayed as they are.
        """
        first = next(call.module.parameters(), None)
        if (
            first is None
            or not call.training
            or not call.switching
            or (call.grad and any(p.requires_grad for p in call.module.parameters()))
        ):
            return
        known = self._fixed.get(id(call.module))
        if known is None or known.module is not call.module or first._version != known.version:
            self._fixed[id(call.module)] = Fixed(
                call.module, call.switching, call.place, first._version, self.watch.steps
            )
        elif self.watch.steps > known.steps:
            known.times, known.steps = known.times + 1, self.watch.steps

    def ended(self) -> None:
        """Networks that gave something in train mode in many steps of others, and were trained no
        more.
        """
        for known in self._fixed.values():
            if known.times >= MANY and next(known.module.parameters())._version == known.version:
                told = (
                    f"{type(known.module).__name__}, which is not trained, runs in train mode in"
                    f" {known.times} steps of another network"
                )
                self.watch.tell(
                    "BH882", f"{told}, with {_few(known.switching)} at work", known.place
                )

    def judged(self) -> None:
        """The scores of the last call are compared or decided on; where they are only looked at,
        its mode does not matter.
        """
        if self._single is not None:
            self._in_train_mode(self._single)

    def _in_train_mode(self, call: Call) -> None:
        self._evaluated(
            call,
            f"runs without gradients in train mode, with {_few(call.switching)} at work",
            "BH201",
        )

    def _evaluated(self, call: Call, what: str, rule: str) -> None:
        if self.watch.steps:
            self.watch.tell(rule, f"{type(call.module).__name__} {what}", call.place)

    @guarded
    def _dropped(self, module: nn.Module) -> None:
        """Dropout runs by itself, in `generate` or the like: without gradients, while its whole
        network is in train mode.
        """
        of, name = self._dropping.get(module, (None, ""))
        network = of() if of is not None else None
        if network is None or torch.is_grad_enabled() or not (module.training and network.training):
            return
        self._idle[id(module)] = self._idle.get(id(module), 0) + 1
        if self._idle[id(module)] == TWICE:
            self.watch.tell(
                "BH201",
                f"{type(network).__name__} runs without gradients in train mode, with {name} at"
                " work",
            )

    def _learns(self, module: nn.Module) -> bool:
        return any(id(p) in self.trained for p in module.parameters())

    def backed(self, *_: object) -> None:
        """Calls before a backward pass were for training."""
        self._unbacked.clear()
        self._idle.clear()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The network of this step: its mode, whether its wrapper was passed by, norms that move
        though frozen.
        """
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.trained |= held
        self.evaluated = 0
        call = self.last
        if (
            call is None
            or not call.grad
            or not any(id(p) in held for p in call.module.parameters())
        ):
            return
        self.kinds.add(type(call.module))
        key = id(call.module)
        if key not in self._trained_before and key not in self._in_eval:
            dropping = (
                (n, m)
                for n, m in call.module.named_modules()
                if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0
            )
            for name, part in dropping:
                self._dropping[part] = weakref.ref(call.module), name
        if call.training:
            self._trained_before.add(key)
            self._parts(call, held)
        elif not call.switching and mode_dependent(call.module):
            self._in_eval[key] = self._in_eval.get(key, 0) + 1
            if self._in_eval[key] == TWICE:
                since = "since an evaluation, " if key in self._trained_before else ""
                self.watch.tell(
                    "BH203",
                    f"{since}{type(call.module).__name__} is trained in eval mode:"
                    f" {_few(mode_dependent(call.module))} do nothing",
                    call.place,
                )
        if (wrapper := self.wrapped.get(key)) is not None:
            self.watch.tell(
                "BH602",
                f"{type(call.module).__name__} is trained past its {type(wrapper).__name__}: ranks"
                " do not exchange gradients",
                call.place,
            )
        self._frozen_norms(call)
        tail = call.tail
        frozen = (
            isinstance(tail, nn.Linear)
            and tail not in self.loaded
            and not tail.weight.requires_grad
            and tail in set(call.module.modules())
        )
        if isinstance(tail, nn.Linear) and frozen and self._still(tail.weight):
            told = (
                f"the last layer of {type(call.module).__name__} ({list(tail.weight.shape)}) is"
                " frozen as it was made, while layers before it are trained"
            )
            self.watch.tell("BH427", told, call.place)

    def _parts(self, call: Call, held: set[int]) -> None:
        """Parts of a network in train mode that were in train mode too, and stayed in eval mode
        behind an evaluation of their own; norms alone are put there on purpose.
        """
        parts = [
            (n, m)
            for n, m in call.module.named_modules()
            if n and next(m.children(), None) is not None
        ]
        for name, part in parts:
            if part.training:
                self._parts_trained.add(part)
            elif (
                part in self._parts_trained
                and any(p.requires_grad and id(p) in held for p in part.parameters())
                and mode_dependent(part)
            ):
                self._parts_in_eval[part] = self._parts_in_eval.get(part, 0) + 1
                if self._parts_in_eval[part] == TWICE:
                    told = (
                        f"since an evaluation, {name} of {type(call.module).__name__} is trained in"
                        f" eval mode: {_few(mode_dependent(part))} do nothing"
                    )
                    self.watch.tell("BH203", told, call.place)

    def _still(self, weight: Tensor) -> bool:
        """Whether nothing has written to a frozen weight for some steps, as a teacher's average
        does at each.
        """
        version, times = self._versions.get(id(weight), (weight._version, 0))
        self._versions[id(weight)] = (
            weight._version,
            times + 1 if version == weight._version else 0,
        )
        return self._versions[id(weight)][1] > TWICE

    def _frozen_norms(self, call: Call) -> None:
        norms = [
            (n, m)
            for n, m in call.module.named_modules()
            if isinstance(m, Norm) and m.affine and m.track_running_stats and m.training
        ]
        frozen = [
            n
            for n, m in norms
            if not m.weight.requires_grad and not m.bias.requires_grad and self._still(m.weight)
        ]
        if frozen:
            self.watch.tell(
                "BH811",
                f"the weights of {_few(frozen)} are frozen, but in train mode their running"
                " statistics move with each batch",
                call.place,
            )


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def twin(module: nn.Module) -> nn.Module | None:
    """A copy in eval mode; None where it cannot be copied."""
    try:
        return copy.deepcopy(module).eval()
    except Exception:
        return None
