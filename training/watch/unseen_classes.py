"""Classes of held-out rows that no row of the training has."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from training.watch.losses import Functions
from training.watch.metrics import Metrics
from training.watch.record import Listener, Place, Watch

# labels of the training; held-out ones of a class, and which share of them
ENOUGH, FEW, PART = (200, 10, 0.1)
MOST = 30  # classes: of a vocabulary there are always some that training never saw
TWO = 2


class UnseenClasses(Listener):
    """Listens to losses over classes and to comparisons of decisions."""

    def __init__(self, watch: Watch, functions: Functions, metrics: Metrics) -> None:
        self.watch, self.functions, self.metrics = watch, functions, metrics
        self.trained: dict[int, Tensor] = {}  # labels of each class [K], by K
        self.held: dict[Place, Tensor] = {}  # by line of an evaluation
        self.decided: weakref.ref[Tensor] | None = None

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._loss)
        self.functions.listen(("argmax",), after=self._decision)
        self.functions.listen(("eq", "__eq__", "ne", "__ne__"), before=self._compared)

    def _loss(
        self, name: str, input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, **__: Any
    ) -> None:
        if (
            input.ndim != TWO
            or target.ndim != 1
            or target.is_floating_point()
            or not TWO <= input.shape[1] <= MOST
        ):
            return
        labels = target.detach()[
            (target != ignore_index) & (target >= 0) & (target < input.shape[1])
        ].cpu()
        if input.requires_grad:
            counts = torch.bincount(labels, minlength=input.shape[1])
            self.trained[input.shape[1]] = (
                self.trained.get(input.shape[1], torch.zeros_like(counts)) + counts
            )
        elif not torch.is_grad_enabled():
            self._hold(labels)

    def _decision(self, name: str, result: Tensor, *_: Any, **__: Any) -> None:
        self.decided = weakref.ref(result) if not torch.is_grad_enabled() else None

    def _compared(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        decided = self.decided() if self.decided is not None else None
        if (
            decided is not None
            and isinstance(a, Tensor)
            and isinstance(b, Tensor)
            and (a is decided) != (b is decided)
            and a.shape == b.shape
        ):
            self._hold(b if a is decided else a)

    def _scored(self, labels: Tensor, *_: Tensor) -> None:
        self._hold(labels)

    def _hold(self, labels: Tensor) -> None:
        if (
            labels.ndim == 1
            and len(labels)
            and not labels.is_floating_point()
            and int(labels.min()) >= 0
            and int(labels.max()) < MOST
        ):
            counts = torch.bincount(labels.detach().long().cpu(), minlength=MOST)
            place = self.watch.here()
            self.held[place] = self.held.get(place, torch.zeros_like(counts)) + counts

    def ended(self) -> None:
        """One kind of labels was trained on, and an evaluation asks for a class of them that was
        not there.
        """
        if len(self.trained) != 1 or not self.watch.complete:
            return
        classes, trained = next(iter(self.trained.items()))
        if int(trained.sum()) < ENOUGH or int((trained > 0).sum()) < 1:
            return
        for place, counts in self.held.items():
            missing = [
                k
                for k in range(classes)
                if not trained[k] and counts[k] >= max(FEW, PART * float(counts.sum()))
            ]
            if missing and int(counts[classes:].sum()) == 0:
                told = (
                    f"{int(counts[missing[0]])} of {int(counts.sum())} labels of this evaluation"
                    f" are of class {missing[0]}, which no row of the training has"
                )
                self.watch.tell(
                    "BH877", f"{told}: rows were divided in the order of their labels", place
                )
                return
