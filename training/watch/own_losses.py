"""Losses that a program has written itself: whether right answers cost less than wrong ones, and
whether what they give carries a gradient.

Between a forward pass and its backward pass Python tells of each function of the program that is
called. One whose name says that it is a loss, and that is given scores and labels, is called again
on the side, with scores that are right about every label and with scores that are wrong.
"""

from __future__ import annotations

import copy
import gc
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from dis import get_instructions
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from training.review.syntax import words
from training.watch.forwards import Call
from training.watch.losses import Functions
from training.watch.record import Listener, Place, Watch

LOSSES = {"loss", "losses", "criterion", "nll", "bce", "xent", "cost", "crossentropy"}
AGAINST = {
    "adversarial", "adversary", "confusion", "unlearn", "unlearning", "unlikelihood", "negative",
    "inverted", "flipped", "fool", "gan", "generator", "gen", "reverse",
}  # fmt: skip
FIRST, SECOND = (
    {"pos", "positive", "positives", "chosen", "preferred", "winner", "better"},
    {
        "neg",
        "negative",
        "negatives",
        "rejected",
        "loser",
        "worse",
    },
)
DEEPEST = 4  # functions that call each other
WINDOWS, MOST = 12, 2_000_000  # forward passes with gradients; values of scores
# low where they are right
DISTANCES = {"dist", "distance", "distances", "d", "energy", "energies", "error", "errors"}
SURE, LIKELY = 6.0, 0.98  # scores, and probabilities, that leave no doubt
MARGIN = 1e-3
TRACES = {
    "append", "extend", "update", "setdefault", "setattr", "write", "print", "info", "debug",
    "warning", "add_scalar", "log_metrics", "random", "backward",
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A call of a loss: the function, its arguments by name, the two that are tensors, and where it
    is defined.
    """

    function: Callable[..., Any]
    given: dict[str, Any]
    first: str
    second: str
    name: str
    place: Place


class OwnLosses(Listener):
    """Listens to the functions of the program between forward and backward."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.running: dict[FrameType, tuple[str, dict[str, Any]]] = {}
        self.tried: set[CodeType] = set()
        self.windows = 0
        # values without a gradient, by what gave them
        self.cut: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("mul", "__mul__", "__rmul__"), after=self._weighted)
        self.functions.listen(("add", "__add__", "__radd__"), before=self._added)

    def forwarded(self, call: Call) -> None:
        """The scores of a batch are there: their loss comes next."""
        if call.grad and self.windows < WINDOWS and sys.getprofile() is None:
            self.windows += 1
            sys.setprofile(self._seen)
        elif not call.grad:
            self._stop()

    def backing(self, place: Place) -> None:
        """The loss is known."""
        self._stop()

    def ended(self) -> None:
        """The program has ended."""
        self._stop()

    def _stop(self) -> None:
        if sys.getprofile() == self._seen:
            sys.setprofile(None)
        self.running.clear()

    # -------------------------------------------------------------------------------------- calls

    def _seen(self, frame: FrameType, event: str, result: Any) -> None:
        if (
            event not in ("call", "return")
            or self.watch.quiet
            or not self.watch.owns(frame.f_code.co_filename)
        ):
            return
        with self.watch.unwatched():
            try:
                if event == "call":
                    self._called(frame)
                elif (known := self.running.pop(frame, None)) is not None:
                    self._returned(frame, *known, result)
            except Exception as error:  # a program must run as it does without a watch
                self.watch.failures.append(
                    f"{frame.f_code.co_name}: {type(error).__name__}: {error}"
                )

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        given = {
            name: frame.f_locals[name]
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if name in frame.f_locals
        }
        owner = given.get("self")
        name = (
            type(owner).__name__
            if isinstance(owner, nn.Module) and code.co_name == "forward"
            else code.co_name
        )
        said = words(name)
        if (
            said & LOSSES
            and not said & AGAINST
            and not code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
            and not code.co_posonlyargcount
            and (owner is None or name != code.co_name)
        ):
            self.running[frame] = (name, given)

    def _returned(self, frame: FrameType, name: str, given: dict[str, Any], result: Any) -> None:
        tensors = [key for key, value in given.items() if isinstance(value, Tensor) and value.ndim]
        if (
            not isinstance(result, Tensor)
            or result.numel() != 1
            or not result.is_floating_point()
            or not torch.is_grad_enabled()
        ):
            return
        if not result.requires_grad:
            if any(self._of_network(given[key]) for key in tensors) and not {
                "no_grad",
                "inference_mode",
            } & set(frame.f_code.co_names):
                self.cut[id(result)] = (weakref.ref(result), name)
            return
        if len(tensors) != 2 or frame.f_code in self.tried or given[tensors[0]].numel() > MOST:
            return
        function = _function(frame.f_code, given.get("self"), frame.f_globals)
        if function is None:
            return
        self.tried.add(frame.f_code)
        place = Place(frame.f_code.co_filename, frame.f_code.co_firstlineno)
        self._judge(
            Asked(
                function,
                {k: v for k, v in given.items() if k != "self"},
                tensors[0],
                tensors[1],
                name,
                place,
            )
        )

    def _of_network(self, tensor: Tensor) -> bool:
        """Whether scores come from a network that learns, cut off or not."""
        output = self.functions.output
        return tensor.requires_grad or (
            output is not None
            and output.requires_grad
            and tensor.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
        )

    # -------------------------------------------------------------------------------- right and
    # wrong

    def _judge(self, asked: Asked) -> None:
        first, second = asked.given[asked.first], asked.given[asked.second]
        tries: list[dict[str, Tensor]] = []
        if first.requires_grad and not second.requires_grad:
            tries = (
                [{asked.first: answer} for answer in answers(first.detach(), second.detach())]
                if not words(asked.first) & DISTANCES
                else []
            )
            told = (
                "is higher for scores that are right about every label than for such as are wrong"
            )
        elif first.requires_grad and first.shape == second.shape and first.is_floating_point():
            high, low = (
                torch.full_like(first, SURE / 2).detach(),
                torch.full_like(second, -SURE / 2).detach(),
            )
            if words(asked.first) & FIRST and words(asked.second) & SECOND:
                tries = [
                    {asked.first: high, asked.second: low},
                    {asked.first: low, asked.second: high},
                ]
            told = f"is higher where {asked.first} is above {asked.second} than where it is below"
        values = [_value(asked, change) for change in tries]
        if (
            len(values) == 2
            and all(map(math.isfinite, values))
            and values[0] > values[1] + MARGIN * max(1.0, abs(values[0]), abs(values[1]))
        ):
            self.watch.tell(
                "BH861",
                f"{asked.name} {told}: {values[0]:.3g} against {values[1]:.3g}",
                asked.place,
            )

    # ------------------------------------------------------------------------------------ no
    # gradient

    def _weighted(self, name: str, result: Any, *factors: Any, **_: Any) -> None:
        for factor in factors if self.cut and isinstance(result, Tensor) else ():
            if (known := self._cut_off(factor)) and not result.requires_grad:
                self.cut[id(result)] = (weakref.ref(result), known)

    def _added(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        if not self.cut or not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return
        for term, other in ((a, b), (b, a)):
            if (known := self._cut_off(term)) and other.requires_grad and other.numel() == 1:
                self.functions.often(
                    "BH862",
                    f"what {known} gives is added to the loss and carries no gradient: nothing is"
                    " learned from it",
                )

    def _cut_off(self, tensor: Any) -> str:
        reference, name = self.cut.get(id(tensor), (None, ""))
        return name if reference is not None and reference() is tensor else ""


def answers(scores: Tensor, labels: Tensor) -> list[Tensor]:
    """Scores that are right about every label, and such as are wrong about each; nothing where it
    is not clear what they would be.

    Args:
        scores: [B, C, …] or [B, …, C] with whole labels, or of the shape of labels that are 0 and
            1; raw, probabilities or their logarithms.
        labels: [B, …] from 0 to C - 1, or 0 and 1.

    >>> right, wrong = answers(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> right.argmax(1).tolist(), wrong.argmax(1).tolist()
    ([0, 1, 1], [1, 0, 0])
    """
    if not scores.is_floating_point() or labels.numel() < 2:
        return []
    whole = not labels.is_floating_point()
    if labels.shape == scores.shape:
        truth = labels.to(scores.dtype)
        if (
            not bool(((truth == 0) | (truth == 1)).all())
            or truth.unique().numel() < 2
            or (bool((scores >= 0).all()) and bool((scores > 1).any()))
        ):
            return []  # labels of another kind, or distances
        other, axis = 1 - truth, None
    elif whole and scores.ndim == labels.ndim + 1:
        axis = 1 if scores.shape[:1] + scores.shape[2:] == labels.shape else scores.ndim - 1
        if scores.movedim(axis, -1).shape[:-1] != labels.shape or scores.shape[axis] < 2:
            return []
        classes, codes = scores.shape[axis], labels.long()
        if bool((codes < 0).any() or (codes >= classes).any()) or codes.unique().numel() < 2:
            return []
        one_hot = [
            nn.functional.one_hot((codes + shift) % classes, classes)
            .movedim(-1, axis)
            .to(scores.dtype)
            for shift in (0, 1)
        ]
        truth, other = one_hot
    else:
        return []
    likely, unlikely = LIKELY, (1 - LIKELY) / (scores.shape[axis] - 1 if axis is not None else 1)
    if bool((scores >= 0).all() and (scores <= 1).all()):
        return [torch.where(side > 0, likely, unlikely) for side in (truth, other)]
    if axis is not None and bool((scores.logsumexp(axis).abs() < MARGIN).all()):
        return [torch.where(side > 0, likely, unlikely).log() for side in (truth, other)]
    return [(2 * side - 1) * SURE for side in (truth, other)]


def _function(code: CodeType, owner: Any, globals_: dict[str, Any]) -> Callable[..., Any] | None:
    """What can be called again without a trace: a function, or a loss module without weights,
    copied; None of what counts, prints or draws otherwise.
    """
    if leaves_traces(code, globals_):
        return None
    if owner is not None:
        return copy.deepcopy(owner) if next(owner.parameters(), None) is None else None
    return next(
        (f for f in gc.get_referrers(code) if isinstance(f, FunctionType) and f.__code__ is code),
        None,
    )


def leaves_traces(code: CodeType, globals_: dict[str, Any], depth: int = 0) -> bool:
    """Whether a function, or one of its file that it names, sets names outside of itself, or calls
    what keeps, writes or draws.

    >>> (leaves_traces((lambda scores: print(scores)).__code__, {}),
    ...     leaves_traces((lambda scores: scores.mean()).__code__, {}))
    (True, False)
    """
    outside = any(
        i.opname in ("STORE_GLOBAL", "STORE_ATTR")
        or (i.opname == "STORE_DEREF" and i.argval in code.co_freevars)
        for i in get_instructions(code)
    )
    if outside or TRACES & set(code.co_names) or depth > DEEPEST:
        return True
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    inner += [
        f.__code__
        for n in code.co_names
        if isinstance(f := globals_.get(n), FunctionType)
        and f.__code__ is not code
        and f.__globals__ is globals_
    ]
    return any(leaves_traces(c, globals_, depth + 1) for c in inner)


def _value(asked: Asked, change: dict[str, Tensor]) -> float:
    """What the loss is with other scores; nan where it does not take them."""
    given = {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in (asked.given | change).items()
    }
    with torch.random.fork_rng(devices=[]):
        try:
            return float(asked.function(**given).detach())
        except Exception:  # it may ask for a gradient, or for scores within bounds
            return math.nan
