"""Whether every worker of a loader gives all rows of a stream, so that each comes several times in
an epoch.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from training.watch.forwards import tensors_in
from training.watch.loaders import Used
from training.watch.record import Listener, Watch

MOST = 200_000  # rows of a passage
LARGEST = 20_000  # values of a row
PASSAGES = 2  # that are looked at
FEW = 20  # distinct rows
# times the rows of one worker: what is left of a batch may be dropped after another shuffle
ABOVE = 1.05
VARIED = 0.5  # of the rows that one worker gives are distinct: others repeat each other by chance


@dataclass(eq=False)
class Passage:
    """One iteration over a loader: hashes of the rows of each batch."""

    used: Used
    epoch: int
    batches: list[list[bytes]] = field(default_factory=list)
    rows: int = 0


class Streams(Listener):
    """Listens to loaders of an IterableDataset that have workers."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.open: dict[int, Passage] = {}  # by id of `Used`, which the loaders keep
        self.whole: Counter[int] = Counter()
        self.repeated: list[tuple[Used, str]] = []

    def drew(self, used: Used, batch: Any) -> None:
        """Keep hashes of a batch's rows."""
        if (
            not isinstance(used.loader.dataset, IterableDataset)
            or used.loader.num_workers < 2
            or self.whole[id(used)] >= PASSAGES
        ):
            return
        passage = self.open.get(id(used))
        if passage is None or passage.epoch != used.epochs:
            passage = self.open[id(used)] = Passage(used, used.epochs)
        keys = (
            []
            if passage.rows > MOST
            else row_keys(list(tensors_in(batch)), used.loader.batch_size is not None)
        )
        passage.batches.append(keys)
        passage.rows += len(keys)

    def exhausted(self, used: Used, drawn: int) -> None:
        """A passage came to its end. Where two iterators of a loader took turns, it has not as many
        batches as either of them.
        """
        passage = self.open.pop(id(used), None)
        if (
            passage is None
            or len(passage.batches) != drawn
            or passage.rows > MOST
            or not all(passage.batches)
        ):
            return
        self.whole[id(used)] += 1
        workers = used.loader.num_workers
        if each_gives_all(passage.batches, workers):
            distinct = len({key for keys in passage.batches for key in keys})
            self.repeated.append(
                (
                    used,
                    (
                        f"{passage.rows} rows of an epoch are {distinct} distinct ones: each of"
                        f" {workers} workers gives the whole stream"
                    ),
                )
            )

    def ended(self) -> None:
        """Streams that were trained on."""
        for used, told in self.repeated:
            if used.steps:
                self.watch.tell("BH521", told, used.place)


def row_keys(tensors: list[Tensor], batched: bool) -> list[bytes]:
    """Hashes of rows over all tensors of a batch, as labels alone are often equal; one hash where
    the data set makes its batches by itself.
    """
    tensors = [t for t in tensors if t.layout == torch.strided and t.numel()]
    rows = len(tensors[0]) if tensors and tensors[0].ndim else 0
    together = [t for t in tensors if t.ndim and len(t) == rows] if batched else tensors
    if not any(t.is_floating_point() for t in together) or sum(
        t.numel() for t in together
    ) > LARGEST * max(rows, 1):
        return []
    hashes = [hashlib.blake2b(digest_size=8) for _ in range(rows if batched else 1)]
    for tensor in together:
        flat = tensor.detach().cpu().contiguous().reshape(len(hashes), -1).view(torch.uint8).numpy()
        for known, row in zip(hashes, flat, strict=True):
            known.update(row.tobytes())
    return [known.digest() for known in hashes]


def each_gives_all(batches: list[list[bytes]], workers: int) -> bool:
    """Whether all workers give the same rows. They take turns, so that batch i is of worker i %
    workers as long as all of them have rows.

    >>> once = [[bytes([9, i, j]) for j in range(4)] for i in range(10)]
    >>> twice = [batch for batch in once for _ in range(2)]
    >>> each_gives_all(once, 2), each_gives_all(twice, 2)
    (False, True)
    """
    shares = [
        Counter(key for keys in batches[first::workers] for key in keys) for first in range(workers)
    ]
    total = sum(share.total() for share in shares)
    distinct = len(set().union(*shares))
    varied = all(len(share) >= VARIED * share.total() for share in shares)
    same = all((share & shares[0]).total() * ABOVE >= share.total() for share in shares)
    return varied and same and FEW <= distinct <= total / workers * ABOVE
