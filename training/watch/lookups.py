"""What is looked up and counted: embeddings of which one row is used, tables whose counts are lost
where a place comes twice.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Forwards
from training.watch.losses import Functions, at_end
from training.watch.record import Listener, Place, Watch

FEWEST, CALLS, LOOKED_UP = 3, 10, 300  # rows of an embedding; calls and numbers that are looked up
PLACES = 4  # in a row, from which on a number that is no padding does not stand at its ends alone
# of an embedding whose numbers are counted; times more or less than others
ROWS, AS_OFTEN = (100_000, 2.5)
ADDING = ("add", "__add__", "__radd__", "add_", "__iadd__", "sub", "__sub__", "__isub__", "sub_")
Index = tuple[Tensor, ...]


@dataclass(eq=False)
class Looked:
    """An embedding."""

    weight: weakref.ref[Tensor]
    place: Place
    only: int | None  # the one number; None where there were others
    calls: int = 0
    numbers: int = 0
    pad: int | None = None  # None too where something was padded
    found: Tensor | None = None  # how often each number came


class Lookups(Listener):
    """Listens to embeddings and to what is put into tables."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.of: dict[int, Looked] = {}
        self.got: tuple[weakref.ref[Tensor], Index, list[weakref.ref[Tensor]]] | None = (
            None  # table, places, their values and sums of these
        )
        self.chosen: list[weakref.ref[Tensor]] = []  # the best classes of scores

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("embedding",), before=self._looked_up)
        self.functions.listen(("argmax", "max"), after=self._best)
        self.functions.listen(("__getitem__",), after=self._get)
        self.functions.listen(ADDING, after=self._sum)
        self.functions.listen(("__setitem__",), before=self._set)
        self.functions.listen(("index_put_", "index_put"), before=self._put)

    # ------------------------------------------------------------------------------------
    # embeddings

    def _looked_up(
        self,
        name: str,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if (
            len(weight) < FEWEST
            or not weight.requires_grad
            or not input.numel()
            or not torch.is_grad_enabled()
        ):
            return
        known = self.of.get(id(weight))
        first = int(input.reshape(-1)[0]) if known is None or known.only is not None else 0
        if known is None or known.weight() is not weight:
            known = self.of[id(weight)] = Looked(
                weakref.ref(weight), self.watch.here(), first, pad=padding_idx
            )
        self._padding(known, input, padding_idx)
        known.calls += 1
        known.numbers += input.numel()
        if known.only is not None and (first != known.only or not bool((input == first).all())):
            known.only = None

    def _padding(self, known: Looked, input: Tensor, pad: int | None) -> None:
        """How often each number comes, as long as nothing is padded with that of the padding: in
        numbers of one a row, or rows in which it stands between others.
        """
        weight = known.weight()
        if pad is None or known.pad is None or weight is None or len(weight) > ROWS:
            return
        numbers = input.reshape(len(input), -1) if input.ndim else input.reshape(1, 1)
        alone = numbers.shape[1] == 1
        padded = not alone and bool(
            ((numbers[:, -2:] == pad).all(1) | (numbers[:, :2] == pad).all(1)).any()
        )
        # of rows in the order of their lengths none need end with two
        if not padded and numbers.shape[1] >= PLACES:
            at_ends = at_end(numbers, pad) | at_end(numbers.flip(1), pad).flip(1)
            padded = bool(at_ends.any()) and bool(((numbers == pad) == at_ends).all())
        if padded or pad != known.pad:
            known.pad = None
            return
        counted = torch.bincount(numbers.reshape(-1), minlength=len(weight))
        known.found = counted if known.found is None else known.found + counted

    # ----------------------------------------------------------------------------------------
    # tables

    def _best(self, name: str, result: Any, *_: Any, **__: Any) -> None:
        best = result if isinstance(result, Tensor) else result[1]
        if best.ndim == 1 and best.dtype == torch.int64:
            self.chosen = [*self.chosen[-3:], weakref.ref(best)]

    def _get(
        self, name: str, result: Any, table: Any, index: Any = None, *_: Any, **__: Any
    ) -> None:
        places = places_of(index)
        if (
            places
            and isinstance(result, Tensor)
            and isinstance(table, Tensor)
            and not table.requires_grad
        ):
            self.got = (weakref.ref(table), places, [weakref.ref(result)])

    def _sum(self, name: str, result: Any, *given: Any, **_: Any) -> None:
        if (
            self.got is not None
            and isinstance(result, Tensor)
            and any(ref() is g for ref in self.got[2] for g in given if isinstance(g, Tensor))
        ):
            self.got[2].append(weakref.ref(result))

    def _set(self, name: str, table: Any, index: Any, value: Any, *_: Any, **__: Any) -> None:
        places = places_of(index)
        if (
            not places
            or self.got is None
            or self.got[0]() is not table
            or not same_places(places, self.got[1])
        ):
            return
        if any(ref() is value for ref in self.got[2][1:]) and repeated(places):
            self._lost(table, places)

    def _put(
        self,
        name: str,
        table: Any,
        indices: Any,
        values: Any,
        accumulate: Any = False,
        *_: Any,
        **__: Any,
    ) -> None:
        places = places_of(tuple(indices))
        if (
            accumulate
            or not places
            or not isinstance(values, Tensor)
            or not repeated(places)
            or not isinstance(table, Tensor)
        ):
            return
        sums = (
            self.got is not None
            and self.got[0]() is table
            and same_places(places, self.got[1])
            and any(ref() is values for ref in self.got[2][1:])
        )
        counted = (
            len(places) == 2
            and table.ndim == 2
            and table.shape[0] == table.shape[1]
            and any(ref() is p for ref in self.chosen for p in places)
        )
        if sums or (counted and bool((values == 1).all())):
            self._lost(table, places)

    def _lost(self, table: Tensor, places: Index) -> None:
        rows = torch.stack(torch.broadcast_tensors(*places)).reshape(len(places), -1)
        twice = rows.shape[1] - rows.unique(dim=1).shape[1]
        told = (
            f"{twice} of {rows.shape[1]} places of the table {list(table.shape)} come more than"
            " once, and each is counted once"
        )
        self.functions.often("BH855", told, 1)

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """Embeddings of which one row was used."""
        for known in self.of.values():
            self._is_used(known)
            weight = known.weight()
            if (
                weight is None
                or known.only is None
                or known.calls < CALLS
                or known.numbers < LOOKED_UP
                or id(weight) not in self.forwards.trained
            ):
                continue
            told = (
                f"of an embedding with {len(weight)} rows row {known.only} alone was looked up,"
                f" {known.numbers} times in {known.calls} calls"
            )
            self.watch.tell("BH854", f"{told}: it tells rows apart in nothing", known.place)

    def _is_used(self, known: Looked) -> None:
        weight = known.weight()
        if (
            known.pad is None
            or known.found is None
            or weight is None
            or known.calls < CALLS
            or id(weight) not in self.forwards.trained
        ):
            return
        times, used = int(known.found[known.pad]), known.found[known.found > 0]
        usual = float(used.float().median())
        if times >= CALLS and len(used) > FEWEST and usual / AS_OFTEN <= times <= usual * AS_OFTEN:
            told = (
                f"number {known.pad} came {times} times, others about {usual:.0f} times, and"
                " nothing was padded with it"
            )
            self.watch.tell(
                "BH883", f"{told}: the row of padding_idx is never learned", known.place
            )


def places_of(index: Any) -> Index:
    """Tensors of whole numbers that an index is made of; none where it holds anything else."""
    parts = index if isinstance(index, tuple) else (index,)
    whole = all(
        isinstance(p, Tensor) and p.dtype in (torch.int64, torch.int32) and p.ndim for p in parts
    )
    return parts if whole and parts else ()


def same_places(a: Index, b: Index) -> bool:
    """Whether both are the same tensors."""
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def repeated(places: Index) -> bool:
    """Whether a place comes twice.

    >>> (repeated((torch.tensor([0, 1, 0]), torch.tensor([1, 1, 1]))),
    ...     repeated((torch.tensor([0, 1]), torch.tensor([1, 1]))))
    (True, False)
    """
    rows = torch.stack(torch.broadcast_tensors(*places)).reshape(len(places), -1)
    return bool(rows.shape[1] > rows.unique(dim=1).shape[1])
