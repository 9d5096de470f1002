"""Scale of inputs and first scores, and dropout on scores."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.watch.events import Call, Listener
from training.watch.forwards import Forwards
from training.watch.losses import SUPERVISED, THROUGH, Functions, maker
from training.watch.networks import scores_of, twin
from training.watch.record import Watch

MANY = 10  # least number of steps
BARELY, LARGE = 0.01, 40.0  # least deviation relative to the mean; largest deviation
MEANT = {"BH846": "rows barely differ", "BH876": "layers are made for one of about 1"}
FEWEST = 4  # least number of values per row, since a single column may well have an offset
GUESSING, LEAST, LABELS = 3.0, 3.0, 8  # factor on the loss of guessing; least loss; least labels
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
LINEAR = ("Addmm", "Mm", "Bmm", "Convolution")  # names of their graph nodes


class Dropped:
    """Key of the graph node of dropout on scores."""


class Scales(Listener):
    """Listener for networks with one float input, for dropout and for losses."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.first: dict[int, float] = {}  # mean of each network's first input
        self.seen: dict[int, list[str]] = {}  # findings by network and step
        self.pending: Call | None = None
        self.begun: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        """Install hooks for losses and dropout."""
        self.functions.listen(("cross_entropy",), before=self._begins)
        self.functions.listen(DROPOUTS, after=self._dropped)
        self.functions.listen(SUPERVISED, before=self._scored)

    def forwarded(self, call: Call) -> None:
        """Keep the first network that receives a batch."""
        if call.grad and call.training and self.pending is None and call.rows:
            self.pending = call

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the input values of the first steps."""
        call, self.pending = self.pending, None
        if call is None or len(call.inputs) != 1 or not self.forwards.trains(call.module):
            return
        given = call.inputs[0]
        if not given.is_floating_point() or given.ndim < 2 or given[0].numel() < FEWEST:
            return
        if given.requires_grad or not bool(given.isfinite().all()):
            return
        mean, deviation = spread(given)
        rule = rule_of(mean, deviation, mean - self.first.setdefault(id(call.module), mean))
        seen = self.seen.setdefault(id(call.module), [])
        seen.append(rule)
        # a network may scale its inputs itself
        if len(seen) == MANY == seen.count(rule) and rule and rule_of(*entering(call)) == rule:
            told = f"what {type(call.module).__name__} is trained on has a mean of {mean:.3g} and a"
            told = f"{told} deviation of {deviation:.2g}: {MEANT[rule]}"
            self.watch.tell(rule, told, call.place)

    def _begins(
        self, name: str, input: Tensor, target: Tensor, *others: Any, **options: Any
    ) -> None:
        """Check the first loss of a network whose weights were not loaded."""
        call = self.forwards.last
        if call is None or not input.requires_grad or call.module in self.begun or not call.grad:
            return
        self.begun.add(call.module)
        ignored = options.get("ignore_index", -100)
        if others or options.get("weight") is not None or target.dtype != torch.int64:
            return
        if input.ndim < 2 or int((target != ignored).sum()) < LABELS:
            return
        if any(m in self.forwards.loaded for m in call.module.modules()):
            return
        # a program may scale the output of a network
        scores, begins = input.detach().float(), not self.forwards.trains(call.module)
        norms = [t.detach().float().norm() for t in call.outputs if t.numel() == input.numel()]
        if not begins or not any(torch.isclose(n, scores.norm(), rtol=1e-3) for n in norms):
            return
        guessing = math.log(max(classes := scores.shape[1], 2))
        loss = float(F.cross_entropy(scores, target, ignore_index=ignored))
        if max(GUESSING * guessing, LEAST) < loss < math.inf:
            told = (
                f"the first cross-entropy is {loss:.3g}, guessing among {classes} classes gives"
                f" {guessing:.3g}: the scores of {type(call.module).__name__} begin with a"
                f" deviation of {float(scores.std()):.2g}, where at most about 1 is usual"
            )
            self.watch.tell("BH847", told)

    def _dropped(self, name: str, result: Tensor, input: Tensor, *_: Any, **given: Any) -> None:
        """Remember dropout on the output of a linear layer."""
        node = result.grad_fn
        at_work = given.get("training") and given.get("p")
        if at_work and node is not None and maker(input) in LINEAR:
            node.metadata[Dropped] = True

    def _scored(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        node: Any = input.grad_fn
        while node is not None and Dropped not in node.metadata:  # skip views and casts
            kind = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
            node = node.next_functions[0][0] if kind in THROUGH else None
        if node is not None and not target.requires_grad:
            told = "is given the result of dropout: scores are set to 0 at random, the others are"
            self.functions.often("BH837", f"{name} {told} scaled up")


def rule_of(mean: float, deviation: float, moved: float = 0.0) -> str:
    """Return the rule that a scale breaks, or an empty text. The mean has changed by `moved`.

    >>> rule_of(116.0, 0.2), rule_of(3.0, 300.0), rule_of(0.0, 1.0)
    ('BH846', 'BH876', '')
    """
    if 0 < deviation + abs(moved) < BARELY * abs(mean):
        return "BH846"
    return "BH876" if deviation > LARGE else ""


def spread(values: Tensor) -> tuple[float, float]:
    """Return the mean and the standard deviation."""
    values = values.detach().double()
    return float(values.mean()), float(values.std())


def entering(call: Call) -> tuple[float, float]:
    """Return mean and deviation of the input of the first linear layer or convolution. A network
    may scale its inputs itself. Both are 0 if the input cannot be observed.
    """
    network, seen = twin(call.module), list[tuple[float, float]]()
    if network is not None:
        for layer in (m for m in network.modules() if isinstance(m, LAYERS)):
            layer.register_forward_pre_hook(lambda _, given: seen.append(spread(given[0])))
        scores_of(network, call)
    return seen[0] if seen else (0.0, 0.0)
