"""Rows that the loaders of one rank give to training and to evaluations, to be compared with those
of other ranks.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from training.watch.forwards import tensors_in
from training.watch.loaders import Used
from training.watch.record import Listener, Place, Watch

MOST = 20_000  # rows of a loader
LARGEST = 20_000  # values of a row


class Sides(Listener):
    """Listens to loaders, where there is more than one rank."""

    def __init__(self, watch: Watch, several: bool) -> None:
        self.watch, self.several = watch, several
        self.rows: dict[int, tuple[Used, set[str]]] = {}

    def drew(self, used: Used, batch: Any) -> None:
        """Keep hashes of the rows as they were drawn: what the program does to them afterwards may
        differ between epochs.
        """
        first = (
            next((t for t in tensors_in(batch) if t.ndim and len(t) > 1), None)
            if self.several
            else None
        )
        _, known = self.rows.setdefault(id(used), (used, set()))
        if first is None or len(known) >= MOST or first[0].numel() > LARGEST:
            return
        flat = first.detach().reshape(len(first), -1).cpu().contiguous().view(torch.uint8).numpy()
        known.update(hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest() for row in flat)

    def told(self) -> tuple[list[str], list[tuple[Place, list[str]]]]:
        """Hashes of rows that this rank trained on, and, by loader, of those that it evaluated and
        never trained on.
        """
        trained = {key for used, rows in self.rows.values() if used.steps for key in rows}
        held = [
            (used.place, sorted(rows))
            for used, rows in self.rows.values()
            if not used.steps and rows and not rows & trained
        ]
        return sorted(trained), held
