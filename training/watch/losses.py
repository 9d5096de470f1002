"""Arguments of torch functions: probabilities as scores, broadcast shapes, wrong axes, and dropout
in eval mode.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from training.watch.events import Call, Listener, Place
from training.watch.forwards import Forwards
from training.watch.record import Watch

NEAR, FEW, TWICE = 1e-4, 0.02, 2
DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
DIRECTED = (
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
)  # fmt: skip
SUPERVISED = {*DISTANCES, *DIRECTED}
JUDGING = {
    *SUPERVISED, "argmax", "max", "topk", "softmax", "sigmoid", "round", "sub", "gt", "ge", "eq",
    "squeeze", "flatten", "__gt__", "__ge__", "__eq__",
}  # fmt: skip
THROUGH = (
    "View", "Squeeze", "Unsqueeze", "Reshape", "UnsafeView", "Select", "Slice", "Clamp", "ToCopy",
    "Transpose", "T", "Permute", "Alias",
)  # fmt: skip
SUBTRACTIONS = ("sub", "__sub__", "__rsub__", "rsub", "subtract")
EQUALITIES = ("eq", "ne", "__eq__")
UNIT = (0.0, 1.0)
BOUNDS = {"Relu": (0.0, math.inf), "Sigmoid": UNIT, "Tanh": (-1.0, 1.0), "Softmax": UNIT}
CUTTING = ("Relu", "Gelu", "Silu", "Sigmoid", "Tanh")
# a dropout flag that the program computes
DECIDED = re.compile(r"dropout\w*\(.*\btraining\s*=\s*(?!True\b)")
Hook = Callable[..., None]


def maker(tensor: Tensor, and_constants: bool = False) -> str:
    """Return the name of the operation that computed a tensor, or an empty text without a graph.
    Views and clamps are skipped, and added constants on request.

    >>> maker(torch.zeros(3, 1, requires_grad=True).sigmoid().squeeze(1))
    'Sigmoid'
    >>> maker(torch.zeros(3, requires_grad=True).exp() + 1e-4, and_constants=True)
    'Exp'
    """
    node = tensor.grad_fn
    for _ in range(6):
        if node is None:
            return ""
        name = type(node).__name__.rstrip("01").removesuffix("Backward")
        before = [n for n, _ in node.next_functions]
        adds = and_constants and name == "Add" and sum(n is not None for n in before) == 1
        if not (name in THROUGH or adds) or not before:
            return name
        node = before[0]
    return ""


def probabilities(values: Tensor, dim: int) -> bool:
    """Check that values are at least 0 and add up to 1 along an axis."""
    return bool((values.min() >= 0) and ((values.sum(dim) - 1).abs().max() < NEAR))


class Functions(Listener, TorchFunctionMode):
    """Listener for functions and operators of torch."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        super().__init__()
        self.watch, self.forwards = watch, forwards
        self.counts: dict[tuple[str, Place], int] = {}
        self.output: Tensor | None = None  # scores of the last network
        self.values: dict[Place, list[float]] = {}  # losses with labels, by line
        self.valid = 0  # labels in the last mean that ignores some
        self.before: dict[str, list[Hook]] = {}
        self.after: dict[str, list[Hook]] = {}
        for names, listener in (
            ((*DIRECTED, "kl_div"), self._directed),
            ((*DISTANCES, "poisson_nll_loss"), self._distance),
            (("cross_entropy",), self._counted),
            (("cross_entropy", "binary_cross_entropy_with_logits"), self._scores),
            (("nll_loss", "ctc_loss"), self._logarithms),
            (("kl_div",), self._kl),
            ((*SUBTRACTIONS, *EQUALITIES), self._operator),
            (("softmax", "log_softmax", "argmax"), self._axis),
            (("dropout",), self._dropout),
            (("scaled_dot_product_attention",), self._attention),
        ):
            self.listen(names, listener)

    def listen(
        self, names: Iterable[str], before: Hook | None = None, after: Hook | None = None
    ) -> None:
        """Call `before(name, *args, **kwargs)` and `after(name, result, *args, **kwargs)` around
        the torch functions of these names.
        """
        for name in names:
            self.before.setdefault(name, []).extend([before] if before else [])
            self.after.setdefault(name, []).extend([after] if after else [])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Check the arguments, call the function and check the result."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.watch.quiet:
            return func(*args, **kwargs)
        if name in JUDGING and args and args[0] is self.output:
            self.forwards.judged()
        self._tell(self.before.get(name, ()), name, *args, **kwargs)
        result = func(*args, **kwargs)
        self._tell(self.after.get(name, ()), name, result, *args, **kwargs)
        loss = result if name in SUPERVISED and isinstance(result, Tensor) else None
        if loss is not None and loss.numel() == 1 and loss.requires_grad:
            self.values.setdefault(self.watch.here(), []).append(float(loss.detach()))
        return result

    def _tell(self, listeners: Iterable[Hook], name: str, *args: Any, **kwargs: Any) -> None:
        for listener in listeners:
            with self.watch.unwatched():
                try:
                    listener(name, *args, **kwargs)
                except Exception as error:  # the program must run as it does without a watch
                    self.watch.failures.append(f"{name}: {type(error).__name__}: {error}")

    def forwarded(self, call: Call) -> None:
        """Remember the scores of a network."""
        self.output = next((t for t in call.outputs if t.is_floating_point()), None)

    def often(self, rule: str, message: str, times: int = TWICE) -> None:
        """Report a message that one line has caused this many times."""
        place = self.watch.here()
        self.counts[rule, place] = self.counts.get((rule, place), 0) + 1
        if self.counts[rule, place] >= times:
            self.watch.tell(rule, message, place)

    def _told(self, scores: Tensor, target: Tensor) -> None:
        call = self.forwards.last
        if call is not None and scores.requires_grad and not target.requires_grad:
            self.watch.deliver(Listener.lost, call, scores, target)

    def _directed(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        """Check a loss that takes scores first and labels second."""
        if name != "kl_div":
            self._told(input, target)
        if target.requires_grad and not input.requires_grad and torch.is_grad_enabled():
            self.often("BH306", f"{name} is given the labels first and the scores second")

    def _distance(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        self._told(input, target)
        if name in DISTANCES:
            self._out_of_reach(input, target)
        if input.shape != target.shape and input.numel() > 1 and target.numel() > 1:
            told = f"{name} broadcasts {list(input.shape)} against {list(target.shape)}"
            self.often("BH310", told, 1)

    def _out_of_reach(self, scores: Tensor, target: Tensor) -> None:
        low, high = BOUNDS.get(maker(scores), (-math.inf, math.inf))
        if target.numel() > 1 and float(((target < low) | (target > high)).float().mean()) > FEW:
            told = f"scores come from {maker(scores).lower()}, which cannot reach labels beyond"
            self.often("BH825", f"{told} {low:g} and {high:g}")

    def _counted(self, name: str, input: Tensor, target: Tensor, *_: Any, **options: Any) -> None:
        """Count the labels of a mean that ignores some labels."""
        self.valid = 0
        if target.dtype == torch.int64 and options.get("reduction", "mean") == "mean":
            counted = target != options.get("ignore_index", -100)
            self.valid = 0 if bool(counted.all()) else int(counted.sum())

    def _scores(self, name: str, input: Tensor, *_: Any, **__: Any) -> None:
        """Check the scores of a loss that takes raw scores."""
        made, of_classes = maker(input), name == "cross_entropy"
        axis = min(1, input.ndim - 1)
        if of_classes and input.shape[axis] == 1:
            self.often("BH818", "cross_entropy over one score a row is always 0")
        elif of_classes and axis and len(input) > 1 and probabilities(input.detach(), axis):
            self.often("BH301", "cross_entropy is given probabilities: it takes raw scores")
        elif not of_classes and made in ("Sigmoid", "Softmax"):
            self.often("BH302", f"{name} is given probabilities: it takes raw scores")
        elif made in CUTTING:
            told = f"{name} is given the result of {made.lower()}: scores that are cut off"
            self.often("BH825", f"{told} cannot tell classes apart")

    def _logarithms(self, name: str, input: Tensor, *_: Any, **__: Any) -> None:
        axis = -1 if name == "ctc_loss" else min(1, input.ndim - 1)
        if bool((input.detach().logsumexp(axis).abs() > 1e-2).any()):
            self.often("BH303", f"{name} is given values that are no log-probabilities")

    def _kl(self, name: str, input: Tensor, target: Tensor, *_: Any, **options: Any) -> None:
        if input.ndim > 1 and probabilities(input.detach(), -1):
            self.often("BH305", "kl_div is given probabilities first: it takes log-probabilities")
        elif not options.get("log_target") and bool((target.detach() < -NEAR).any()):
            self.often("BH305", "kl_div is given log-probabilities second, without log_target=True")

    def _operator(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        """Check a difference or comparison of scores and labels."""
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return
        rows = self.output.shape[:1] if self.output is not None else None
        if a.shape == b.shape and a.ndim and a.requires_grad != b.requires_grad:
            if rows == a.shape[:1]:
                scores, target = (a, b) if a.requires_grad else (b, a)
                self._told(scores, target)
                self._out_of_reach(scores, target)
            return
        column, flat = (a, b) if a.ndim == 2 else (b, a)
        if (
            flat.ndim != 1
            or column.shape != (len(flat), 1)
            or len(flat) < 2
            # a comparison of each row with all others
            or column.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
            or (name in EQUALITIES and torch.equal(column[:, 0], flat))
        ):
            return
        if rows == flat.shape if name in EQUALITIES else column.requires_grad != flat.requires_grad:
            told = f"{list(column.shape)} meets {list(flat.shape)}: each row meets all others"
            self.often("BH310", told)

    def _axis(self, name: str, input: Tensor, dim: Any = None, *_: Any, **options: Any) -> None:
        """Check the axis for the scores of a batch, perhaps divided by a temperature."""
        if (
            self.output is not None
            and (input is self.output or (name == "softmax" and input.shape == self.output.shape))
            and options.get("axis", dim) == 0
            and input.ndim > 1
            and input.shape[1] > 1
            and (input.ndim > 2 or input.shape[0] != input.shape[1])
            and not self.forwards.stack
        ):
            told = f"{name} over axis 0 of scores {list(input.shape)} mixes the rows of the batch"
            self.often("BH413", told)

    def _dropout(
        self, name: str, input: Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any
    ) -> None:
        last = self.forwards.stack[-1] if self.forwards.stack else None
        dropout = isinstance(last, nn.modules.dropout._DropoutNd)
        if training and p > 0 and last is not None and not last.training and not dropout:
            place = self.watch.here()
            # such a program samples in evaluation on purpose
            if not DECIDED.search(linecache.getline(place.path, place.line)):
                self.often("BH403", f"dropout goes on in {type(last).__name__} in eval mode", 1)

    def _attention(self, name: str, *_: Any, dropout_p: float = 0.0, **__: Any) -> None:
        stack = self.forwards.stack
        if dropout_p > 0 and stack and not stack[-1].training:
            told = f"attention drops out in {type(stack[-1]).__name__} in eval mode"
            self.often("BH404", told, 1)
