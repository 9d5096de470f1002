"""What loss functions and decisions are given: probabilities where scores belong, shapes that
broadcast, the wrong axis.
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

from training.watch.forwards import Call, Forwards
from training.watch.record import Listener, Place, Watch

NEAR, FEW = 1e-4, 0.02
BOUNDS = {
    "Relu": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
}
SUPERVISED = {
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
}
TWICE = 2
JUDGING = {
    "argmax", "max", "topk", "softmax", "sigmoid", "round", "sub", "gt", "ge", "eq", "squeeze",
    "flatten", "cross_entropy", "mse_loss", "l1_loss",
}  # fmt: skip
JUDGING |= {
    "__gt__",
    "__ge__",
    "__eq__",
    "nll_loss",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy",
}
THROUGH = (
    "View", "Squeeze", "Unsqueeze", "Reshape", "UnsafeView", "Select", "Slice", "Clamp", "ToCopy",
    "Transpose", "T", "Permute", "Alias",
)  # fmt: skip
# a flag that the program computes
DECIDED = re.compile(r"dropout\w*\(.*\btraining\s*=\s*(?!True\b)")
SUBTRACTIONS = ("sub", "__sub__", "__rsub__", "rsub", "subtract")
Hook = Callable[..., None]


def maker(tensor: Tensor, and_constants: bool = False) -> str:
    """What computed a tensor, seen through views and clamps, and where that is asked for through
    constants that are added; empty without a graph.

    >>> maker(torch.zeros(3, 1, requires_grad=True).sigmoid().squeeze(1))
    'Sigmoid'
    >>> maker(torch.zeros(3, requires_grad=True).exp() + 1e-4, and_constants=True)
    'Exp'
    """
    node = tensor.grad_fn
    for _ in range(6):
        name = (
            type(node).__name__.removesuffix("0").removesuffix("1").removesuffix("Backward")
            if node is not None
            else ""
        )
        adds = (
            and_constants
            and node is not None
            and name == "Add"
            and sum(n is not None for n, _ in node.next_functions) == 1
        )
        if not (name in THROUGH or adds) or node is None or not node.next_functions:
            return name
        node = node.next_functions[0][0]
    return ""


def probabilities(values: Tensor, dim: int) -> bool:
    """Whether values are at least 0 and add up to 1 along an axis."""
    return bool((values.min() >= 0) and ((values.sum(dim) - 1).abs().max() < NEAR))


class Functions(Listener, TorchFunctionMode):
    """Listens to functions and operators of torch."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        super().__init__()
        self.watch, self.forwards = watch, forwards
        self.counts: dict[tuple[str, object], int] = {}
        self.output: Tensor | None = None
        self.values: dict[Place, list[float]] = {}  # of losses with labels, by line
        self.valid = 0  # labels of the last mean that leaves some out
        self.before: dict[str, list[Hook]] = {}
        self.after: dict[str, list[Hook]] = {}
        self.on_any: list[Hook] = []  # given name, result, args and kwargs of every function
        for names, listener in (
            (("cross_entropy",), self._cross_entropy),
            (("nll_loss",), self._nll),
            (("ctc_loss",), self._ctc),
            (("binary_cross_entropy_with_logits",), self._bce_logits),
            (("binary_cross_entropy",), self._bce),
            (("kl_div",), self._kl),
            (("dropout",), self._dropout),
            (("scaled_dot_product_attention",), self._attention),
            (("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), self._distance),
            (("poisson_nll_loss",), self._counts),
            ((*SUBTRACTIONS, "eq", "ne", "__eq__"), self._operator),
            (("add", "__add__", "__radd__", "mul", "__mul__", "__rmul__"), self._met),
            (("softmax", "log_softmax", "argmax"), self._axis),
            (("normalize",), self._normalized),
        ):
            self.listen(names, listener)

    def listen(
        self, names: Iterable[str], before: Hook | None = None, after: Hook | None = None
    ) -> None:
        """Call `before(name, *args, **kwargs)` and `after(name, result, *args, **kwargs)` around
        functions of torch of those names.
        """
        for name in names:
            self.before.setdefault(name, []).extend([before] if before else [])
            self.after.setdefault(name, []).extend([after] if after else [])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, call, and look at the result."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.watch.quiet:
            return func(*args, **kwargs)
        if name in JUDGING and args and args[0] is self.output:
            self.forwards.judged()
        self._tell_listeners(self.before.get(name, ()), name, *args, **kwargs)
        result = func(*args, **kwargs)
        self._tell_listeners(self.after.get(name, ()), name, result, *args, **kwargs)
        self._tell_listeners(self.on_any, name, result, args, kwargs)
        if (
            name in SUPERVISED
            and isinstance(result, Tensor)
            and result.numel() == 1
            and result.requires_grad
        ):
            self.values.setdefault(self.watch.here(), []).append(float(result.detach()))
        return result

    def _tell_listeners(
        self, listeners: Iterable[Hook], name: str, *args: Any, **kwargs: Any
    ) -> None:
        for listener in listeners:
            with self.watch.unwatched():
                try:
                    listener(name, *args, **kwargs)
                except Exception as error:  # a program must run as it does without a watch
                    self.watch.failures.append(f"{name}: {type(error).__name__}: {error}")

    def forwarded(self, call: Call) -> None:
        """Remember the scores of a network."""
        self.output = next((t for t in call.outputs if t.is_floating_point()), None)

    def often(self, rule: str, message: str, times: int = TWICE) -> None:
        """Tell what was seen at one line so many times."""
        place = self.watch.here()
        key = (rule, place)
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] >= times:
            self.watch.tell(rule, message, place)

    def _told(self, scores: Tensor, target: Tensor) -> None:
        call = self.forwards.last
        if call is not None and scores.requires_grad and not target.requires_grad:
            self.watch.deliver(Listener.lost, call, scores, target)

    # ----------------------------------------------------------------------------------------
    # losses

    def _cross_entropy(
        self,
        name: str,
        input: Tensor,
        target: Tensor,
        weight: Any = None,
        *_: Any,
        ignore_index: int = -100,
        reduction: str = "mean",
        **__: Any,
    ) -> None:
        self._told(input, target)
        whole = target.dtype == torch.int64 and reduction == "mean"
        self.valid = (
            int((target != ignore_index).sum())
            if whole and bool((target == ignore_index).any())
            else 0
        )
        self._swapped(name, input, target)
        axis = 1 if input.ndim > 1 else 0
        self._cut(name, input, ("Relu", "Gelu", "Silu", "Sigmoid", "Tanh"))
        if reduction != "none":
            self._padding(target, ignore_index, weight)
        if input.shape[axis] == 1:
            self.often("BH818", "cross_entropy over one score a row is always 0")
        elif input.ndim > 1 and len(input) > 1 and probabilities(input.detach(), axis):
            self.often("BH301", "cross_entropy is given probabilities: it takes raw scores")

    def _nll(
        self,
        name: str,
        input: Tensor,
        target: Tensor,
        weight: Any = None,
        *_: Any,
        ignore_index: int = -100,
        reduction: str = "mean",
        **__: Any,
    ) -> None:
        self._told(input, target)
        if reduction != "none" and target.dtype == torch.int64:
            self._padding(target, ignore_index, weight)
        if (input.detach().logsumexp(1 if input.ndim > 1 else 0).abs() > 1e-2).any():
            self.often("BH303", "nll_loss is given values that are no log-probabilities")

    def _ctc(self, name: str, log_probs: Tensor, *_: Any, **__: Any) -> None:
        if log_probs.ndim > 1 and (log_probs.detach().logsumexp(-1).abs() > 1e-2).any():
            self.often(
                "BH303",
                "ctc_loss is given values that are no log-probabilities: log_softmax over the"
                " classes is missing",
            )

    def _bce_logits(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        self._told(input, target)
        self._swapped(name, input, target)
        self._cut(name, input, ("Relu", "Gelu", "Silu", "Tanh"))
        if maker(input) in ("Sigmoid", "Softmax"):
            self.often("BH302", f"{name} is given probabilities: it takes raw scores")

    def _bce(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        self._told(input, target)
        self._swapped(name, input, target)

    def _kl(
        self, name: str, input: Tensor, target: Tensor, *_: Any, log_target: bool = False, **__: Any
    ) -> None:
        self._swapped(name, input, target)
        if input.ndim > 1 and probabilities(input.detach(), -1):
            self.often(
                "BH305", "kl_div is given probabilities as its input: it takes log-probabilities"
            )
        elif not log_target and (target.detach() < -NEAR).any():
            self.often(
                "BH305", "kl_div is given log-probabilities as its target without log_target=True"
            )

    def _distance(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        self._told(input, target)
        self._out_of_reach(input, target)
        if input.shape != target.shape and input.numel() > 1 and target.numel() > 1:
            self.often(
                "BH310", f"{name} broadcasts {list(input.shape)} against {list(target.shape)}", 1
            )

    def _counts(
        self, name: str, input: Tensor, target: Tensor, *_: Any, log_input: bool = True, **__: Any
    ) -> None:
        self._told(input, target)
        if input.shape != target.shape and input.numel() > 1 and target.numel() > 1:
            self.often(
                "BH310", f"{name} broadcasts {list(input.shape)} against {list(target.shape)}", 1
            )

    def _padding(self, target: Tensor, ignored: int, weight: Tensor | None) -> None:
        """Whether labels at the end of sequences are the padding of the network's embedding, or one
        label where its tokens are padding, and count.
        """
        call = self.forwards.last
        given = call.inputs if call is not None else []
        sequences = [t for t in given if t.ndim == 2 and t.dtype == torch.int64]
        # a decoder's come second, and perhaps with a beginning that is no label
        tokens = next(
            (
                t
                for ts in (sequences, [t[:, 1:] for t in sequences])
                for t in ts
                if t.numel() == target.numel() > 0
            ),
            None,
        )
        if call is None or tokens is None:
            return
        labels = target.reshape(tokens.shape)
        for pad in {
            m.padding_idx
            for m in call.module.modules()
            if isinstance(m, nn.Embedding) and m.padding_idx is not None
        }:
            behind, filled = at_end(tokens, pad), at_end(labels, pad)
            if (
                pad != ignored
                and bool(filled.any())
                and bool(((labels == pad) == filled).all())
                and bool((tokens == pad).any())
            ):
                self._padded(filled, pad)
            elif (
                bool(behind.any())
                and bool(((tokens == pad) == behind).all())
                and len(values := labels[behind].unique()) == 1
            ):
                label = int(values)
                if label != ignored and (weight is None or float(weight[label])):
                    self._padded(behind, label)

    def _padded(self, places: Tensor, label: int) -> None:
        share = float(places.float().mean())
        if share > FEW:
            self.often(
                "BH828",
                f"{share:.0%} of the labels are padding ({label}), and count in the loss as"
                " others do",
            )

    def _out_of_reach(self, scores: Tensor, target: Tensor) -> None:
        low, high = BOUNDS.get(maker(scores), (-math.inf, math.inf))
        if target.numel() > 1 and float(((target < low) | (target > high)).float().mean()) > FEW:
            self.often(
                "BH825",
                f"scores come from {maker(scores).lower()}, which cannot reach labels beyond"
                f" {low:g} and {high:g}",
            )

    def _cut(self, name: str, input: Tensor, activations: tuple[str, ...]) -> None:
        if maker(input) in activations:
            self.often(
                "BH825",
                f"{name} is given the result of {maker(input).lower()}: scores that are cut off"
                " cannot tell classes apart",
            )

    def _swapped(self, name: str, input: Tensor, target: Tensor) -> None:
        if target.requires_grad and not input.requires_grad and torch.is_grad_enabled():
            self.often("BH306", f"{name} is given the labels first and the scores second")

    # ------------------------------------------------------------------------------ shapes and axes

    def _operator(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return
        if (
            a.shape == b.shape
            and a.requires_grad != b.requires_grad
            and self.output is not None
            and len(self.output) == (len(a) if a.ndim else 0)
        ):
            scores, target = (a, b) if a.requires_grad else (b, a)
            self._told(scores, target)
            self._out_of_reach(scores, target)
        if {a.ndim, b.ndim} != {1, 2}:
            return
        column, flat = (a, b) if a.ndim == 2 else (b, a)
        if (
            column.shape[1] != 1
            or len(column) < 2
            or len(column) != len(flat)
            or column.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
        ):
            return
        compared = name in ("eq", "ne", "__eq__")
        if compared and torch.equal(column[:, 0], flat):
            return  # labels against themselves: which rows are alike
        if (compared and self.output is not None and len(self.output) == len(flat)) or (
            not compared and column.requires_grad != flat.requires_grad
        ):
            self.often(
                "BH310", f"{list(column.shape)} meets {list(flat.shape)}: each row meets all others"
            )

    def _met(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        """A number a row, as a layer of width 1 gives it [B, 1], meets another number a row [B]."""
        if isinstance(a, Tensor) and isinstance(b, Tensor) and {a.ndim, b.ndim} == {1, 2}:
            column, flat = (a, b) if a.ndim == 2 else (b, a)
            if (
                column.shape[1] == 1
                and 1 < len(column) == len(flat)
                and type(column.grad_fn).__name__.startswith(("Addmm", "Embedding"))
            ):
                self.often(
                    "BH310",
                    f"what a layer gives as {list(column.shape)} meets {list(flat.shape)}: each row"
                    " meets all others",
                )

    def _axis(self, name: str, input: Tensor, dim: Any = None, *_: Any, **kwargs: Any) -> None:
        dim = kwargs.get("axis", dim)
        if name == "softmax" and input is self.output and not self.forwards.stack:
            self._of_one_score(input, self.forwards.last)
        if (
            self.output is not None
            and (
                input is self.output or (name == "softmax" and input.shape == self.output.shape)
            )  # divided by a temperature, perhaps
            and dim == 0
            and input.ndim > 1
            and (input.ndim > 2 or input.shape[0] != input.shape[1])
            and input.shape[1] > 1
            and not self.forwards.stack
        ):
            self.often(
                "BH413",
                f"{name} over axis 0 of scores {list(input.shape)} mixes the rows of the batch",
            )

    def _of_one_score(self, scores: Tensor, last: Call | None) -> None:
        """Softmax of scores [B], one a row, of a network that was asked without gradients."""
        rows = (
            len(last.inputs[0])
            if last is not None and not last.grad and last.inputs and last.inputs[0].ndim > 1
            else 0
        )
        if scores.ndim == 1 and len(scores) == rows > 1:
            self.often(
                "BH413",
                f"softmax over the one score of each of {rows} rows mixes the rows of the batch:"
                " sigmoid makes it a probability",
                1,
            )

    def _normalized(
        self, name: str, input: Tensor, p: float = 2.0, dim: int = 1, *_: Any, **__: Any
    ) -> None:
        """Rows of a result [B, D] of a network, each column divided by its norm over the batch."""
        if (
            dim == 0
            and input.ndim == 2
            and input.grad_fn is not None
            and self.forwards.stack
            and self.forwards.given == len(input) != input.shape[1]
        ):
            self.often(
                "BH413", f"{name} over axis 0 of {list(input.shape)} mixes the rows of the batch"
            )

    def _dropout(
        self, name: str, input: Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any
    ) -> None:
        stack = self.forwards.stack
        if (
            training
            and p > 0
            and stack
            and not stack[-1].training
            and not isinstance(stack[-1], nn.modules.dropout._DropoutNd)
        ):
            place = self.watch.here()
            if DECIDED.search(linecache.getline(place.path, place.line)):
                return  # the program decides when, and samples in evaluation on purpose
            self.often("BH403", f"dropout goes on in {type(stack[-1]).__name__} in eval mode", 1)

    def _attention(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *_: Any,
        **__: Any,
    ) -> None:
        stack = self.forwards.stack
        if dropout_p > 0 and stack and not stack[-1].training:
            self.often(
                "BH404", f"attention drops out in {type(stack[-1]).__name__} in eval mode", 1
            )


def at_end(rows: Tensor, index: int) -> Tensor:
    """Which places of [B, T] hold a number, and nothing else behind them.

    >>> at_end(torch.tensor([[5, 0, 6, 0, 0]]), 0).long().tolist()
    [[0, 0, 0, 1, 1]]
    """
    return ~(rows != index).flip(1).long().cummax(1).values.flip(1).bool()
