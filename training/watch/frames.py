"""Tables of pandas that a program divides, and which of their rows went to which side, however the
program writes it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from training.watch.divided import COLUMNS, MANY, Divided, look
from training.watch.events import Listener, Place, Used
from training.watch.loaders import Loaders
from training.watch.patches import around
from training.watch.record import Watch, guarded

# rows of a part; cells of a table; parts, and vectors
FEWEST, MOST_CELLS, MOST_PARTS = (30, 5_000_000, 64)
MOST_KEPT = 20_000_000  # cells of all parts: they live as long as the program
SAME = 1e-3  # how far labels may be from values that were scaled to them


@dataclass(eq=False)
class Table:
    """A table before it was divided."""

    frame: Any
    place: Place  # where a part was first taken of it


@dataclass(eq=False)
class Part:
    """Rows that were taken of a table."""

    table: Table
    positions: np.ndarray  # of its rows [n] in the table
    frame: Any


@dataclass(eq=False)
class Made:
    """A table that was made of another one, row by row: columns were left out or put beside it, or
    rows were put in another order.
    """

    frame: Any  # kept, so that its id is its own
    root: Any  # the first table
    positions: np.ndarray  # of its rows [N] in the first one


@dataclass(eq=False)
class Frames(Listener):
    """Listens to pandas, and at the end knows parts by the labels that loaders gave, or that became
    tensors.
    """

    watch: Watch
    loaders: Loaders
    # by id of the frame that the program holds
    parts: dict[int, Part] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)
    made: dict[int, Made] = field(default_factory=dict)  # by id of the frame
    vectors: list[np.ndarray] = field(default_factory=list)
    kept: int = 0  # cells

    def install(self) -> None:
        """Listen, where the program speaks of pandas: its import takes half a second."""
        if "pandas" not in self.watch.program.read_text(encoding="utf-8", errors="replace"):
            return
        try:
            pandas = importlib.import_module("pandas")
            located = importlib.import_module("pandas.core.indexing")._LocationIndexer
        except (ImportError, AttributeError):
            return
        self.kind: type[Any] = pandas.DataFrame
        for name in ("__getitem__", "take", "sample", "query"):
            around(pandas.DataFrame, name, self._taken)
        for name in ("tensor", "as_tensor", "from_numpy"):
            around(torch, name, self._made)
        for name in ("reset_index", "copy", "drop", "sort_values", "assign"):
            around(pandas.DataFrame, name, self._passed)
        around(pandas, "concat", self._joined)
        around(located, "__getitem__", self._located)

    def _taken(self, original: Callable[..., Any], frame: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(frame, *args, **kwargs)
        if not kwargs.get("ignore_index"):
            self._note(frame, found)
        return found

    def _located(
        self, original: Callable[..., Any], indexer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        found = original(indexer, *args, **kwargs)
        self._note(indexer.obj, found)
        return found

    def _made(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep vectors that a program makes tensors of: labels, where rows come without a
        loader.
        """
        made = original(*args, **kwargs)
        if self.parts:
            self._vector(made)
        return made

    @guarded
    def _vector(self, made: torch.Tensor) -> None:
        if (
            self.watch.quiet
            or not made.ndim
            or not FEWEST <= made.numel() == len(made) <= MOST_CELLS
            or len(self.vectors) >= MOST_PARTS
        ):
            return
        with self.watch.unwatched():
            self.vectors.append(made.detach().cpu().reshape(-1).double().numpy().copy())

    def _passed(self, original: Callable[..., Any], frame: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(frame, *args, **kwargs)
        if not kwargs.get("ignore_index"):
            self._derive(frame, found, in_order=original.__name__ == "reset_index")
        part = self.parts.get(id(frame)) if original.__name__ in ("reset_index", "copy") else None
        if (
            part is not None
            and isinstance(found, self.kind)
            and len(found) == len(frame)
            and not self.watch.quiet
        ):
            self._keep(Part(part.table, part.positions, found))
        return found

    def _joined(self, original: Callable[..., Any], objs: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(objs, *args, **kwargs)
        if (
            isinstance(objs, (list, tuple))
            and objs
            and kwargs.get("axis", args[0] if args else 0) in (1, "columns")
        ):
            self._derive(objs[0], found)
        return found

    @guarded
    def _derive(self, frame: Any, found: Any, in_order: bool = False) -> None:
        """Keep of which rows of the first table a table of as many rows was made: by their index,
        or in the order in which they stand.
        """
        if (
            self.watch.quiet
            or found is frame
            or not isinstance(found, self.kind)
            or not isinstance(frame, self.kind)
            or not FEWEST <= len(found) == len(frame)
        ):
            return
        # half of what may be kept is left for parts
        if (
            len(self.made) >= MOST_PARTS
            or self.kept + found.size > MOST_KEPT / 2
            or not frame.index.is_unique
        ):
            return
        with self.watch.unwatched():
            there = np.arange(len(frame)) if in_order else frame.index.get_indexer(found.index)
            if (there < 0).any() or not found.index.is_unique:
                return
            above = self.made.get(id(frame))
            root, before = (
                (above.root, above.positions)
                if above is not None
                else (frame, np.arange(len(frame)))
            )
            self.made[id(found)] = Made(found, root, before[there])
            self.kept += found.size

    def _keep(self, part: Part) -> None:
        if len(self.parts) < MOST_PARTS and self.kept + part.frame.size <= MOST_KEPT:
            self.parts[id(part.frame)] = part
            self.kept += part.frame.size

    @guarded
    def _note(self, frame: Any, found: Any) -> None:
        """Keep which rows were taken."""
        if (
            self.watch.quiet
            or not isinstance(found, self.kind)
            or not isinstance(frame, self.kind)
            or not FEWEST <= len(found) <= len(frame)
        ):
            return
        if len(found) == len(frame):
            self._derive(frame, found)
            return
        if frame.size > MOST_CELLS or not frame.index.is_unique:
            return
        with self.watch.unwatched():
            positions = frame.index.get_indexer(found.index)
            if (positions < 0).any():
                return
            above = self.parts.get(id(frame))
            if above is not None:
                self._keep(Part(above.table, above.positions[positions], found))
                return
            if id(frame) not in self.tables:
                self.tables[id(frame)] = Table(frame, self.watch.here())
            self._keep(Part(self.tables[id(frame)], positions, found))

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """The part of each loader's rows, one that trains beside each that does not; without
        loaders the parts of which vectors were made, the largest one first.
        """
        used = (
            [
                (u, labels)
                for u in self.loaders.used.values()
                if (labels := _labels_of(u)) is not None and len(labels) >= FEWEST
            ]
            if self.parts
            else []
        )
        known = [
            (bool(u.steps), part, column)
            for u, labels in used
            for part, column in self._parts_with(labels)
        ]
        if not known:
            found = [
                pair for vector in self.vectors for pair in self._parts_with(vector, in_place=True)
            ]
            known = [
                (len(part.frame) == max(len(other.frame) for other, _ in found), part, column)
                for part, column in found
            ]
        for mine, theirs, label in _sides(known):
            columns = {
                c: mine.table.frame[c].to_numpy() for c in mine.table.frame.columns[:COLUMNS]
            }
            look(
                self.watch,
                Divided(
                    columns,
                    mine.positions,
                    theirs.positions,
                    label,
                    mine.table.place,
                    gone=self._gone(mine.table.frame),
                ),
            )

    def _gone(self, frame: Any) -> dict[Any, np.ndarray]:
        """The columns that the first table had which a table was made of, in the order of
        its rows.
        """
        made = self.made.get(id(frame))
        if made is None:
            return {}
        return {
            c: made.root[c].to_numpy()[made.positions]
            for c in made.root.columns.difference(frame.columns, sort=False)
        }

    def _parts_with(self, labels: np.ndarray, in_place: bool = False) -> Iterator[tuple[Part, Any]]:
        """Parts of that many rows, with a column of just these labels, scaled perhaps: in any
        order, or in that of the rows.
        """
        wanted = labels.astype(np.float64) if in_place else np.sort(labels.astype(np.float64))
        for part in list(self.parts.values()):
            for column in part.frame.columns[:COLUMNS] if len(part.frame) == len(labels) else ():
                values = part.frame[column]
                if values.dtype.kind in "iufb":
                    ordered = values.to_numpy().astype(np.float64)
                    if _alike(ordered if in_place else np.sort(ordered), wanted):
                        yield part, column


def _sides(known: list[tuple[bool, Part, Any]]) -> Iterator[tuple[Part, Part, Any]]:
    """Each part that trains beside each of the same table that does not and shares no row with it,
    and their label; the same rows once.
    """
    seen = set[tuple[int, bytes, bytes, Any]]()
    for _, mine, label in (k for k in known if k[0]):
        for _, theirs, other in (k for k in known if not k[0]):
            key = (id(mine.table), mine.positions.tobytes(), theirs.positions.tobytes(), label)
            if (
                label == other
                and mine.table is theirs.table
                and key not in seen
                and not np.intersect1d(mine.positions, theirs.positions).size
            ):
                seen.add(key)
                yield mine, theirs, label


def _labels_of(used: Used) -> np.ndarray | None:
    """The labels [n] of all rows of a loader as float32, in any order."""
    data = used.loader.dataset
    if isinstance(data, TensorDataset):
        found = next((t for t in data.tensors[::-1] if t.numel() == len(t)), None)
        return found.detach().cpu().reshape(-1).float().numpy() if found is not None else None
    given = torch.cat(used.labels).float().cpu().numpy() if used.labels else None
    return (
        given
        if given is not None and hasattr(data, "__len__") and len(given) == len(data)
        else None
    )


def _alike(values: np.ndarray, labels: np.ndarray) -> bool:
    """Whether labels [n] are these values, or values of many kinds that were centred and scaled.

    >>> values = np.arange(40.0) ** 2
    >>> (_alike(values, values / 3 - 1), _alike(values % 2, 1 - values % 2),
    ...     _alike(values, values**0.9))
    (True, False, False)
    """
    if np.allclose(values, labels, rtol=1e-5, atol=1e-6):
        return True
    if len(np.unique(values)) < MANY or not (values.std() > 0 and labels.std() > 0):
        return False
    scaled = [(v - v.mean()) / v.std() for v in (values, labels)]
    return bool(np.abs(scaled[0] - scaled[1]).max() < SAME)
