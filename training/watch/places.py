"""Whether a transformer is told in which order its tokens stand: tried on a copy, beside the
program.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from training.watch.forwards import Call, twin
from training.watch.networks import SAME, scores_of
from training.watch.record import Place, Watch

ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
ATTENDS, OF_SETS = (
    ("transformer", "selfattention", "multihead"),
    (
        "set",
        "basket",
        "bag",
        "invariant",
    ),
)  # parts of the names of classes
SHORTEST, LAST = 4, 20  # tokens; losses
BEGUN = 1.0  # size of numbers
FITTED = 0.9  # of the labels: what is learned as it is needs no order


@dataclass(eq=False)
class Unordered:
    """A network that gives tokens in the opposite order the same scores, and which share of the
    labels it met lately.
    """

    told: str
    place: Place
    met: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))


class Places:
    """Listens to losses of networks that are given tokens [rows, places]."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.known: dict[int, Unordered | None] = {}

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Try a network at its first loss, and see at the others what it has learned."""
        if (
            not call.grad
            or not call.inputs
            or call.inputs[0].dtype != torch.int64
            or call.inputs[0].ndim != 2
        ):
            return
        classes = target.dtype == torch.int64 and scores.ndim > 1 and scores.shape[1] > 1
        if not classes and not (
            scores.numel() == target.numel() == len(call.inputs[0])
            and bool(((target == 0) | (target == 1)).all())
        ):
            return
        key = id(call.module)
        if key not in self.known:
            free = call.inputs[0].shape[1] >= SHORTEST and attends(call.module) and order_free(call)
            told = (
                f"{type(call.module).__name__} gives rows of {call.inputs[0].shape[1]} tokens the"
                " same scores when these come in the opposite order"
            )
            self.known[key] = Unordered(told, call.place) if free else None
        known = self.known[key]
        if known is not None and not classes:  # one score a row, above 0 for yes
            known.met.append(
                float(((scores.detach().flatten() > 0) == (target.flatten() == 1)).float().mean())
            )
        elif known is not None and scores.argmax(1).shape == target.shape:
            # one a token: 0 is the padding, as a rule
            counted = target >= 0 if target.numel() == len(call.inputs[0]) else target > 0
            known.met.append(float((scores.detach().argmax(1) == target)[counted].float().mean()))

    def ended(self) -> None:
        """Those that have not learned their labels without any order."""
        for known in self.known.values():
            if known is not None and known.met and sum(known.met) / len(known.met) < FITTED:
                self.watch.tell(
                    "BH874",
                    f"{known.told}: nothing tells its attention where a token stands",
                    known.place,
                )


def attends(network: nn.Module) -> bool:
    """Whether it is built of attention between tokens, and not called after sets of them."""
    kinds = [type(m).__name__.lower() for m in network.modules()]
    attention = any(isinstance(m, ATTENTION) for m in network.modules()) or any(
        part in kind for kind in kinds for part in ATTENDS
    )
    return attention and not any(part in kind for kind in kinds for part in OF_SETS)


@torch.no_grad()
def _begin(network: nn.Module) -> None:
    """Give numbers to what begins at zero, as places do that are to be learned: until then they
    tell nothing apart.
    """
    for parameter in network.parameters():
        if not parameter.count_nonzero():
            parameter.copy_(
                torch.linspace(-BEGUN, BEGUN, parameter.numel(), device=parameter.device)
                .sin()
                .reshape(parameter.shape)
            )


def order_free(call: Call) -> bool:
    """Whether tokens in the opposite order give a row the same scores, or each token the score that
    it had, and other tokens give others.
    """
    tokens, network = call.inputs[0], twin(call.module)
    if network is None:
        return False
    _begin(network)

    def turned(t: Tensor) -> Tensor:
        return t.flip(1) if t.shape[:2] == tokens.shape else t

    def others(t: Tensor) -> Tensor:
        return (
            t[:, 1:2].expand_as(t) if t.shape == tokens.shape and not t.is_floating_point() else t
        )

    before, after, other = (
        scores_of(network, call, change) for change in (lambda t: t, turned, others)
    )
    if (
        before is None
        or after is None
        or other is None
        or not before.shape == after.shape == other.shape
        or len(before) != len(tokens)
    ):
        return False
    back = after.flip(1) if before.ndim > 2 and before.shape[1] == tokens.shape[1] else after
    return (
        float((back - before).abs().max())
        <= SAME * float(before.abs().max())
        < float((other - before).abs().max())
    )
