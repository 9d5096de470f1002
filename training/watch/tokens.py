"""Sequences of tokens that a network was trained on and is evaluated on, whatever padding stands
behind them.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from training.watch.forwards import Call
from training.watch.record import Place
from training.watch.rows import MOST, Batches, Rows

SHORTEST = 5  # tokens of a row, in the mean: shorter ones repeat by chance
KINDS = 8  # values of tokens

# B rows, T places


class Sequences(Batches):
    """Rows [B, T] of tokens by the hash of what stands before their padding."""

    def add(self, values: Tensor, place: Place) -> list[bytes]:
        """Add rows; their hashes."""
        self.place = place
        rows = values.detach().cpu()
        keys = [
            hashlib.blake2b(row[:end].numpy().tobytes(), digest_size=12).digest()
            for row, end in zip(rows, ends(rows).tolist(), strict=True)
        ]
        if len(self.rows) < MOST:
            self.rows.update(dict.fromkeys(keys, rows[0, :1]))
            self.times.update(keys)
        return keys

    def by_chance(self, known: int, total: int) -> bool:
        """Whether so many of other rows may be among these though both were drawn apart: as often
        as these repeat each other.
        """
        return self.repeats(known, total)


def ends(tokens: Tensor) -> Tensor:
    """Places of each row [B] before the run of one value at its end.

    >>> ends(torch.tensor([[4, 5, 0, 0], [3, 7, 6, 2]])).tolist()
    [2, 3]
    """
    return tokens.shape[1] - (tokens == tokens[:, -1:]).flip(1).long().cumprod(1).sum(1)


class TokenRows(Rows):
    """Listens to networks whose first input is tokens."""

    batches = Sequences

    def forwarded(self, call: Call) -> None:
        """Keep calls until it is known whether they were for training."""
        first = call.inputs[0] if call.inputs else None
        if (
            first is None
            or first.dtype != torch.int64
            or first.ndim != 2
            or not first.numel()
            or len(first.unique()) < KINDS
        ):
            return
        if float(ends(first).float().mean()) >= SHORTEST:
            self._forwarded(call)

    def ended(self) -> None:
        """What the whole run shows."""
        for history in self.all:
            if history.steps and history.phases:
                self._shared(history)
                self._at_last(history)

    def lost(self, *_: object) -> None:
        """Scales and labels are those of `Rows`."""
