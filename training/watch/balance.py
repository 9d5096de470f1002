"""Samplers that draw rare rows more often beside losses that weigh rare classes more."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import WeightedRandomSampler

from training.watch.classes import Classes, Weighted
from training.watch.loaders import Loaders, Used, loader_rows
from training.watch.record import Place, Watch

UNEVEN, HEAVIER = 1.5, 1.5  # weights of the sampler; of the loss
NEAR = 0.06  # between shares that are drawn and expected
ENOUGH = 300  # labels


class Balance:
    """Judges at the end."""

    def __init__(self, watch: Watch, loaders: Loaders, classes: Classes) -> None:
        self.watch, self.loaders, self.classes = watch, loaders, classes

    def ended(self) -> None:
        """Loaders for training that draw by class, beside losses with weights of the same order."""
        samplers = [
            (u, s) for u in self.loaders.used.values() if u.steps and (s := by_class(u)) is not None
        ]
        losses = [
            (place, known)
            for of in (self.classes.of_classes, self.classes.of_positives)
            for place, known in of.items()
        ]
        if len(samplers) != 1 or len(losses) != 1:
            return
        (used, sampler), (place, known) = samplers[0], losses[0]
        if known.total >= ENOUGH and known.calls:
            self._judge(used, sampler, place, known)

    def _judge(self, used: Used, sampler: Tensor, place: Place, known: Weighted) -> None:
        weights = known.weights / known.calls
        drawn = known.labels / known.total
        if len(weights) == 1:
            weights, drawn = (
                torch.tensor([1.0, float(weights)]),
                torch.tensor([1 - float(drawn), float(drawn)]),
            )
        told = twice(sampler, drawn, weights)
        if told:
            self.watch.tell(
                "BH852",
                f"WeightedRandomSampler draws {told}: it is balanced twice",
                place or used.place,
            )


def by_class(used: Used) -> Tensor | None:
    """The weights of a sampler that has a few different ones."""
    sampler = getattr(used.loader.batch_sampler, "sampler", used.loader.sampler)
    if not isinstance(sampler, WeightedRandomSampler) or len(sampler.weights) != loader_rows(
        used.loader
    ):
        return None
    levels = sampler.weights.unique()
    return (
        sampler.weights
        if 2 <= len(levels) <= 20
        and float(levels[-1]) >= UNEVEN * float(levels[0].clamp(min=1e-12))
        else None
    )


def twice(sampler: Tensor, drawn: Tensor, weights: Tensor) -> str:
    """Which class is drawn more often and weighs more as well; empty where none does, or where it
    is not known which rows a class has.

    Args:
        sampler: weight of each row.
        drawn: share of each class among the labels that were drawn [K].
        weights: of the classes in the loss [K].

    >>> sampler = torch.cat([torch.ones(80), torch.full((20,), 4.0)])
    >>> (twice(sampler, torch.tensor([0.5, 0.5]), torch.tensor([1.0, 4.0])),
    ...     twice(sampler, torch.tensor([0.5, 0.5]), torch.tensor([1.0, 1.0])))
    ('class 1 4 times as often as others (50% of the labels, 20% of the rows), and the loss weighs it 4 times as much', '')
    """  # noqa: E501
    levels, counts = sampler.unique(return_counts=True)
    if (
        len(levels) != len(weights)
        or float(weights.max()) < HEAVIER * float(weights.min().clamp(min=1e-12))
        or int(weights.argmin()) == int(weights.argmax())
    ):
        return ""
    shares = levels * counts / float(sampler.sum())
    classes = torch.argsort(weights)  # where the rare class weighs more in both, the orders agree
    if float((drawn[classes] - shares).abs().max()) > NEAR:
        return ""
    heavy, light = int(classes[-1]), int(classes[0])
    often, part = float(levels[-1] / levels[0]), float(counts[-1] / counts.sum())
    more = (
        f"the loss weighs it {float(weights[heavy] / weights[light].clamp(min=1e-12)):.2g} times as"
        " much"
    )
    return (
        f"class {heavy} {often:.2g} times as often as others ({float(drawn[heavy]):.0%} of the"
        f" labels, {part:.0%} of the rows), and {more}"
    )
