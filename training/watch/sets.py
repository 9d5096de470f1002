"""Rows as data sets return them: rows shared by training and evaluation, rows of each worker of a
stream, and rows of each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset

from training.watch.events import Listener, Place, Used
from training.watch.forwards import tensors_in
from training.watch.loaders import Loaders, hashes, loader_rows
from training.watch.record import Watch

MOST, LARGEST, FEW = 50_000, 20_000, 20  # most rows; most values of a row; least rows
LEAST, SHARED = 10, 0.02  # least shared rows; least share of held-out rows
ALL, COVERED = 0.95, 0.5  # share of held-out or train rows; beyond it on purpose

Source = tuple[Any, Sequence[int]]


class Sets(Listener):
    """Listener that compares the data sets of loaders at the end."""

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self.watch, self.loaders = watch, loaders

    def ended(self) -> None:
        """Compare each held-out data set with the train data set. With several train sets, as for
        folds, the network of each is unknown.
        """
        used = list(self.loaders.used.values())
        trained = {id(u.loader.dataset): u.loader for u in used if u.steps}
        if len(trained) == 1:
            train = source(next(iter(trained.values())))
            for held in (u for u in used if id(u.loader.dataset) not in trained):
                self._compare(train, held)

    def _compare(self, mine: Source | None, held: Used) -> None:
        others = source(held.loader)
        if mine is None or others is None or mine[0] is not others[0]:
            return
        known, asked = set(mine[1]), set(others[1])
        count = len(known & asked)
        if count >= LEAST and SHARED <= count / len(asked) < ALL and count <= COVERED * len(known):
            told = f"{count} of {len(asked)} rows of the evaluation are rows that were trained on"
            self.watch.tell("BH803", f"{told}, as their data set holds them", held.place)


def source(loader: DataLoader[Any]) -> Source | None:
    """Return the data set below all subsets and the rows that a loader may return. Return None for
    a custom sampler.
    """
    sampler, rows = getattr(loader.batch_sampler, "sampler", None), loader_rows(loader)
    if not type(sampler).__module__.startswith("torch.") or not 0 < rows <= MOST:
        return None
    index = [int(i) for i in getattr(sampler, "indices", range(rows))]
    dataset: Any = loader.dataset
    while isinstance(dataset, Subset):
        index, dataset = [int(dataset.indices[i]) for i in index], dataset.dataset
    return dataset, index


class Streams(Listener):
    """Listener for loaders of an IterableDataset with workers."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        # row hashes of each batch, by id of a `Used`, which the loaders keep
        self.open: dict[int, list[list[bytes]]] = {}

    def drew(self, used: Used, batch: Any) -> None:
        """Keep hashes of a batch's rows over all tensors, as labels alone are often equal."""
        streamed = isinstance(used.loader.dataset, IterableDataset)
        rows = used.batches * (used.loader.batch_size or 1)
        if not streamed or used.loader.num_workers < 2 or used.epochs > 1 or rows > MOST:
            return
        tensors = [t for t in tensors_in(batch) if t.ndim and len(t) and t.numel()]
        floats = any(t.is_floating_point() for t in tensors)
        small = floats and sum(t.numel() for t in tensors) <= LARGEST * len(tensors[0])
        keys = zip(*map(hashes, tensors), strict=False) if small else ()
        self.open.setdefault(id(used), []).append([b"".join(parts) for parts in keys])

    def exhausted(self, used: Used, drawn: int) -> None:
        """Check an epoch at its end. Of two epochs at once, neither has all batches kept."""
        batches, workers = self.open.pop(id(used), []), used.loader.num_workers
        if used.steps and len(batches) == drawn > 0 and each_gives_all(batches, workers):
            rows = sum(map(len, batches[::workers]))
            told = f"each of {workers} workers gives all {rows} rows of the stream"
            self.watch.tell("BH521", f"{told}: they come {workers} times an epoch", used.place)


def each_gives_all(batches: list[list[bytes]], workers: int) -> bool:
    """Check that all workers return the same rows, each once. Workers take turns: batch i is from
    worker i % workers while all have rows.

    >>> once = [[bytes([9, i, j]) for j in range(4)] for i in range(10)]
    >>> each_gives_all(once, 2), each_gives_all([batch for batch in once for _ in range(2)], 2)
    (False, True)
    """
    shares = [[k for keys in batches[first::workers] for k in keys] for first in range(workers)]
    return len(shares[0]) >= FEW and all(
        len(share) == len(set(share)) and set(share) == set(shares[0]) for share in shares
    )


class Sides(Listener):
    """Listener for loaders of several ranks."""

    def __init__(self, watch: Watch, several: bool) -> None:
        self.watch, self.several = watch, several
        self.rows: dict[int, tuple[Used, set[str]]] = {}

    def drew(self, used: Used, batch: Any) -> None:
        """Keep hashes of the rows as drawn, since later changes may differ between epochs."""
        first = next((t for t in tensors_in(batch) if t.ndim and len(t) > 1), None)
        if self.several and first is not None and first[0].numel() <= LARGEST:
            _, known = self.rows.setdefault(id(used), (used, set()))
            known.update(key.hex() for key in (hashes(first) if len(known) < MOST else ()))

    def told(self) -> tuple[list[str], list[tuple[Place, list[str]]]]:
        """Return hashes of this rank's train rows and, by loader, of rows only evaluated."""
        trained = {key for used, rows in self.rows.values() if used.steps for key in rows}
        held = [
            (used.place, sorted(rows))
            for used, rows in self.rows.values()
            if not used.steps and rows and not rows & trained
        ]
        return sorted(trained), held
