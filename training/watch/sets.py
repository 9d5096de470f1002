"""Data sets behind loaders: rows that a held-out one shares with the one that was trained on, and
evaluations that draw rows at random.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from training.watch.forwards import Call, tensors_in
from training.watch.loaders import Loaders, Used, loader_rows
from training.watch.record import Listener, Watch

MOST, MOST_VALUES = 50_000, 50_000_000  # rows and values of a data set that is compared
# rows in common, and their share of the held-out ones: where all are, the train rows are measured
# on purpose
LEAST, SHARED, ALL = (
    10,
    0.02,
    0.95,
)
COVERED = 0.5  # of the train rows: a table of all rows is evaluated on purpose
# share of distinct held-out rows that are copies of train rows; rows and columns that are looked at
REPEATED, DISTINCT = (
    0.05,
    2000,
)
CHANCE, SIGMAS = 3.0, 4.0  # times the share of train rows that repeat each other; deviations
VALUES = {True: 2, False: 8}  # of a row, by whether they are fractions: fewer are equal by chance
PLAIN = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)
DRAWN = 0.5  # of the rows: fewer are an estimate


@dataclass(eq=False)
class Fed:
    """A network and the loaders whose batches it was given."""

    module: weakref.ref[nn.Module]
    kind: type[nn.Module]
    trained: dict[int, Used] = field(default_factory=dict)  # by id of the data set
    held: dict[int, Used] = field(default_factory=dict)


class Sets(Listener):
    """Listens to loaders and networks."""

    def __init__(self, watch: Watch, loaders: Loaders) -> None:
        self.watch, self.loaders = watch, loaders
        self.of: dict[int, Fed] = {}
        self.all: list[Fed] = []
        self.rows = 0  # of the last batch
        self.pending: list[tuple[Call, Used]] = []

    def drew(self, used: Used, batch: Any) -> None:
        """Rows of the batch."""
        first = next((t for t in tensors_in(batch) if t.ndim), None)
        self.rows = len(first) if first is not None else 0

    def forwarded(self, call: Call) -> None:
        """A network is given the rows of the last batch."""
        used = self.loaders.last
        if used is None or not call.rows or call.rows != self.rows:
            return
        if call.grad and call.training:
            self.pending = [*self.pending[-3:], (call, used)]
        elif not call.grad and self.watch.steps:
            self._fed(call.module).held[id(used.loader.dataset)] = used

    def _fed(self, module: nn.Module) -> Fed:
        known = self.of.get(id(module))
        if known is None or known.module() is not module:
            known = self.of[id(module)] = Fed(weakref.ref(module), type(module))
            self.all.append(known)
        return known

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The data set of this step."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for call, used in self.pending:
            if any(id(p) in held for p in call.module.parameters()):
                self._fed(call.module).trained[id(used.loader.dataset)] = used
        self.pending.clear()

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """Each held-out data set beside the one that was trained on, and how its rows were
        drawn.
        """
        trained = {key for fed in self.all for key in fed.trained}
        for fed in self.all:
            held = {
                key: used for key, used in fed.held.items() if key not in trained and not used.steps
            }
            owner = self._owner(fed)
            for used in held.values():
                self._drawn(used)
                if owner is not None and len(owner.trained) == 1:
                    self._compared(next(iter(owner.trained.values())), used)

    def _owner(self, fed: Fed) -> Fed | None:
        """Whose training a network shows: its own, or that of the only trained one of its kind, of
        which it is a copy or an average.
        """
        alike = [f for f in self.all if f.trained and f.kind is fed.kind]
        return fed if fed.trained else alike[0] if len(alike) == 1 else None

    def _drawn(self, used: Used) -> None:
        loader = used.loader
        sampler, rows = (
            getattr(loader.batch_sampler, "sampler", loader.sampler),
            loader_rows(loader),
        )
        weighted = isinstance(sampler, WeightedRandomSampler) and len(sampler.weights.unique()) > 1
        if (
            not rows
            or not isinstance(sampler, WeightedRandomSampler | RandomSampler)
            or not sampler.replacement
        ):
            return
        if (weighted and sampler.num_samples >= DRAWN * rows) or (
            isinstance(sampler, RandomSampler) and sampler.num_samples == rows
        ):
            how = "by weights that are not alike, " if weighted else ""
            told = (
                f"the {rows} rows of an evaluation are drawn {how}with replacement"
                f" ({type(sampler).__name__}): some count twice and more, others not at all"
            )
            self.watch.tell("BH853", told, used.place)

    def _compared(self, train: Used, held: Used) -> None:
        keys = rows_of_both(train.loader, held.loader)
        if keys is None:
            return
        mine, others, continuous = keys
        known, both = set(mine), set(mine) & set(others)
        count, total = sum(k in known for k in others), len(others)
        repeated = min(CHANCE * (1 - len(known) / max(len(mine), 1)), 1.0)
        by_chance = repeated + SIGMAS * (repeated * (1 - repeated) / max(total, 1)) ** 0.5
        if continuous and len(both) >= max(LEAST, REPEATED * len(set(others))):
            by_chance = 0.0  # rows were repeated before they were split
        if (
            count >= LEAST
            and max(SHARED, by_chance) <= count / total < ALL
            and len(both) <= COVERED * len(known)
        ):
            told = (
                f"{count} of {total} rows of the evaluation are rows that were trained on, as their"
                " data sets hold them"
            )
            self.watch.tell("BH803", told, held.place)


Rows = tuple[list[Hashable], list[Hashable], bool]


def rows_of_both(train: DataLoader[Any], held: DataLoader[Any]) -> Rows | None:
    """What tells the rows of two loaders apart, before anything is drawn or augmented; None where
    their data sets do not show it.

    Rows are told by their index in the same data set, by an index into the same table, or by the
    values that both hold a row each of. The last of the three is whether no two rows are the same
    by chance, since several columns hardly hold a value twice.

    >>> rows = TensorDataset(torch.arange(8.0).reshape(4, 2))
    >>> rows_of_both(DataLoader(Subset(rows, [0, 1])), DataLoader(Subset(rows, [1, 3])))
    ([0, 1], [1, 3], True)
    """
    a, b = source(train), source(held)
    if a is None or b is None:
        return None
    (mine, here), (others, there) = a, b
    if mine is others:
        return list(here), list(there), True
    if type(mine) is not type(others):
        return None
    parts = [
        (mine_of, others_of)
        for name, mine_of in contents(mine).items()
        if (others_of := contents(others).get(name)) is not None
    ]
    apart = [
        p
        for p in parts
        if not same_values(*p) and len(p[0]) == len(mine) and len(p[1]) == len(others)
    ]
    together = min((len(m) for m, o in parts if same_values(m, o) and is_table(m)), default=0)
    indices = next((p for p in apart if together and all(is_index(v, together) for v in p)), None)
    tables = [
        p
        for p in apart
        if all(map(is_table, p))
        and np.shape(p[0])[1:] == np.shape(p[1])[1:]
        and p[0].dtype == p[1].dtype
    ]
    if indices is not None:
        keys: list[list[Hashable]] = [[int(v) for v in side] for side in indices]
    elif tables and not together:
        widest = max(tables, key=lambda p: int(np.prod(np.shape(p[0])[1:])))
        if any(int(np.prod(v.shape)) > MOST_VALUES for v in widest):
            return None
        keys = [list[Hashable](hashes(v)) for v in widest]
    else:
        return None
    return (
        [keys[0][i] for i in here],
        [keys[1][i] for i in there],
        indices is not None or continuous_columns(widest[0]),
    )


def continuous_columns(table: Any) -> bool:
    """Whether two columns and more hold a value of their own in most of the distinct rows.

    >>> continuous_columns(torch.rand(50, 3)), continuous_columns((torch.rand(50, 3) * 4).round())
    (True, False)
    """
    rows = np.unique(
        np.asarray(table.detach().cpu().float() if isinstance(table, Tensor) else table)[
            :DISTINCT
        ].reshape(min(len(table), DISTINCT), -1),
        axis=0,
    )
    return bool(
        sum(len(np.unique(column)) > len(rows) / 2 for column in rows.T[:DISTINCT])
        >= min(2, rows.shape[1])
    )


def source(loader: DataLoader[Any]) -> tuple[Any, Sequence[int]] | None:
    """The data set under all subsets, and the rows of it that a loader may give."""
    sampler, rows = getattr(loader.batch_sampler, "sampler", None), loader_rows(loader)
    if type(sampler) not in PLAIN or not 0 < rows <= MOST:
        return None
    index: Sequence[int] = (
        [int(i) for i in sampler.indices]
        if isinstance(sampler, SubsetRandomSampler)
        else range(rows)
    )
    dataset: Any = loader.dataset
    while isinstance(dataset, Subset):
        index, dataset = [int(dataset.indices[i]) for i in index], dataset.dataset
    return dataset, index


def contents(dataset: Any) -> dict[str, Any]:
    """Arrays and lists of a data set, by name."""
    if isinstance(dataset, Tensor | np.ndarray):
        return {"": dataset}
    held = (
        {str(i): t for i, t in enumerate(dataset.tensors)}
        if isinstance(dataset, TensorDataset)
        else getattr(dataset, "__dict__", {})
    )
    return {
        name: v
        for name, v in held.items()
        if (isinstance(v, Tensor | np.ndarray) and v.ndim)
        or (isinstance(v, list | range) and len(v))
    }


def same_values(a: Any, b: Any) -> bool:
    """Whether both are one array."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return bool(a.data_ptr() == b.data_ptr() and a.shape == b.shape)
    return (
        isinstance(a, np.ndarray)
        and isinstance(b, np.ndarray)
        and bool(a.shape == b.shape and a.ctypes.data == b.ctypes.data)
    )


def is_table(value: Any) -> bool:
    """Whether rows of an array are told apart by their values."""
    if not isinstance(value, Tensor | np.ndarray) or (
        isinstance(value, np.ndarray) and value.dtype.kind not in "fiu"
    ):
        return False
    fractions = value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"
    return bool(value.ndim > 1) and int(np.prod(value.shape[1:])) >= VALUES[fractions]


def is_index(value: Any, rows: int) -> bool:
    """Whether a value holds distinct row numbers of a table of so many rows."""
    if isinstance(value, Tensor | np.ndarray):
        whole = (
            value.dtype in (torch.int64, torch.int32)
            if isinstance(value, Tensor)
            else value.dtype.kind in "iu"
        )
        return bool(value.ndim == 1 and whole) and is_index(value.tolist(), rows)
    return all(isinstance(v, int | np.integer) and 0 <= v < rows for v in value) and len(
        set(value)
    ) == len(value)


def hashes(table: Any) -> list[bytes]:
    """One of each row."""
    rows = np.ascontiguousarray(
        table.detach().cpu().float().numpy() if isinstance(table, Tensor) else table
    ).reshape(len(table), -1)
    return [hashlib.blake2b(row.tobytes(), digest_size=12).digest() for row in rows]
