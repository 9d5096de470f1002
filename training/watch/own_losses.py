"""Losses written by the program: check that right answers cost less and that gradients flow.

The Python profiler reports each function called between forward and backward. For a function with
the name of a loss, the gradient shows in which direction it moves wrong scores.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from training.review.syntax import words
from training.watch.events import Call, Listener, Place
from training.watch.losses import Functions
from training.watch.record import Watch, guarded

LOSSES = {"loss", "losses", "criterion", "nll", "bce", "xent", "cost", "crossentropy"}
# names of losses and scores that maximize on purpose
AGAINST = {
    "adversarial", "adversary", "confusion", "unlearn", "unlearning", "unlikelihood", "negative",
    "inverted", "flipped", "fool", "gan", "generator", "gen", "reverse",
    "dist", "distance", "distances", "d", "energy", "energies", "error", "errors",
}  # fmt: skip
CUTS = {"no_grad", "inference_mode"}
WINDOWS, MOST = 12, 2_000_000  # most forward passes with gradients; most scores
THRICE = 3  # calls


class OwnLosses(Listener):
    """Listener for the program's functions between forward and backward."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.running: dict[FrameType, tuple[str, dict[str, Any]]] = {}
        self.rising: Counter[CodeType] = Counter()  # calls in which right answers cost more
        self.windows = 0
        # values without a gradient, and the functions that returned them
        self.cut: deque[tuple[Tensor, str]] = deque(maxlen=8)

    def install(self) -> None:
        """Install hooks for multiplication and addition."""
        self.functions.listen(("mul", "__mul__", "__rmul__"), after=self._weighted)
        self.functions.listen(("add", "__add__", "__radd__"), before=self._added)

    def forwarded(self, call: Call) -> None:
        """Start the profiler when the scores of a batch are known."""
        if call.grad and self.windows < WINDOWS and sys.getprofile() is None:
            self.windows += 1
            sys.setprofile(self._seen)
        elif not call.grad:
            self.ended()

    def backing(self, place: Place) -> None:
        """Stop the profiler when the loss is known."""
        self.ended()

    def ended(self) -> None:
        """Stop the profiler."""
        if sys.getprofile() == self._seen:
            sys.setprofile(None)
        self.running.clear()

    def _seen(self, frame: FrameType, event: str, result: Any) -> None:
        if not self.watch.quiet and self.watch.owns(frame.f_code.co_filename):
            with self.watch.unwatched():
                if event == "call":
                    self._called(frame)
                elif event == "return" and (known := self.running.pop(frame, None)) is not None:
                    self._returned(frame, *known, result)

    @guarded
    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = {n: frame.f_locals[n] for n in names if n in frame.f_locals}
        owner = given.pop("self", None)
        of_module = owner is not None and code.co_name == "forward"
        name = type(owner).__name__ if of_module else code.co_name
        if words(name) & LOSSES and not words(name) & AGAINST:
            self.running[frame] = (name, given)

    @guarded
    def _returned(self, frame: FrameType, name: str, given: dict[str, Any], result: Any) -> None:
        code = frame.f_code
        tensors = [key for key, value in given.items() if isinstance(value, Tensor) and value.ndim]
        if not (isinstance(result, Tensor) and result.numel() == 1 and torch.is_grad_enabled()):
            return
        if not result.requires_grad:
            if any(self._learns(given[key]) for key in tensors) and not CUTS & set(code.co_names):
                self.cut.append((result, name))
        elif len(tensors) == 2 and not words(tensors[0]) & AGAINST:
            scores, labels = (given[key] for key in tensors)
            if not scores.requires_grad or labels.requires_grad or scores.numel() > MOST:
                return
            (slope,) = torch.autograd.grad(result, scores, retain_graph=True, allow_unused=True)
            self.rising[code] += slope is not None and rises(slope, scores.detach(), labels)
            if self.rising[code] == THRICE:
                told = f"{name} rises where scores that are wrong about their label become right"
                self.watch.tell("BH861", told, Place(code.co_filename, code.co_firstlineno))

    def _learns(self, tensor: Tensor) -> bool:
        """Check that scores come from a trained network, detached or not."""
        output = self.functions.output
        made = output.untyped_storage().data_ptr() if output is not None else None
        cut_off = output is not None and output.requires_grad
        return tensor.requires_grad or (cut_off and tensor.untyped_storage().data_ptr() == made)

    def _weighted(self, name: str, result: Any, *factors: Any, **_: Any) -> None:
        for known in filter(None, map(self._cut_off, factors)):
            if isinstance(result, Tensor) and not result.requires_grad:
                self.cut.append((result, known))

    def _added(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        for term, other in ((a, b), (b, a)):
            known = self._cut_off(term)
            if known and isinstance(other, Tensor) and other.requires_grad and other.numel() == 1:
                told = f"what {known} gives is added to the loss and carries no gradient"
                self.functions.often("BH862", f"{told}: nothing is learned from it")

    def _cut_off(self, tensor: Any) -> str:
        return next((name for value, name in self.cut if value is tensor), "")


def rises(slope: Tensor, scores: Tensor, labels: Tensor) -> bool:
    """Check that most wrong scores [B, C, …] are pushed away from integer labels [B, …]. Scores may
    also have the shape of labels that are 0 and 1. Return False if the right answer is unclear.

    >>> scores, labels = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([0, 1])
    >>> rises(scores.softmax(1), scores, labels), rises(-scores.softmax(1), scores, labels)
    (True, False)
    """
    of_classes = scores.ndim == labels.ndim + 1 and not labels.is_floating_point()
    beside = scores[:, 0] if of_classes else scores
    most = scores.shape[1] - 1 if of_classes else 1
    whole = (labels >= 0) & (labels <= most) & (labels == labels.long())
    if beside.shape != labels.shape or not bool(whole.all()):
        return False
    if of_classes:
        wrong = scores.argmax(1) != labels
        toward = slope.gather(1, labels.long().unsqueeze(1)).squeeze(1)
    else:
        likely = bool((scores >= 0).all())
        if likely and bool((scores > 1).any()):
            return False  # scores are distances
        wrong = (scores > (0.5 if likely else 0.0)) != (labels == 1)
        toward = slope * (2 * labels - 1)
    return bool((toward[wrong] > 0).float().mean() > 0.5)
