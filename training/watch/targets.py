"""Labels of losses: out of range, padding, ignored classes, wrong order, and classes missing in
train.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.losses import EQUALITIES, FEW, Functions
from training.watch.record import Watch

ENOUGH = 200  # least number of train labels
ROUNDED = 1e-4
APART = 4.0  # factor around the usual frequency of a class
HELD, PART = 10, 0.1  # least number and share of held-out labels of a class
MOST = 30  # most classes: a vocabulary always has tokens that training never saw
PAIRS = (
    "cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss",
)  # fmt: skip


class Targets(Listener):
    """Listener for losses with labels."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        # label counts of losses with an ignored class, by line and class
        self.left_out: dict[tuple[Place, int], Counter[int]] = {}

    def install(self) -> None:
        """Install hooks for losses."""
        self.functions.listen(PAIRS, before=self._signs)
        self.functions.listen(("binary_cross_entropy_with_logits",), before=self._outside)
        for listener in (self._ignored, self._order, self._padding):
            self.functions.listen(("cross_entropy", "nll_loss"), before=listener)

    def _signs(self, name: str, *given: Any, **_: Any) -> None:
        """Report labels 0 and 1 for a loss that expects -1 and 1."""
        tensors = [t for t in given if isinstance(t, Tensor)]
        if not tensors or not tensors[0].requires_grad:
            return
        zeros, ones = (float((tensors[-1] == v).float().mean()) for v in (0, 1))
        if zeros > FEW and ones > FEW and zeros + ones == 1.0:
            told = f"{name} is given labels 0 and 1, and asks for -1 and 1: what is labelled 0"
            self.functions.often("BH888", f"{told} ({zeros:.0%}) costs nothing or means neither")

    def _outside(
        self, name: str, input: Tensor, target: Tensor, weight: Any = None, *_: Any, **options: Any
    ) -> None:
        """Report labels outside 0 to 1 that have a weight."""
        if not input.requires_grad or target.requires_grad or options.get("reduction") == "none":
            return
        wrong = (target < -ROUNDED) | (target > 1 + ROUNDED)
        if isinstance(weight, Tensor):
            wrong &= weight.detach() != 0
        share = float(wrong.float().mean())
        if share > FEW:
            told = f"{name} is given labels from {float(target.min()):g} to {float(target.max()):g}"
            outside = f"{share:.0%} of them outside 0 to 1: its loss has no lower bound there"
            self.functions.often("BH849", f"{told}, {outside}")

    def _ignored(
        self, name: str, input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, **__: Any
    ) -> None:
        """Count labels, one per row, of a loss that ignores the number of a class."""
        of_classes = input.ndim == 2 and 0 <= ignore_index < input.shape[1]
        if of_classes and input.requires_grad and target.shape == (self.forwards.given,):
            key = self.watch.here(), ignore_index
            self.left_out.setdefault(key, Counter()).update(target.tolist())

    def ended(self) -> None:
        """Report ignored labels that occur as often as others."""
        for (place, index), counts in self.left_out.items():
            total, count = counts.total(), counts[index]
            usual = sorted(counts.values())[len(counts) // 2] if total >= ENOUGH else 0
            if usual and usual / APART <= count <= usual * APART:
                told = f"ignore_index is {index}, and {count} of {total} labels are {index}"
                self.watch.tell("BH850", f"{told}: the network is never told of that class", place)

    def _order(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        """Report flat scores of an output [A, B, V] that are compared with labels of [B, A]."""
        call, base = self.forwards.last, target._base
        outputs = call.outputs if call is not None and input.requires_grad else []
        output = next((t for t in outputs if t.ndim == 3 and t.numel() == input.numel()), None)
        if output is None or output.shape[2:] != input.shape[1:] or base is None:
            return
        (a, b), given = output.shape[:2], tuple(base.shape)
        crossed = {(b, a): output, (a, b): output.transpose(0, 1)}.get(given) if a != b else None
        if (
            crossed is not None
            and torch.allclose(crossed.reshape(input.shape).float(), input.float(), 1e-3, 1e-4)
            and torch.equal(base.reshape(-1), target)
        ):
            told = f"{name} is given labels {list(given)} and scores {[*given[::-1]]}, both made"
            flat = "nearly each score meets the label of another place"
            self.functions.often("BH851", f"{told} flat: {flat}")

    def _padding(
        self, name: str, input: Tensor, target: Tensor, weight: Any = None, *_: Any, **options: Any
    ) -> None:
        """Report padding at the end of sequences that counts as a label."""
        call = self.forwards.last
        if call is None or options.get("reduction") == "none" or target.is_floating_point():
            return
        sequences = [t for t in call.inputs if t.ndim == 2 and t.dtype == torch.int64]
        # the tokens of a decoder come second, perhaps with a start token that is no label
        fitting = [t for t in (*sequences, *(t[:, 1:] for t in sequences)) if t.numel()]
        tokens = next((t for t in fitting if t.numel() == target.numel()), None)
        embeddings = [m for m in call.module.modules() if isinstance(m, nn.Embedding)]
        for pad in {m.padding_idx for m in embeddings} - {None}:
            if tokens is None:
                return
            behind = at_end(tokens, pad)
            labels = target.reshape(tokens.shape)[behind].unique()
            if len(labels) != 1 or not torch.equal(tokens == pad, behind):
                continue
            label, share = int(labels), float(behind.float().mean())
            counts = weight is None or float(weight[label]) != 0
            if counts and label != options.get("ignore_index", -100) and share > FEW:
                told = f"{share:.0%} of the labels are padding ({label}), and count in the loss"
                self.functions.often("BH828", f"{told} as others do")


class UnseenClasses(Listener):
    """Listener for losses over classes, decisions and metrics."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.trained: dict[int, Tensor] = {}  # label counts of each class [K], by K
        self.held: dict[Place, Tensor] = {}  # label counts by line of an evaluation
        self.decided: Tensor | None = None

    def install(self) -> None:
        """Install hooks for losses, decisions and comparisons."""
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._loss)
        self.functions.listen(("argmax",), after=self._decision)
        self.functions.listen(EQUALITIES, before=self._compared)

    def _loss(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        if input.requires_grad and (input.ndim, target.ndim) == (2, 1) and input.shape[1] <= MOST:
            labels = target[(target >= 0) & (target < input.shape[1])].cpu()
            counts = torch.bincount(labels, minlength=input.shape[1])
            self.trained[len(counts)] = self.trained.get(len(counts), 0) + counts

    def _decision(self, name: str, result: Tensor, *_: Any, **__: Any) -> None:
        self.decided = None if torch.is_grad_enabled() else result

    def _compared(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        for one, other in ((a, b), (b, a)):
            if one is self.decided is not None and isinstance(other, Tensor):
                self.scored(other, one)

    def scored(self, labels: Tensor, predictions: Tensor) -> None:
        """Count the labels of an evaluation."""
        whole = labels.ndim == 1 and len(labels) and not labels.is_floating_point()
        if whole and int(labels.min()) >= 0 and int(labels.max()) < MOST:
            counts = torch.bincount(labels.detach().long().cpu(), minlength=MOST)
            place = self.watch.here()
            self.held[place] = self.held.get(place, torch.zeros_like(counts)) + counts

    def ended(self) -> None:
        """Report an evaluation with many labels of a class that training lacks."""
        if len(self.trained) != 1 or not self.watch.complete:
            return
        ((classes, trained),) = self.trained.items()
        for place, counts in self.held.items() if int(trained.sum()) >= ENOUGH else ():
            total = int(counts.sum())
            most, missing = (counts[:classes] * (trained == 0)).max(0)
            if most >= max(HELD, PART * total) and not bool(counts[classes:].any()):
                told = f"{int(most)} of {total} labels of this evaluation are of class"
                told = f"{told} {int(missing)}, which no row of the training has"
                self.watch.tell("BH877", f"{told}: rows were divided in the order of labels", place)
                return


def at_end(rows: Tensor, index: int) -> Tensor:
    """Return a mask of the places of [B, T] that contain an index and only it until the end."""
    return ~(rows != index).flip(1).long().cummax(1).values.flip(1).bool()
