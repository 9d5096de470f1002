"""Events of a watched program and the data that listeners receive; loads no torch."""

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
    """An outermost call of a network."""

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
        """Number of rows in the batch, taken from the first input."""
        return len(self.inputs[0]) if self.inputs and self.inputs[0].ndim else 0


@dataclass(eq=False)
class Used:
    """A loader and the statistics of its use."""

    loader: DataLoader[Any]
    place: Place
    epochs: int = 0
    batches: int = 0
    steps: int = 0  # optimizer steps that followed one of its batches
    set_epochs: list[int] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)  # first epoch, one tensor per batch
    means: list[Tensor] = field(default_factory=list)  # row means, as `labels`


class Listener:
    """Base class for listeners to torch events. Every event does nothing by default.

    A listener must not change a tensor, draw a random number or keep a graph alive.
    """

    def install(self) -> None:
        """Install hooks. This is called once, before the program runs."""

    def forwarded(self, call: Call) -> None:
        """Handle the end of an outermost network call."""

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Handle a loss computed from the scores of the last network."""

    def scored(self, labels: Tensor, predictions: Tensor) -> None:
        """Handle a scikit-learn metric that was computed."""

    def backing(self, place: Place) -> None:
        """Handle the start of a backward pass."""

    def backed(self, loss: Tensor, place: Place) -> None:
        """Handle the end of a backward pass."""

    def clipped(self, gradients: list[Tensor], norm: Tensor, most: float) -> None:
        """Handle clipped gradients, their norm before clipping and the largest norm allowed."""

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the start of an optimizer step."""

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the end of an optimizer step."""

    def began(self, used: Used) -> None:
        """Handle the start of an epoch of a loader."""

    def drew(self, used: Used, batch: Any) -> None:
        """Handle a batch from a loader."""

    def exhausted(self, used: Used, drawn: int) -> None:
        """Handle the end of a loader after this many batches."""

    def ended(self) -> None:
        """Handle the end of the program, normal or early."""
