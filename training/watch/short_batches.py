"""Means over batches that count a short last batch as much as a full one."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import DataLoader

from training.review.engine import review_text
from training.review.findings import RULES
from training.watch.loaders import Loaders, Used
from training.watch.record import Listener, Place, Watch

EXCESS = 0.02  # by which the share of the last batch is larger than that of its rows


class ShortBatches(Listener):
    """Looks at what loaders for evaluation gave, where the program's text averages means of their
    batches.
    """

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self.watch, self.loaders = watch, loaders

    def ended(self) -> None:
        """What the whole run shows."""
        uneven = {
            used.place: used
            for used in self.loaders.used.values()
            if not used.steps and excess(used) >= EXCESS
        }
        own = [place for place in uneven if place.path == str(self.watch.program)]
        if not own:
            return
        for finding in review_text(
            self.watch.program.read_text(encoding="utf-8", errors="replace"), rules=[RULES["BH205"]]
        ):
            for place in (p for p in own if p.line == finding.span[0]):
                self._tell(uneven[place], Place(place.path, finding.line))

    def _tell(self, used: Used, place: Place) -> None:
        rows, size = rows_given(used.loader), int(used.loader.batch_size or 1)
        batches = -(-rows // size)
        told = (
            f"the mean of {batches} batches gives {rows % size} of {rows} rows, the last batch, a"
            f" share of {1 / batches:.0%}, theirs is {rows % size / rows:.0%}"
        )
        self.watch.tell("BH870", told, place)


def excess(used: Used) -> float:
    """By how much the share of the last batch is above that of its rows, where a loader makes
    batches of one size and keeps the rest.
    """
    loader = used.loader
    if not isinstance(loader.batch_size, int) or loader.drop_last:
        return 0.0
    rows = rows_given(loader)
    rest = rows % loader.batch_size
    return (
        loader.batch_size / (rows - rest + loader.batch_size) - rest / rows
        if rest and rows > loader.batch_size
        else 0.0
    )


def rows_given(loader: DataLoader[Any]) -> int:
    """Rows that a sampler gives in one passage; 0 where it does not tell."""
    return len(loader.sampler) if isinstance(loader.sampler, Sized) else 0
