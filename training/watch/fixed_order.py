"""Rows that a loop of its own takes in the same batches in every epoch, in an order of their
classes or of the numbers by which they are looked up.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.watch.forwards import Call
from training.watch.loaders import Loaders
from training.watch.record import Listener, Place, Watch

FEWEST, EPOCHS = 6, 2  # batches of an epoch; epochs alike
SORTED = 6.0  # times the variance of means that batches of rows drawn at random would have
SMALLEST = 8  # rows of a batch
MOST = 4000  # steps that are looked at


@dataclass(frozen=True)
class Batch:
    """What a step was given: its content, and mean, variance and number of its classes or
    numbers.
    """

    content: bytes
    mean: float
    variance: float
    rows: int
    place: Place


class FixedOrder(Listener):
    """Listens to networks and losses where no loader draws the batches."""

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self.watch, self.loaders = watch, loaders
        self.inputs: Tensor | None = None
        self.labels: Tensor | None = None
        self.place: Place | None = None
        self.of: dict[str, list[Batch]] = {"classes": [], "numbers": []}

    def forwarded(self, call: Call) -> None:
        """The first call of a step has its rows."""
        if call.grad and call.training and self.inputs is None and call.rows > 1:
            self.inputs, self.place = call.inputs[0].detach(), call.place

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Labels of the step."""
        if call.grad and self.labels is None and target.ndim and len(target) == call.rows:
            self.labels = target.detach()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The step is made: keep what it was given."""
        for kind, values in (("classes", self.labels), ("numbers", self.inputs)):
            if (
                values is not None
                and self.place is not None
                and values.numel() == len(values)
                and len(self.of[kind]) < MOST
                and _countable(values)
            ):
                self.of[kind].append(_batch(values, self.place))
        self.inputs = self.labels = self.place = None

    def ended(self) -> None:
        """Look for an epoch that comes again, and for an order within it."""
        for kind, batches in self.of.items():
            length = _period([b.content for b in batches])
            if not length or self.loaders.last is not None:
                continue
            share = _spread(batches[:length])
            if share > min(SORTED, batches[0].rows / 2) and batches[0].rows >= SMALLEST:
                told = (
                    f"each epoch has the same {length} batches, whose {kind} lie in an order: means"
                    f" of batches vary {share:.0f} times as much as those of rows drawn at random"
                )
                self.watch.tell("BH806", told, batches[0].place)
                return


def _countable(values: Tensor) -> bool:
    """Whether they are whole numbers: classes, decisions or places in a table; not what is
    measured, which follows time in a series.
    """
    return not values.is_floating_point() or bool(((values == 0) | (values == 1)).all())


def _batch(values: Tensor, place: Place) -> Batch:
    flat = values.reshape(-1).double().cpu()
    content = hashlib.blake2b(flat.numpy().tobytes(), digest_size=12).digest()
    return Batch(content, float(flat.mean()), float(flat.var(correction=0)), len(flat), place)


def _period(contents: Sequence[Hashable]) -> int:
    """The number of batches after which all come again; 0 where they do not, or are few.

    >>> _period(list("abcdef" * 2)), _period(list("abcdef" + "bacdef")), _period(list("a" * 12))
    (6, 0, 0)
    """
    length = next((i for i, c in enumerate(contents) if i and c == contents[0]), 0)
    if (
        length < FEWEST
        or len(contents) < EPOCHS * length
        or len(set(contents[:length])) <= length / 2
    ):
        return 0
    return length if all(c == contents[i % length] for i, c in enumerate(contents)) else 0


def _spread(batches: list[Batch]) -> float:
    """The variance of the means of batches beside that of means of rows drawn at random; the last
    batch may be a short one.

    >>> place = Place("a.py", 1)
    >>> _spread([Batch(b"", mean, 0.01, 10, place) for mean in (0.0, 0.0, 1.0, 1.0)]) > 9
    True
    """
    full = [b for b in batches if b.rows == batches[0].rows]
    between = statistics.variance(b.mean for b in full) if len(full) > 1 else 0.0
    # as if the rows of all batches were mixed
    expected = (statistics.fmean(b.variance for b in full) + between) / full[0].rows
    return between / expected if expected else 0.0
