"""Weights of classes in losses, against how often the classes occur among the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.watch.losses import Functions
from training.watch.record import Place, Watch

ENOUGH, MOST = 200, 100_000  # labels: fewer say little, more say nothing new
# ratios of frequencies and of weights; of frequencies that are not alike
UNEVEN, HEAVIER, APART = (1.5, 1.2, 1.1)
# share of positives, weight of a positive, labels of either kind
RARE, LIGHT, SEEN = (1 / 3, 0.8, 10)


@dataclass(eq=False)
class Weighted:
    """Labels and weights of a loss at one line."""

    labels: Tensor  # of each class [K]; of a loss of yes and no the positives [1 or K]
    weights: Tensor  # sum over calls
    total: int = 0  # labels of each column
    calls: int = 0


class Classes:
    """Listens to losses that weigh classes."""

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.of_classes: dict[Place, Weighted] = {}
        self.of_positives: dict[Place, Weighted] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._classes)
        self.functions.listen(("binary_cross_entropy_with_logits",), before=self._positives)

    def _classes(
        self,
        name: str,
        input: Tensor,
        target: Tensor,
        weight: Any = None,
        *_: Any,
        ignore_index: int = -100,
        **__: Any,
    ) -> None:
        if not isinstance(weight, Tensor) or not input.requires_grad or target.is_floating_point():
            return
        known = self.of_classes.setdefault(
            self.watch.here(), Weighted(torch.zeros(len(weight)), torch.zeros(len(weight)))
        )
        if known.total < MOST and len(weight) == len(known.weights):
            labels = target.detach().reshape(-1)
            counts = torch.bincount(
                labels[(labels != ignore_index) & (labels >= 0)], minlength=len(weight)
            )[: len(weight)].cpu()
            self._add(known, counts, int(counts.sum()), weight)

    def _positives(
        self, name: str, input: Tensor, target: Tensor, *_: Any, pos_weight: Any = None, **__: Any
    ) -> None:
        if not isinstance(pos_weight, Tensor) or not input.requires_grad:
            return
        columns = pos_weight.numel()
        if columns > 1 and target.shape[-1] != columns:
            return  # spread over other axes than the last
        known = self.of_positives.setdefault(
            self.watch.here(), Weighted(torch.zeros(columns), torch.zeros(columns))
        )
        if known.total < MOST and columns == len(known.weights):
            rows = (target.detach() > 1 / 2).reshape(-1, columns)
            self._add(known, rows.sum(0).cpu(), len(rows), pos_weight)

    def _add(self, known: Weighted, counts: Tensor, total: int, weight: Tensor) -> None:
        known.labels += counts
        known.weights += weight.detach().reshape(-1).float().cpu()
        known.total += total
        known.calls += 1

    def ended(self) -> None:
        """Weights in the order of the frequencies, where they are to make up for them."""
        for place, known in self.of_classes.items():
            if known.total >= ENOUGH and (
                told := upside_down(known.labels, known.weights / known.calls)
            ):
                self.watch.tell("BH842", told, place)
        for place, known in self.of_positives.items():
            if known.total >= ENOUGH and positives_upside_down(
                known.labels, known.total, known.weights / known.calls
            ):
                share, weight = (
                    float(known.labels.sum()) / known.total / len(known.labels),
                    float((known.weights / known.calls).mean()),
                )
                told = (
                    f"{share:.0%} of {known.total * len(known.labels)} labels are positive, and"
                    f" pos_weight is {weight:.2g}: the more frequent side weighs more"
                )
                self.watch.tell("BH842", f"{told}, the rarer one less", place)


def upside_down(labels: Tensor, weights: Tensor) -> str:
    """How weights of classes [K] have the order of their labels [K]; empty where they have not.
    Classes with weight 0 are left out on purpose.

    >>> upside_down(torch.tensor([300.0, 100.0]), torch.tensor([0.75, 0.25]))
    'class 0 has 300 of 400 labels and weight 0.75, class 1 has 100 and weight 0.25: the most frequent class weighs most'
    >>> (upside_down(torch.tensor([300.0, 100.0]), torch.tensor([0.25, 0.75])),
    ...     upside_down(torch.tensor([300.0, 100.0]), torch.ones(2)))
    ('', '')
    """  # noqa: E501
    kept = [k for k in range(len(weights)) if labels[k] > 0 and weights[k] > 0]
    order = sorted(kept, key=lambda k: (float(labels[k]), float(weights[k])), reverse=True)
    if len(order) < 2:
        return ""
    most, least = order[0], order[-1]
    uneven = labels[most] >= UNEVEN * labels[least] and weights[most] >= HEAVIER * weights[least]
    if not uneven or any(
        weights[a] <= weights[b]
        for a in order
        for b in order
        if labels[a] >= APART * labels[b] and a != b
    ):
        return ""
    counted = (
        f"class {most} has {int(labels[most])} of {int(labels.sum())} labels and weight"
        f" {float(weights[most]):.2g}"
    )
    return (
        f"{counted}, class {least} has {int(labels[least])} and weight {float(weights[least]):.2g}:"
        " the most frequent class weighs most"
    )


def positives_upside_down(positives: Tensor, total: int, weights: Tensor) -> bool:
    """Whether in all columns the frequent side of yes and no weighs more.

    >>> (positives_upside_down(torch.tensor([40.0]), 400, torch.tensor([0.1])),
    ...     positives_upside_down(torch.tensor([40.0]), 400, torch.tensor([9.0])))
    (True, False)
    """
    if bool((positives < SEEN).any()) or bool((positives > total - SEEN).any()):
        return False
    shares = positives / total
    return bool(
        (
            ((shares < RARE) & (weights < LIGHT)) | ((shares > 1 - RARE) & (weights > 1 / LIGHT))
        ).all()
    )
