"""Batch loading: shuffling, sampling, sharding and complete evaluations."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from training.review.engine import review_text
from training.review.findings import RULES
from training.watch.events import Listener, Place, Used
from training.watch.forwards import Forwards, tensors_in
from training.watch.patches import around
from training.watch.record import Watch, guarded

READ, BATCHES, SURE = 4, 6, 3.5  # rows read twice; least number of batches; standard errors
FEW_WEIGHTS = 0.5  # least share of rows with a weight: larger parts may be on purpose
UNMIXED = 0.5  # share of the label variance between batches
EXCESS = 0.02  # excess of the last batch's weight over its share of rows
CUT_BACK = re.compile(r"\[\s*:\s*(len\(|n\b|n_|num|total|size|count)|gather_for_metrics|all_gather")


class Drawn:
    """Iterator of a loader that counts batches."""

    def __init__(self, inner: Iterator[Any], used: Used, loaders: Loaders) -> None:
        self._inner, self._used, self._loaders = inner, used, loaders
        self._batches = 0

    def __iter__(self) -> Drawn:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        try:
            batch = next(self._inner)
        except StopIteration:
            self._loaders.watch.emit(Listener.exhausted, self._used, self._batches)
            raise
        self._batches += 1
        self._loaders.draw(self._used, batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Loaders(Listener):
    """Listener for `DataLoader.__iter__`."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        self.used: dict[int, Used] = {}
        self.drawn = 0
        self.last: Used | None = None

    def install(self) -> None:
        """Install the hook for iterators."""
        around(DataLoader, "__iter__", self._iterate)

    def _iterate(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        if self.watch.quiet:
            return original(loader)
        used = self.used.setdefault(id(loader), Used(loader, self.watch.here()))
        used.epochs += 1
        if used.steps:
            self.watch.emit(Listener.began, used)
        if isinstance(loader.sampler, DistributedSampler):
            used.set_epochs.append(loader.sampler.epoch)
        return Drawn(original(loader), used, self)

    @guarded
    def draw(self, used: Used, batch: Any) -> None:
        """Record a batch that was drawn."""
        if self.watch.quiet:
            return
        used.batches += 1
        self.drawn += 1
        self.last = used
        self.watch.emit(Listener.drew, used, batch)
        tensors = [t for t in tensors_in(batch) if t.ndim and t.numel()]
        if used.epochs == 1 and tensors and tensors[-1].numel() == len(tensors[-1]) > 1:
            with self.watch.unwatched():  # the program has not used its labels yet
                used.labels.append(tensors[-1].detach().reshape(-1).double())
                if isinstance(used.loader.sampler, SequentialSampler):
                    rows = tensors[0].detach().reshape(len(tensors[0]), -1)
                    used.means.append(rows.mean(1, dtype=torch.float64))

    @property
    def shuffles(self) -> bool:
        """Check that the last batch comes from a shuffling loader."""
        return self.last is not None and isinstance(self.last.loader.sampler, RandomSampler)

    def draws(self) -> int:
        """Return the number of batches drawn so far."""
        return self.drawn

    def stepped(self, *_: object) -> None:
        """Mark the loader of the last batch as a train loader."""
        if self.last is not None:
            self.last.steps += 1

    def ended(self) -> None:
        """Report the findings of the whole run."""
        for used in self.used.values():
            if used.batches and not isinstance(used.loader.dataset, IterableDataset):
                self._weighted(used)
                if used.steps:
                    self._ranks(used)
                    self._order(used)
                elif self.watch.steps:
                    self._evaluation(used)
        self._means()

    def _weighted(self, used: Used) -> None:
        """Report class weights used as row weights, which draw only the first rows."""
        sampler = getattr(used.loader.batch_sampler, "sampler", used.loader.sampler)
        count, rows = len(getattr(sampler, "weights", ())), loader_rows(used.loader)
        if isinstance(sampler, WeightedRandomSampler) and count < rows * FEW_WEIGHTS:
            told = f"WeightedRandomSampler has {count} weights for {rows} rows: others are never"
            self.watch.tell("BH836", f"{told} drawn", used.place)

    def _ranks(self, used: Used) -> None:
        """Check how several ranks shard the train rows."""
        sampler, epochs = used.loader.sampler, used.set_epochs
        shuffles = isinstance(sampler, DistributedSampler) and sampler.shuffle
        if shuffles and len(set(epochs)) == 1 < len(epochs):
            told = f"{used.epochs} epochs were drawn in the same order: the sampler's epoch stayed"
            self.watch.tell("BH512", f"{told} {epochs[0]}", used.place)
        plain = isinstance(sampler, RandomSampler | SequentialSampler)
        if self.forwards.wrapped and plain and not isinstance(used.loader.dataset, Subset):
            told = "the network is wrapped for ranks, and its loader gives every rank all rows"
            self.watch.tell("BH513", told, used.place)

    def _order(self, used: Used) -> None:
        """Report train rows in file order."""
        if not isinstance(used.loader.sampler, SequentialSampler):
            return
        if unmixed(used.labels):
            told = "train rows come in the order of their labels: batches hold one kind each"
            self.watch.tell("BH806", told, used.place)
        elif (
            used.epochs > 1
            and used.steps >= used.batches // 2
            and in_no_order(used.labels)
            and in_no_order(used.means)
        ):
            told = f"each of {used.epochs} epochs had the same batches in the same order, of rows"
            told += " that do not follow each other: the loader does not shuffle"
            self.watch.tell("BH887", told, used.place)

    def _evaluation(self, used: Used) -> None:
        """Report rows that an evaluation drops, repeats or augments."""
        loader, sampler, rows = used.loader, used.loader.sampler, loader_rows(used.loader)
        size = loader.batch_size or 1
        if loader.drop_last and rows % size and used.batches >= rows // size:
            told = f"the evaluation leaves out {rows % size} of {rows} rows (drop_last)"
            self.watch.tell("BH520", told, used.place)
        twice = sampler.total_size - rows if isinstance(sampler, DistributedSampler) else 0
        text = self.watch.program.read_text(encoding="utf-8", errors="replace")
        if twice > 0 and "all_reduce(" in text and not CUT_BACK.search(text):
            told = f"ranks share out {rows} rows, and repeat {twice} so that each has as many"
            self.watch.tell("BH879", f"{told}: sums over ranks count them twice", used.place)
        if self._read_otherwise(loader.dataset, min(READ, rows)):
            told = "a row of the evaluation is another one each time it is read: it is augmented"
            self.watch.tell("BH518", f"{told} at random", used.place)

    def _read_otherwise(self, dataset: Any, rows: int) -> bool:
        """Check that rereading a row gives other inputs and the same label. The generators keep
        their states.
        """
        python, numbers = random.getstate(), np.random.get_state()
        try:
            with self.watch.unwatched(), torch.random.fork_rng(devices=[]):
                return any(differ(_values(dataset[i]), _values(dataset[i])) for i in range(rows))
        finally:
            random.setstate(python)
            np.random.set_state(numbers)

    def _means(self) -> None:
        """Report averaged batch means of an evaluation whose last batch is shorter."""
        path = str(self.watch.program)
        own = [u for u in self.used.values() if not u.steps and u.place.path == path]
        uneven = {u.place.line: told for u in own if (told := of_last_batch(u.loader))}
        text = self.watch.program.read_text(encoding="utf-8", errors="replace") if uneven else ""
        for found in review_text(text, rules=[RULES["BH205"]]):
            if found.span[0] in uneven:
                self.watch.tell("BH870", uneven[found.span[0]], Place(path, found.line))


def of_last_batch(loader: DataLoader[Any]) -> str:
    """Describe the excess weight of a short last batch, or return an empty text."""
    rows = len(loader.sampler) if isinstance(loader.sampler, Sized) else 0
    size = loader.batch_size or 1
    rest, batches = rows % size, -(-rows // size)
    if loader.drop_last or not rest or rows < size or 1 / batches - rest / rows < EXCESS:
        return ""
    told = f"the mean of {batches} batches gives the last one, {rest} of {rows} rows, a share of"
    return f"{told} {1 / batches:.0%}, theirs is {rest / rows:.0%}"


def hashes(values: Tensor) -> list[bytes]:
    """Return one hash per row [N, ...]."""
    if not values.numel():
        return []
    flat = values.detach().reshape(len(values), -1).cpu().contiguous().view(torch.uint8).numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in flat]


def loader_rows(loader: DataLoader[Any]) -> int:
    """Return the number of rows in its data set, or 0 if unknown."""
    try:
        return len(loader.dataset)
    except TypeError:
        return 0


def _values(row: Any) -> list[Tensor]:
    """Return the tensors of a row, including its plain numbers: `(image, 3)`."""
    parts = row if isinstance(row, tuple | list) else [row]
    numbers = [torch.tensor(part) if isinstance(part, int | float) else part for part in parts]
    return list(tensors_in(numbers))


def differ(first: list[Tensor], again: list[Tensor]) -> bool:
    """Check that two reads of a row have the same label, the last tensor, and other inputs."""
    pairs = list(zip(first, again, strict=False))
    return (
        len(pairs) > 1
        and [t.shape for t in first] == [t.shape for t in again]
        and torch.equal(first[-1], again[-1])
        and not all(torch.allclose(a.double(), b.double(), equal_nan=True) for a, b in pairs)
    )


def in_no_order(batches: list[Tensor]) -> bool:
    """Check that the values of rows are uncorrelated with those of the next rows.

    >>> in_no_order([torch.arange(32.0).add(i).sin() for i in range(8)])
    False
    """
    if len(batches) < BATCHES or len({b.shape for b in batches[:-1]}) > 1:
        return False
    moved = torch.cat(batches) - torch.cat(batches).mean()
    size = float(moved.square().sum())
    alike = abs(float((moved[1:] * moved[:-1]).sum()))
    return size > 0 and alike / size < SURE / len(moved) ** 0.5


def unmixed(labels: list[Tensor]) -> bool:
    """Check that batches differ in labels more than shuffled ones: in class, or sorted by value.
    Labels that go up and down belong to a time series.

    >>> (unmixed([torch.full((8,), float(i // 4)) for i in range(8)]),
    ...     unmixed([torch.arange(8.0).add(i).sin() for i in range(8)]))
    (True, False)
    """
    if len(labels) < BATCHES or min(map(len, labels)) == 1:
        return False
    whole, means = torch.cat(labels), torch.stack([b.mean() for b in labels])
    total, steps = float(whole.var()), means.diff()
    sorted_so = bool((whole == whole.round()).all() or (steps >= 0).all() or (steps <= 0).all())
    return total > 0 and sorted_so and float(means.var()) / total > UNMIXED
