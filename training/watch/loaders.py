"""How batches are drawn: in which order, from where, and whether an evaluation gets all rows as
they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from training.watch.aside import aside
from training.watch.forwards import Forwards, tensors_in
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

TWICE, READ = 2, 4  # times; rows that are read again
FEW_WEIGHTS = 0.5  # of the rows: larger parts may be drawn from on purpose
UNMIXED = 0.5  # of the variance of labels lies between batches
BATCHES = 6
SURE = 3.5  # standard errors
CUT_BACK = re.compile(
    r"\[\s*:\s*(?:len\(|n\b|n_|num|total|size|count)|gather_for_metrics|all_gather"
)


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


class Drawn:
    """The iterator of a loader, counted."""

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
    """Listens to `DataLoader.__iter__`."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self.watch, self.forwards = watch, forwards
        self.used: dict[int, Used] = {}
        self.drawn = 0
        self.last: Used | None = None
        self.epoch = 0
        # the first batch of each epoch of a shuffling loader, by the line that draws
        self.firsts: dict[Place, list[tuple[Used, bytes]]] = {}

    def install(self) -> None:
        """Listen."""
        around(DataLoader, "__iter__", self._iterate)
        around(DistributedSampler, "set_epoch", self._set_epoch)

    def _iterate(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        if self.watch.quiet:
            return original(loader)
        used = self.used.setdefault(id(loader), Used(loader, self.watch.here()))
        used.epochs += 1
        sampler = loader.sampler
        if used.steps:
            self.watch.emit(Listener.began, used)
        if isinstance(sampler, DistributedSampler):
            used.set_epochs.append(sampler.epoch)
        return Drawn(original(loader), used, self)

    def _set_epoch(self, original: Callable[..., Any], sampler: Any, epoch: int) -> None:
        original(sampler, epoch)

    @guarded
    def draw(self, used: Used, batch: Any) -> None:
        """A batch was drawn."""
        if self.watch.quiet:
            return
        used.batches += 1
        self.drawn += 1
        if self.last is not used or used.epochs != self.epoch:
            self.epoch = used.epochs
            self._first(used, batch)
        self.last = used
        self.watch.emit(Listener.drew, used, batch)
        if used.epochs == 1:
            tensors = list(tensors_in(batch))
            label = tensors[-1] if tensors else None
            with self.watch.unwatched():  # the program has not used its labels yet
                if label is not None and label.ndim and label.numel() == len(label) > 1:
                    used.labels.append(label.detach().reshape(-1).double())
                    if (
                        isinstance(used.loader.sampler, SequentialSampler)
                        and tensors[0].ndim
                        and tensors[0].numel()
                    ):
                        used.means.append(
                            tensors[0]
                            .detach()
                            .reshape(len(tensors[0]), -1)
                            .mean(1, dtype=torch.float64)
                        )

    def _first(self, used: Used, batch: Any) -> None:
        first = next((t for t in tensors_in(batch) if t.numel() > 1 and len(t) > 1), None)
        if (
            first is not None
            and isinstance(used.loader.sampler, RandomSampler)
            and loader_rows(used.loader) > len(first)
        ):
            self.firsts.setdefault(used.place, []).append(
                (used, first.detach().contiguous().view(torch.uint8).numpy().tobytes()[:65536])
            )

    @property
    def shuffles(self) -> bool:
        """Whether the last batch was drawn at random, so that batches do not follow each other."""
        return self.last is not None and isinstance(self.last.loader.sampler, RandomSampler)

    def draws(self) -> int:
        """Batches drawn until now."""
        return self.drawn

    def stepped(self, *_: object) -> None:
        """The loader of the last batch is one for training."""
        if self.last is not None:
            self.last.steps += 1

    def ended(self) -> None:
        """What the whole run shows."""
        for used in self.used.values():
            self._weighted(used)
            if used.steps:
                self._train(used)
            elif used.batches and self.watch.steps:
                self._evaluation(used)
        for place, firsts in self.firsts.items():
            if (
                len(firsts) > TWICE
                and len({b for _, b in firsts}) == 1
                and all(u.steps for u, _ in firsts)
            ):
                self.watch.tell(
                    "BH822",
                    f"{len(firsts)} epochs began with the same batch: the generator is seeded anew"
                    " for each",
                    place,
                )

    def _weighted(self, used: Used) -> None:
        """Row i is drawn by weight i, so that weights of classes draw the first rows alone."""
        loader = used.loader
        sampler, rows = (
            getattr(loader.batch_sampler, "sampler", loader.sampler),
            loader_rows(loader),
        )
        if (
            not isinstance(sampler, WeightedRandomSampler)
            or isinstance(loader.dataset, IterableDataset)
            or not used.batches
        ):
            return
        weights = len(sampler.weights)
        if weights < rows * FEW_WEIGHTS:
            told = (
                f"WeightedRandomSampler has {weights} weights for {rows} rows: only rows 0 to"
                f" {weights - 1} are ever drawn, {sampler.num_samples} times an epoch"
            )
            self.watch.tell("BH836", told, used.place)

    def _train(self, used: Used) -> None:
        sampler = used.loader.sampler
        if (
            isinstance(sampler, DistributedSampler)
            and sampler.shuffle
            and len(used.set_epochs) >= TWICE
            and len(set(used.set_epochs)) == 1
        ):
            self.watch.tell(
                "BH512",
                f"{used.epochs} epochs were drawn in the same order: the epoch of the"
                f" DistributedSampler stayed {sampler.epoch}",
                used.place,
            )
        plain = isinstance(sampler, RandomSampler | SequentialSampler) and not isinstance(
            used.loader.dataset, IterableDataset | Subset
        )
        if self.forwards.wrapped and plain:
            self.watch.tell(
                "BH513",
                "the network is wrapped for ranks, and its loader gives every rank all rows",
                used.place,
            )
        if not isinstance(sampler, SequentialSampler) or isinstance(
            used.loader.dataset, IterableDataset
        ):
            return
        if unmixed(used.labels):
            self.watch.tell(
                "BH806",
                "train rows come in the order of the file, and labels are not mixed in it: batches"
                " hold one kind each",
                used.place,
            )
        elif (
            used.epochs >= TWICE
            and used.steps >= used.batches // 2
            and in_no_order(used.labels)
            and in_no_order(used.means)
        ):
            told = (
                f"each of {used.epochs} epochs had the same {len(used.labels)} batches in the same"
                " order, of rows that do not follow each other"
            )
            self.watch.tell("BH887", f"{told}: the loader does not shuffle", used.place)

    def _evaluation(self, used: Used) -> None:
        loader, size = used.loader, loader_rows(used.loader)
        if (
            loader.drop_last
            and size
            and loader.batch_size
            and size % loader.batch_size
            and used.batches >= size // loader.batch_size
        ):
            self.watch.tell(
                "BH520",
                f"the evaluation leaves out {size % loader.batch_size} of {size} rows (drop_last)",
                used.place,
            )
        if isinstance(loader.dataset, IterableDataset) or not size:
            return
        if (
            isinstance(loader.sampler, DistributedSampler)
            and (twice := loader.sampler.total_size - size) > 0
            and adds_up(self.watch.program)
        ):
            told = (
                f"{loader.sampler.num_replicas} ranks share out {size} rows, and {twice} of them"
                " are repeated so that each has as many"
            )
            self.watch.tell("BH879", f"{told}: sums over ranks count them twice", used.place)
        if read_otherwise(loader.dataset, min(READ, size), self.watch):
            self.watch.tell(
                "BH518",
                "a row of the evaluation is another one each time it is read: it is augmented at"
                " random",
                used.place,
            )


def read_otherwise(dataset: Dataset[Any], rows: int, watch: Watch) -> bool:
    """Whether one of the first rows has other inputs each time, and the same label; the generators
    are left as they were.
    """
    with aside(watch):
        return any(differ(*(_values(dataset[i]) for _ in range(TWICE))) for i in range(rows))


def adds_up(program: Path) -> bool:
    """Whether a program adds numbers up over ranks, and cuts nothing back to the length of its
    data.
    """
    text = program.read_text(encoding="utf-8", errors="replace")
    return "all_reduce(" in text and not CUT_BACK.search(text)


def _values(row: Any) -> list[Tensor]:
    """The tensors of a row, numbers beside them included: `(image, 3)`."""
    parts = row if isinstance(row, tuple | list) else [row]
    return [
        t
        for part in parts
        for t in ([torch.tensor(part)] if isinstance(part, int | float) else tensors_in(part))
    ]


def differ(first: list[Tensor], again: list[Tensor]) -> bool:
    """Whether two readings of a row have one label, the last of them, and other inputs."""
    if (
        len(first) < TWICE
        or [t.shape for t in first] != [t.shape for t in again]
        or not torch.equal(first[-1], again[-1])
    ):
        return False
    return any(
        not torch.allclose(a.double(), b.double(), equal_nan=True)
        for a, b in zip(first[:-1], again[:-1], strict=True)
    )


def loader_rows(loader: DataLoader[Any]) -> int:
    """Rows of its data set; 0 where it does not tell."""
    try:
        return len(loader.dataset)
    except TypeError:
        return 0


def in_no_order(batches: list[Tensor]) -> bool:
    """Whether values of rows say nothing about those of the next row, as those of a series, or of
    windows that overlap, do.

    >>> torch.manual_seed(0) and in_no_order([torch.randn(32) for _ in range(8)])
    True
    >>> in_no_order([torch.arange(32.0).add(i).sin() for i in range(8)])
    False
    """
    if len(batches) < BATCHES or len({b.shape for b in batches[:-1]}) > 1:
        return False
    values = torch.cat(batches)
    moved = values - values.mean()
    size = float(moved.square().sum())
    return (
        size > 0 and abs(float((moved[1:] * moved[:-1]).sum()) / size) < SURE / len(values) ** 0.5
    )


def unmixed(labels: list[Tensor]) -> bool:
    """Whether batches differ in their labels as no mixed order lets them: in their classes, or from
    the least measured value to the greatest.

    Measured values that go up and down are those of a series, whose rows come in the order of time.

    >>> (unmixed([torch.full((8,), float(i // 4)) for i in range(8)]),
    ...     unmixed([torch.full((8,), i / 4) for i in range(8)]))
    (True, True)
    >>> unmixed([torch.arange(8.0).add(i).sin() for i in range(8)])
    False
    >>> unmixed([torch.arange(8.0) % 2 for _ in range(8)])
    False
    """
    if len(labels) < BATCHES or min(map(len, labels)) < TWICE:
        return False
    whole = torch.cat(labels)
    means = torch.stack([b.mean() for b in labels])
    total = float(whole.var())
    steps = means.diff()
    sorted_so = (
        bool((whole == whole.round()).all()) or bool((steps >= 0).all()) or bool((steps <= 0).all())
    )
    return total > 0 and sorted_so and float(means.var()) / total > UNMIXED
