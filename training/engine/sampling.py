"""Stateless choice of a step's rows: a run's position is one integer, the optimizer step.

An epoch is a permutation of the rows, a pure function of (seed, epoch, number of rows). A *window*
is its next `batch_size` rows: the global batch of one optimizer step. Each rank takes a contiguous
share of the window and splits it into micro-batches. No row is repeated, and none is left out
unless `drop_last` is set.

N rows, B rows of a window, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from schemas.errors import ConfigError, DataError
from training.checkpoint.randomness import generator


def epoch_order(seed: int, epoch: int, num_rows: int) -> Tensor:
    """Return the permutation [N] of an epoch: int32 if it can count the rows; the order is the
    same.
    """
    kind = torch.int32 if num_rows <= torch.iinfo(torch.int32).max else torch.int64
    return torch.randperm(num_rows, generator=generator(seed, "order", epoch), dtype=kind)


def share(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return begin and end of a rank's part of a window; parts differ by at most one row.

    >>> [share(5, rank, 3) for rank in range(3)]
    [(0, 1), (1, 3), (3, 5)]
    """
    return rank * num_rows // world_size, (rank + 1) * num_rows // world_size


def spans(num_rows: int, size: int) -> list[tuple[int, int]]:
    """Return begin and end of each micro-batch of a share; the last may be smaller.

    >>> spans(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(begin, min(begin + size, num_rows)) for begin in range(0, num_rows, size)]


@dataclass
class Sampler:
    """The windows of a run.

    Args:
        num_rows: train rows [N].
        batch_size: rows of a window over all ranks.
        seed: seed of the order.
        drop_last: leave out an epoch's last window if it is smaller.
        device: device of the row numbers.

    Raises:
        ConfigError: `drop_last` leaves no window.
        DataError: no rows.
    """

    num_rows: int
    batch_size: int
    seed: int
    drop_last: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _order: tuple[int, Tensor] = field(default_factory=lambda: (-1, torch.empty(0)), repr=False)

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise DataError("the train side has no rows; change split.fractions or data.filter")
        if self.steps_per_epoch < 1:
            raise ConfigError(
                f"train.drop_last with batch_size {self.batch_size} and {self.num_rows} train rows"
                " leaves no batch; lower batch_size or unset drop_last"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of windows of one epoch."""
        return (
            self.num_rows // self.batch_size
            if self.drop_last
            else -(-self.num_rows // self.batch_size)
        )

    def epoch(self, step: int) -> int:
        """Return the epoch (from 0) of a step (from 0)."""
        return step // self.steps_per_epoch

    def window(self, step: int) -> Tensor:
        """Return the row numbers int64 [B] of a step (from 0)."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (-1, torch.empty(0))  # free the last epoch's order before making the next
            self._order = (epoch, epoch_order(self.seed, epoch, self.num_rows).to(self.device))
        return self._order[1][index * self.batch_size : (index + 1) * self.batch_size].to(
            torch.int64
        )


def require_enough_rows(num_rows: int, world_size: int) -> None:
    """Refuse more ranks than train rows.

    Raises:
        DataError: there are too few rows; the message gives both numbers.
    """
    if num_rows < world_size:
        raise DataError(
            f"{world_size} ranks but only {num_rows} train rows: expected at least one row for each"
            f" rank; set train.ranks to {max(num_rows, 1)} or less"
        )
