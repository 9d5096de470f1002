"""On which scale inputs and first scores are: rows that barely differ or are large, fractions that
are cut off, scores that start far too large.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.watch.forwards import Call, Forwards, Norm, twin
from training.watch.losses import Functions
from training.watch.networks import scores_of
from training.watch.record import Listener, Place, Watch

MANY, MOST = 10, 200  # steps
BARELY, LARGE = 0.01, 40.0  # of the size of the mean; deviation
FEWEST = 4  # values of a row: a single column has an offset now and then
GUESSING, LABELS = 3.0, 8  # times the loss of guessing; labels of a batch
LEAST = 3.0  # loss
RARE = 0.25  # share of one of two classes
CUT, VALUES, WHOLE = 20, 16, 0.1  # times, values of a tensor, share of them that are whole anyway
CASTS = ("to", "byte", "int", "long", "short", "type")
BACK = (
    "float", "double", "half", "bfloat16", "to", "type", "sub", "__sub__", "div", "__truediv__",
    "mul", "__mul__",
)  # fmt: skip
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)
Given = weakref.ref[Tensor]


@dataclass(eq=False)
class Spread:
    """All values that a network was given in training."""

    network: nn.Module
    place: Place
    steps: int = 0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0  # around the first mean
    first: float = 0.0
    entering: float = 0.0  # deviation of what the first layer is given


class Scales(Listener):
    """Listens to networks that learn from one float tensor, to casts and to the first
    cross-entropy.
    """

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.of: dict[int, Spread] = {}
        self.pending: list[Call] = []
        self.begun: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.leaning: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.cut: list[tuple[Given, Given]] = []  # whole numbers, and the fractions that they were

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("cross_entropy",), before=self._begins)
        self.functions.listen(("binary_cross_entropy_with_logits",), before=self._leans)
        self.functions.listen(CASTS, after=self._cast)
        self.functions.listen(BACK, before=self._back)

    # ----------------------------------------------------------------------------------------
    # inputs

    def forwarded(self, call: Call) -> None:
        """Keep the first networks that see a batch."""
        if call.grad and call.training and not self.pending and call.rows:
            self.pending.append(call)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Count the values of this step."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for call in self.pending:
            fractions = [t for t in call.inputs if t.is_floating_point()]
            if len(fractions) == len(call.inputs) == 1 and any(
                id(p) in held for p in call.module.parameters()
            ):
                self._count(call, fractions[0].detach())
        self.pending.clear()

    def _count(self, call: Call, given: Tensor) -> None:
        if (
            given.ndim < 2
            or given[0].numel() < FEWEST
            or given.requires_grad
            or not bool(given.isfinite().all())
        ):
            return
        known = self.of.get(id(call.module))
        if known is None or known.network is not call.module:
            known = self.of[id(call.module)] = Spread(
                call.module, call.place, first=float(given.double().mean())
            )
        known.steps += 1
        if known.steps == MANY and float(given.double().std()) > LARGE:
            known.entering = entering(call)
        if known.steps <= MOST:
            apart = given.double() - known.first
            known.count += apart.numel()
            known.total += float(apart.sum())
            known.squares += float((apart**2).sum())

    def _cast(self, name: str, result: Any, given: Any, *_: Any, **__: Any) -> None:
        """Numbers between 0 and 1 become whole ones."""
        if (
            not isinstance(given, Tensor)
            or not isinstance(result, Tensor)
            or not given.is_floating_point()
            or result.is_floating_point()
        ):
            return
        if (
            result.dtype == torch.bool
            or given.numel() < VALUES
            or given.requires_grad
            or result.is_complex()
        ):
            return
        values = given.detach().reshape(-1)[:10_000]
        whole = float((values == values.round()).float().mean())
        if (
            whole < WHOLE + float((values == 1).float().mean())
            and float(values.min()) >= 0
            and 0 < float(values.max()) <= 1
        ):
            self.cut = [*self.cut[-7:], (weakref.ref(result), weakref.ref(given))]

    def _back(self, name: str, given: Any, *others: Any, **kwargs: Any) -> None:
        """What was cut to whole numbers is reckoned with as a fraction; beside the fractions that
        it was, it is their whole part.
        """
        known = next((k for k in self.cut if k[0]() is given), None)
        if (
            known is None
            or any(o is known[1]() for o in others)
            or not self._to_fraction(name, given, others, kwargs)
        ):
            return
        self.cut.remove(known)
        self.functions.often(
            "BH846",
            f"numbers between 0 and 1 are cut to whole ones ({given.dtype}): nearly all of them"
            " become 0",
            CUT,
        )

    def _to_fraction(
        self, name: str, given: Tensor, others: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        kinds = [v for v in (*others, *kwargs.values()) if isinstance(v, torch.dtype)]
        if name in ("to", "type"):
            return any(k.is_floating_point for k in kinds)
        return (
            name in BACK[:4]
            or any(isinstance(v, float) for v in others)
            or "truediv" in name
            or name == "div"
        )

    # ----------------------------------------------------------------------------------------
    # scores

    def _begins(
        self,
        name: str,
        input: Tensor,
        target: Tensor,
        weight: Any = None,
        *_: Any,
        ignore_index: int = -100,
        reduction: str = "mean",
        **more: Any,
    ) -> None:
        """The first loss of a network that was not loaded."""
        call = self.forwards.last
        if call is None or not input.requires_grad or call.module in self.begun or not call.grad:
            return
        self.begun.add(call.module)
        parameters = list(call.module.parameters())
        if any(m in self.forwards.loaded for m in call.module.modules()) or any(
            id(p) in self.forwards.trained for p in parameters
        ):
            return
        if (
            target.dtype != torch.int64
            or reduction != "mean"
            or weight is not None
            or any(t is target for t in call.inputs)
            or input.ndim < 2
        ):
            return
        output = next(
            (t for t in call.outputs if t.is_floating_point() and t.numel() == input.numel()), None
        )
        scores, classes = input.detach().float(), input.shape[1]
        if (
            output is None
            or int((target != ignore_index).sum()) < LABELS
            or classes < 2
            or not same_values(output.detach().float(), scores)
        ):
            return
        loss, guessing = (
            float(F.cross_entropy(scores, target, ignore_index=ignore_index)),
            math.log(classes),
        )
        if loss > max(GUESSING * guessing, LEAST) and math.isfinite(loss):
            told = (
                f"the first cross-entropy is {loss:.3g}, guessing among {classes} classes gives"
                f" {guessing:.3g}"
            )
            size = float(scores.std())
            self.watch.tell(
                "BH847",
                f"{told}: the scores of {type(call.module).__name__} begin with a deviation of"
                f" {size:.2g}, where at most about 1 is usual",
            )

    def _leans(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        """The first decisions of a network whose last bias is to begin at the share of the rare
        class.
        """
        call = self.forwards.last
        if (
            call is None
            or not input.requires_grad
            or not call.grad
            or call.module in self.leaning
            or input.numel() < LABELS
            or input.shape != target.shape
        ):
            return
        self.leaning.add(call.module)
        if any(m in self.forwards.loaded for m in call.module.modules()) or any(
            id(p) in self.forwards.trained for p in call.module.parameters()
        ):
            return
        share, begun = (
            float(target.detach().double().mean()),
            float(torch.sigmoid(input.detach().double()).mean()),
        )
        rare = min(share, 1 - share)
        if 0 < rare < RARE and abs(begun - (1 - share)) < rare:
            told = (
                f"{share:.0%} of the labels are 1, and the first scores of"
                f" {type(call.module).__name__} say {begun:.0%}"
            )
            self.watch.tell(
                "BH847",
                f"{told}: the bias of its last layer begins at the share of the other class, its"
                " sign is wrong",
                call.place,
            )

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """Inputs that barely differ."""
        for known in self.of.values():
            if known.steps < MANY or not known.count or begins_with_norm(known.network):
                continue
            shift = known.total / known.count
            mean, deviation = (
                known.first + shift,
                math.sqrt(max(known.squares / known.count - shift**2, 0.0)),
            )
            if deviation < BARELY * abs(mean) and not (deviation == 0 and mean in (0.0, 1.0)):
                told = (
                    f"all values that {type(known.network).__name__} is trained on lie at"
                    f" {mean:.3g} with a deviation of {deviation:.2g}"
                )
                self.watch.tell(
                    "BH846", f"{told}: rows barely differ beside their offset", known.place
                )
            elif deviation > LARGE < known.entering:
                told = (
                    f"the values that {type(known.network).__name__} is trained on have a mean of"
                    f" {mean:.3g} and a deviation of {deviation:.3g}"
                )
                self.watch.tell("BH876", f"{told}, where about 1 is meant", known.place)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same values, in the same order or with two axes exchanged."""
    return bool(torch.isclose(a.double().sum(), b.double().sum(), rtol=1e-4, atol=1e-4)) and bool(
        torch.isclose(a.double().norm(), b.double().norm(), rtol=1e-4)
    )


def entering(call: Call) -> float:
    """The deviation of what the first linear layer or convolution is given: a network may scale its
    inputs by itself; 0 where it cannot be seen.
    """
    network, seen = twin(call.module), []
    if network is None:
        return 0.0
    for layer in (m for m in network.modules() if isinstance(m, LAYERS)):
        layer.register_forward_pre_hook(
            lambda _, given: seen.append(float(given[0].detach().double().std()))
        )
    scores_of(network, call, lambda t: t)
    return seen[0] if seen else 0.0


def begins_with_norm(network: nn.Module) -> bool:
    """Whether the first layer takes the offset off.

    >>> (begins_with_norm(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))),
    ...     begins_with_norm(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))))
    (True, False)
    """
    first = next(
        (
            m
            for m in network.modules()
            if next(m.parameters(recurse=False), None) is not None or isinstance(m, Norm)
        ),
        None,
    )
    return isinstance(
        first, Norm | nn.LayerNorm | nn.GroupNorm | nn.InstanceNorm1d | nn.InstanceNorm2d
    )
