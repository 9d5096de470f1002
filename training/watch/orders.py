"""Predictions collected from a shuffling loader and compared with labels in another order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from training.watch.events import Call, Listener, Used
from training.watch.forwards import tensors_in
from training.watch.loaders import loader_rows
from training.watch.losses import EQUALITIES, SUBTRACTIONS, SUPERVISED, Functions
from training.watch.record import Watch

FEW, MOST = 20, 1_000_000  # least and most rows


@dataclass(eq=False)
class Evaluation:
    """An epoch of a loader whose batches a network evaluates without gradients."""

    used: Used
    epoch: int
    # by batch: tensors with one number per row, without the first tensor
    columns: list[list[Tensor]] = field(default_factory=list)
    drawn: int = 0  # number of drawn rows
    seen: int = 0  # rows given to a network

    def orders(self) -> list[Tensor]:
        """Return the columns of all rows. The list is empty if one of them numbers the rows."""
        if len({len(batch) for batch in self.columns}) != 1:
            return []
        columns = [torch.cat(batches) for batches in zip(*self.columns, strict=True)]
        numbers = any(len(c.unique()) == len(c) and torch.equal(c, c.round()) for c in columns)
        return [] if numbers else columns


class Orders(Listener):
    """Listener for loaders, networks and comparisons. After a network has received all rows, labels
    can only be compared with the predictions for these rows.
    """

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.drawing: Evaluation | None = None
        self.done: Evaluation | None = None  # finished evaluation of each row
        self.waiting = 0  # drawn rows that no network has received yet

    def install(self) -> None:
        """Install hooks for comparisons."""
        names = (*SUBTRACTIONS, *EQUALITIES, "__ne__", *SUPERVISED)
        self.functions.listen(names, before=self._compared)

    def drew(self, used: Used, batch: Any) -> None:
        """Record a batch of a shuffling loader whose rows have no names."""
        parts = [*batch.values()] if isinstance(batch, dict) else batch
        parts = parts if isinstance(parts, list | tuple) else []
        named = any(isinstance(p, list | tuple) and isinstance([*p, 0][0], str) for p in parts)
        if (
            type(used.loader.sampler) is not RandomSampler
            or used.loader.sampler.replacement
            or not FEW <= loader_rows(used.loader) <= MOST
            or named
        ):
            self.drawing = None
            return
        epoch = self.drawing
        if epoch is None or epoch.used is not used or epoch.epoch != used.epochs:
            epoch = self.drawing = Evaluation(used, used.epochs)
        tensors = [t for t in tensors_in(batch) if t.ndim]
        self.waiting = len(tensors[0]) if tensors else 0
        epoch.drawn += self.waiting
        epoch.columns.append([_flat(t) for t in tensors[1:] if t.numel() == self.waiting])

    def forwarded(self, call: Call) -> None:
        """Match a network call with the drawn batch."""
        epoch = self.drawing
        if call.grad or epoch is None or call.rows != self.waiting:
            self.drawing = self.done = None
            return
        epoch.seen += self.waiting
        self.waiting = 0
        if epoch.drawn == epoch.seen == loader_rows(epoch.used.loader):
            self.done = epoch

    def stepped(self, *_: object) -> None:
        """Forget the evaluation when a step ends it."""
        self.drawing = self.done = None

    def _compared(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            self.scored(a, b)

    def scored(self, labels: Tensor, predictions: Tensor) -> None:
        """Compare both arguments with the drawn rows, in either role."""
        epoch, sides = self.done, (labels, predictions)
        if epoch is None or any(s.shape[:1] != (epoch.drawn,) for s in sides):
            return
        drawn, found = epoch.orders(), [_flat(s) for s in sides if s.numel() == epoch.drawn]
        pairs = [(column, side) for column in drawn for side in found if len(side.unique()) > 1]
        if any(torch.equal(column, side) for column, side in pairs):
            return
        if any(torch.equal(column.sort().values, side.sort().values) for column, side in pairs):
            self.done = None  # report once
            told = f"{epoch.drawn} predictions are in the order in which a shuffling loader drew"
            told = f"{told} their rows (line {epoch.used.place.line}), and the labels that they are"
            self.watch.tell("BH832", f"{told} compared with in another one")


def _flat(labels: Tensor) -> Tensor:
    return labels.detach().reshape(-1).float().cpu().clone()
