"""Predictions that are collected from a shuffling loader, and the labels that they are compared
with.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from training.watch.forwards import Call, tensors_in
from training.watch.loaders import Used, loader_rows
from training.watch.losses import SUBTRACTIONS, SUPERVISED, Functions
from training.watch.record import Listener, Watch

FEW, MOST = 20, 1_000_000  # rows
KNOWN = 10_000  # tensors, after which those that are gone are left out
COMPARISONS = (
    *SUBTRACTIONS,
    "eq",
    "ne",
    "__eq__",
    "__ne__",
    "equal",
    "isclose",
    "allclose",
    *SUPERVISED,
)
LEAVING = ("numpy", "__array__", "tolist")  # for code that cannot be listened to
JOINING = ("cat", "concat", "concatenate", "hstack", "vstack", "stack")
MOVES = (
    "to", "cpu", "cuda", "long", "float", "double", "int", "bool", "detach", "squeeze", "view",
    "reshape", "flatten",
)  # fmt: skip
NO_USE = ("__get__", "__len__", "size", "dim", "numel", *MOVES)
DEPTH = 2  # lists of arguments


@dataclass(eq=False)
class Evaluation:
    """An epoch of a loader whose batches a network is given without gradients."""

    used: Used
    epoch: int
    hidden: bool  # nobody but the loader knows the order
    # tensors with one number a row, besides the first, a batch each
    columns: list[list[Tensor]] = field(default_factory=list)
    size: int = 0  # rows of the last batch
    waiting: bool = False  # until a network is given it
    drawn: int = 0  # rows
    seen: int = 0  # rows that a network was given
    kept: int = 0  # rows of what was made of them, and joined or taken out of torch
    labels_used: bool = False

    @property
    def complete(self) -> bool:
        """Whether a network was given each row of the loader once."""
        return self.drawn == self.seen == loader_rows(self.used.loader)


class Orders(Listener):
    """Listens to loaders, networks and comparisons.

    Told is of labels that are those of the drawn rows, but in another order, once all rows were
    drawn and until a network is given anything else: what they are compared with can only be the
    predictions for these rows.
    """

    def __init__(self, watch: Watch, functions: Functions) -> None:
        self.watch, self.functions = watch, functions
        self.drawing: Evaluation | None = None
        self.done: dict[int, Evaluation] = {}  # the last one, by number of rows
        # drawn, by id of the tensor
        self.labels: dict[int, tuple[weakref.ref[Tensor], Evaluation]] = {}
        # of batches of predictions, and what was computed from these
        self.joined: dict[int, weakref.ref[Tensor]] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.on_any.append(self._any)
        self.functions.listen(COMPARISONS, before=self._compared)
        self.functions.listen(LEAVING, before=self._left)

    # ------------------------------------------------------------------------------------
    # evaluations

    def drew(self, used: Used, batch: Any) -> None:
        """A batch of a loader."""
        if (
            self.drawing is None
            or self.drawing.used is not used
            or self.drawing.epoch != used.epochs
        ):
            sampler = used.loader.sampler
            hidden = (
                type(sampler) is RandomSampler
                and not sampler.replacement
                and FEW <= loader_rows(used.loader) <= MOST
            )
            self.drawing = Evaluation(used, used.epochs, hidden)
        epoch, tensors = self.drawing, [t for t in tensors_in(batch) if t.ndim]
        epoch.size = len(tensors[0]) if tensors else 0
        epoch.drawn += epoch.size
        epoch.waiting = True
        if epoch.hidden:
            self._labels(
                epoch, batch, [t for t in tensors[1:] if t.numel() == len(t) == epoch.size]
            )

    def _labels(self, epoch: Evaluation, batch: Any, labels: list[Tensor]) -> None:
        epoch.columns = epoch.columns or [[] for _ in labels]
        if len(labels) != len(epoch.columns) or any(
            isinstance(part, str) for part in _parts(batch)
        ):  # names may tell the order
            epoch.hidden = False
            return
        for column, label in zip(epoch.columns, labels, strict=True):
            column.append(_flat(label).clone())
            self._know(label, epoch)

    def _know(self, label: Tensor, epoch: Evaluation) -> None:
        if len(self.labels) > KNOWN:
            self.labels = {
                key: known for key, known in self.labels.items() if known[0]() is not None
            }
        self.labels[id(label)] = (weakref.ref(label), epoch)

    def forwarded(self, call: Call) -> None:
        """A network is given the batch that was drawn, or something else."""
        epoch = self.drawing
        if (
            call.grad
            or epoch is None
            or call.rows != epoch.size
            or (not epoch.waiting and epoch.drawn == epoch.size)
        ):
            self._forget()
        elif epoch.waiting:
            epoch.seen += epoch.size
            epoch.waiting = False
            if epoch.complete:
                self.done[epoch.drawn] = epoch

    def stepped(self, *_: object) -> None:
        """An evaluation before a step is over."""
        self._forget()

    def _forget(self) -> None:
        self.drawing = None
        self.done.clear()
        self.labels.clear()
        self.joined.clear()

    # -------------------------------------------------------------------------------------
    # functions

    def _any(self, name: str, result: Any, args: Any, kwargs: Any) -> None:
        """What becomes of the labels that were drawn, and of predictions."""
        if not self.labels and not self.done:
            return
        given = [part for part in _parts((*args, *kwargs.values())) if isinstance(part, Tensor)]
        of_labels = [epoch for t in given if (epoch := self._labelling(t)) is not None]
        for epoch in of_labels:
            if name in MOVES and isinstance(result, Tensor):
                self._know(result, epoch)
            epoch.labels_used |= name not in NO_USE
        if not isinstance(result, Tensor) or not result.ndim or of_labels:
            return
        # not of single rows, as a program reads labels off a data set
        if name in JOINING and len(given) < len(result):
            self._keep(result)
            self.joined[id(result)] = weakref.ref(result)
        elif any(self._is_joined(t) for t in given):
            self.joined[id(result)] = weakref.ref(result)

    def _labelling(self, tensor: Tensor) -> Evaluation | None:
        """The evaluation that a drawn label is of; an id is given again once its tensor is gone."""
        known, epoch = self.labels.get(id(tensor), (None, None))
        return epoch if known is not None and known() is tensor else None

    def _is_joined(self, tensor: Tensor) -> bool:
        known = self.joined.get(id(tensor))
        return known is not None and known() is tensor

    def _keep(self, made: Tensor) -> None:
        epoch = self.drawing
        if epoch is None or epoch.waiting or not made.ndim or self._labelling(made) is not None:
            return
        if epoch.complete and len(made) == epoch.drawn:
            epoch.kept = epoch.drawn
        elif len(made) == epoch.size:
            epoch.kept += epoch.size

    def _left(self, name: str, given: Tensor, *_: Any, **__: Any) -> None:
        """A tensor becomes an array or a list. Where predictions did, and no drawn label was used,
        labels in another order are for their comparison.
        """
        epoch = None if self._is_joined(given) else self._other_order(given)
        if epoch is None:
            self._keep(given)
        elif not epoch.labels_used and epoch.kept >= epoch.drawn:
            self._tell(epoch)

    def _compared(self, name: str, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        if (
            isinstance(a, Tensor)
            and isinstance(b, Tensor)
            and a.ndim
            and b.ndim
            and len(a) == len(b)
        ):
            self.scored(a, b)

    def scored(self, *sides: Tensor) -> None:
        """Predictions and labels, in either order."""
        if any(self._as_drawn(side) for side in sides):
            return  # predictions may well be as many of each kind
        found = [
            epoch
            for side in sides
            if not self._is_joined(side) and (epoch := self._other_order(side)) is not None
        ]
        if found:
            self._tell(found[0])

    def _tell(self, epoch: Evaluation) -> None:
        self.done.pop(epoch.drawn)  # once
        told = (
            f"{epoch.drawn} predictions stand in the order in which a shuffling loader drew their"
            f" rows (line {epoch.used.place.line})"
        )
        self.watch.tell(
            "BH832", f"{told}, and the labels that they are compared with in another one"
        )

    # -----------------------------------------------------------------------------------------
    # orders

    def _as_drawn(self, labels: Tensor) -> bool:
        epoch = self._of(labels)
        return epoch is not None and any(
            torch.equal(torch.cat(c), _flat(labels)) for c in epoch.columns
        )

    def _of(self, labels: Tensor) -> Evaluation | None:
        """The evaluation of as many rows as there are labels."""
        epoch = self.done.get(labels.numel())
        return (
            epoch
            if epoch is not None
            and epoch.hidden
            and labels.ndim
            and len(labels) == labels.numel()
            and not labels.is_complex()
            else None
        )

    def _other_order(self, labels: Tensor) -> Evaluation | None:
        """The evaluation whose labels these are, but not as they were drawn; none where a column of
        its batches numbers the rows.
        """
        epoch = self._of(labels)
        if epoch is None or self._as_drawn(labels):
            return None
        columns, ordered = [torch.cat(c) for c in epoch.columns], _flat(labels).sort().values
        numbered = any(len(c.unique()) == len(c) and torch.equal(c, c.round()) for c in columns)
        alike = any(torch.equal(c.sort().values, ordered) for c in columns)
        return epoch if alike and not numbered and ordered[0] != ordered[-1] else None


def _flat(labels: Tensor) -> Tensor:
    return labels.detach().reshape(-1).float().cpu()


def _parts(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    if depth and isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, depth - 1)
    elif depth and isinstance(value, dict):
        yield from _parts(list(value.values()), depth)
    else:
        yield value
