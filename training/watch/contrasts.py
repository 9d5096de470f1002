"""Scores of all rows of a batch against each other, among which each row is to find its partner."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.forwards import Call
from training.watch.losses import Functions
from training.watch.record import Watch

FEW = 8  # rows: with fewer the best score may lie on the diagonal by chance
NEARLY = 0.99
SOME = 5  # batches
CLOSE = 1e-5


def _drops(module: nn.Module) -> bool:
    """Whether dropout is at work, by which two passes over the same rows are two views."""
    return any(
        isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 and m.training
        for m in module.modules()
    )


class Contrasts:
    """Listens to losses over classes that are the rows of the batch."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.calls: list[Call] = []  # since the last backward pass

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._scored)

    def forwarded(self, call: Call) -> None:
        """A network has made codes of rows."""
        self.calls = [*self.calls[-3:], call]

    def backed(self, *_: object) -> None:
        """The step is over."""
        self.calls = []

    def _one_view(self, rows: int) -> bool:
        """Whether two networks of a class, or one twice, were given the same rows, of which nothing
        is left to chance but what they were changed by before.
        """
        given = [
            c
            for c in self.calls
            if c.rows == rows and c.inputs[0].is_floating_point() and not _drops(c.module)
        ]
        return any(
            type(a.module) is type(b.module) and torch.equal(a.inputs[0], b.inputs[0])
            for a, b in combinations(given, 2)
        )

    @staticmethod
    def _same_views(scores: Tensor, partner: Tensor) -> bool:
        """Whether each row has the scores of its partner, but for those of the two with themselves
        and each other.
        """
        others = scores.clone()
        own = torch.arange(len(scores), device=scores.device)
        others[own, own] = others[own, partner] = 0.0
        finite = others.isfinite().all()
        theirs = others[partner].clone()
        theirs[own, own] = theirs[own, partner] = 0.0
        return (
            bool(finite)
            and bool((partner[partner] == own).all())
            and torch.allclose(others, theirs, rtol=CLOSE, atol=CLOSE)
        )

    def _scored(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        if (
            input.requires_grad
            and input.ndim == 2
            and input.shape[1] > FEW < len(input) != input.shape[1]
            and target.shape == input.shape[:1]
        ):
            if (
                not target.is_floating_point()
                and not bool(target.any())
                and self._one_view(len(input))
            ):  # the partner first, and a queue of others
                self.functions.often(
                    "BH866",
                    f"both views of {len(input)} rows are one: a row and its partner are given the"
                    " same values",
                    SOME,
                )
            return
        if (
            not input.requires_grad
            or input.ndim != 2
            or input.shape[0] != input.shape[1]
            or len(input) < FEW
            or target.dtype != torch.int64
        ):
            return
        own = torch.arange(len(input), device=target.device)
        if target.shape != own.shape or bool((target == own).any()):
            return
        scores = input.detach()
        if self._same_views(scores, target):
            told = (
                f"the scores of each of {len(input)} rows and of its partner are the same: both"
                " views are one"
            )
            self.functions.often("BH866", told, SOME)
        best = float((scores.argmax(1) == own).float().mean())
        partner = float((scores.argmax(1) == target).float().mean())
        if best >= NEARLY:
            told = (
                f"{name} over {len(input)} rows against each other: the best score of {best:.0%} of"
                " them is that with itself, which is never the label"
            )
            self.functions.often("BH858", f"{told} (the partner's is best in {partner:.0%})", SOME)
