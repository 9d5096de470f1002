"""Events of a watched program, and what a listener is given of each; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import DataLoader


class Place(NamedTuple):
    """A line of the program."""

    path: str
    line: int


@dataclass(eq=False)
class Call:
    """One outermost call of a network."""

    module: nn.Module
    inputs: list[Tensor]
    outputs: list[Tensor]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    grad: bool
    training: bool
    place: Place
    tail: nn.Module | None = None  # the last layer with weights that ran

    @property
    def rows(self) -> int:
        """Of the batch, as the first input tells."""
        return len(self.inputs[0]) if self.inputs and self.inputs[0].ndim else 0


@dataclass(eq=False)
class Used:
    """A loader and what was seen of it."""

    loader: DataLoader[Any]
    place: Place
    epochs: int = 0
    batches: int = 0
    steps: int = 0  # while one of its batches was the last one drawn
    set_epochs: list[int] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)  # of the first epoch, a batch each
    means: list[Tensor] = field(default_factory=list)  # of the values of each row, as `labels`


class Listener:
    """What a program does to torch, event by event; here, each event does nothing.

    A listener may not change a tensor, draw a random number or keep a graph alive.
    """

    def install(self) -> None:
        """Put hooks in place; called once, before the program runs."""

    def forwarded(self, call: Call) -> None:
        """A network ran, from its outermost module."""

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """A loss was computed of what the last network gave."""

    def scored(self, labels: Tensor, predictions: Tensor) -> None:
        """A metric of scikit-learn was computed."""

    def backing(self, place: Place) -> None:
        """A backward pass begins."""

    def backed(self, loss: Tensor, place: Place) -> None:
        """A backward pass ended."""

    def clipped(self, gradients: list[Tensor], norm: Tensor, most: float) -> None:
        """Gradients of these parameters were clipped: their norm before, and the largest."""

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has stepped."""

    def began(self, used: Used) -> None:
        """A pass over a loader begins."""

    def drew(self, used: Used, batch: Any) -> None:
        """A loader gave a batch."""

    def exhausted(self, used: Used, drawn: int) -> None:
        """A loader gave its last batch of so many."""

    def ended(self) -> None:
        """The program ended, or was stopped."""
