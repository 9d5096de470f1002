"""Tables that a program divides: persons on both sides, and columns that were computed of the labels of all rows, however the program writes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from training.review.owners import KEPT_TOGETHER
from training.review.syntax import words
from training.watch.loaders import Loaders, Used
from training.watch.patches import around
from training.watch.record import Place, Watch, guarded

FEWEST, MOST_CELLS, MOST_PARTS = 30, 5_000_000, 64  # rows of a part; cells of a table; parts, and vectors
MOST_KEPT = 20_000_000  # cells of all parts: they live as long as the program
SHARED = 0.5  # of the held-out rows are of persons of the train rows
SEVERAL = 2.0  # rows of a person, in the mean
IN_ORDER = 0.9  # of the persons, whose held-out rows all follow their train rows: that is a split by time
GROUPS, VALUES = 20, 3  # groups of rows that are looked at; sums of labels that groups of one size have
STRAIGHT = 0.99999  # correlation
KEYS, COLUMNS = 12, 64  # of a table that are tried
LAGS, NEARLY, COMMON = 49, 0.9, 0.3  # rows back; share of rows, and of labels that may be one and the same
MANY, SAME = 20, 1e-3  # values of labels that vary, and how far they may be from each other when they were scaled
NEXT_TO = 0.3  # of the held-out rows have a train row on both sides


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
class Frames:
    """Listens to pandas, and at the end knows parts by the labels that loaders gave, or that became tensors."""

    watch: Watch
    loaders: Loaders
    parts: dict[int, Part] = field(default_factory=dict)  # by id of the frame that the program holds
    tables: dict[int, Table] = field(default_factory=dict)
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
        for name in ("reset_index", "copy"):
            around(pandas.DataFrame, name, self._passed)
        around(located, "__getitem__", self._located)

    def _taken(self, original: Callable[..., Any], frame: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(frame, *args, **kwargs)
        self._note(frame, found)
        return found

    def _located(self, original: Callable[..., Any], indexer: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(indexer, *args, **kwargs)
        self._note(indexer.obj, found)
        return found

    def _made(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Keep vectors that a program makes tensors of: labels, where rows come without a loader."""
        made = original(*args, **kwargs)
        if self.parts:
            self._vector(made)
        return made

    @guarded
    def _vector(self, made: torch.Tensor) -> None:
        if self.watch.quiet or not made.ndim or not FEWEST <= made.numel() == len(made) <= MOST_CELLS or len(self.vectors) >= MOST_PARTS:
            return
        with self.watch.unwatched():
            self.vectors.append(made.detach().cpu().reshape(-1).double().numpy().copy())

    def _passed(self, original: Callable[..., Any], frame: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(frame, *args, **kwargs)
        part = self.parts.get(id(frame))
        if part is not None and isinstance(found, self.kind) and len(found) == len(frame) and not self.watch.quiet:
            self._keep(Part(part.table, part.positions, found))
        return found

    def _keep(self, part: Part) -> None:
        if len(self.parts) < MOST_PARTS and self.kept + part.frame.size <= MOST_KEPT:
            self.parts[id(part.frame)] = part
            self.kept += part.frame.size

    @guarded
    def _note(self, frame: Any, found: Any) -> None:
        """Keep which rows were taken."""
        if self.watch.quiet or not isinstance(found, self.kind) or not isinstance(frame, self.kind) or not FEWEST <= len(found) < len(frame):
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

    # ------------------------------------------------------------------------------------------- end

    def ended(self) -> None:
        """The part of each loader's rows, one that trains beside each that does not; without loaders the parts of which vectors were made, the largest one first."""
        used = [(u, labels) for u in self.loaders.used.values() if (labels := _labels_of(u)) is not None and len(labels) >= FEWEST] if self.parts else []
        known = [(bool(u.steps), part, column) for u, labels in used for part, column in self._parts_with(labels)]
        if not known:
            found = [pair for vector in self.vectors for pair in self._parts_with(vector, in_place=True)]
            known = [(len(part.frame) == max(len(other.frame) for other, _ in found), part, column) for part, column in found]
        asked = set[tuple[int, Any]]()
        for mine, theirs, label in _sides(known):
            self._persons(mine, theirs)
            self._in_time(mine, theirs, label)
            if (id(mine.table), label) not in asked:
                self._encoded(mine.table, label)
                self._own_label(mine.table, label)
            asked.add((id(mine.table), label))

    def _parts_with(self, labels: np.ndarray, in_place: bool = False) -> Iterator[tuple[Part, Any]]:
        """Parts of that many rows, with a column of just these labels, scaled perhaps: in any order, or in that of the rows."""
        wanted = labels.astype(np.float64) if in_place else np.sort(labels.astype(np.float64))
        for part in list(self.parts.values()):
            for column in part.frame.columns[:COLUMNS] if len(part.frame) == len(labels) else ():
                values = part.frame[column]
                if values.dtype.kind in "iufb":
                    ordered = values.to_numpy().astype(np.float64)
                    if _alike(ordered if in_place else np.sort(ordered), wanted):
                        yield part, column

    def _persons(self, train: Part, held: Part) -> None:
        frame = train.table.frame
        for column in frame.columns:
            if not isinstance(column, str) or not KEPT_TOGETHER & words(column):
                continue
            who = frame[column].to_numpy()
            mine, theirs = who[train.positions], who[held.positions]
            persons = set(mine.tolist())
            if len(who) < SEVERAL * len(set(who.tolist())) or sum(w in persons for w in theirs.tolist()) < SHARED * len(theirs):
                continue
            last = {w: int(p) for w, p in sorted(zip(mine.tolist(), train.positions, strict=True), key=lambda pair: pair[1])}
            first = {w: int(p) for w, p in sorted(zip(theirs.tolist(), held.positions, strict=True), key=lambda pair: -pair[1])}
            both = last.keys() & first.keys()
            if sum(last[w] < first[w] for w in both) < IN_ORDER * len(both):
                told = f"{len(both)} values of {column!r} are among the train rows and among those that are evaluated: rows of one are on both sides"
                self.watch.tell("BH506", told, train.table.place)

    def _in_time(self, train: Part, held: Part, label: Any) -> None:
        """Rows that stand in the order of time, since a column holds the label of an earlier one, and train rows among the held-out ones."""
        frame = train.table.frame
        if label not in frame.columns or not _mixed(train.positions, held.positions):
            return
        truth = frame[label].to_numpy().astype(np.float64)
        if not _vary(truth):
            return  # few kinds are equal to an earlier one by chance
        for column in (c for c in frame.columns[:COLUMNS] if c != label and frame[c].dtype.kind in "iuf"):
            values = frame[column].to_numpy().astype(np.float64)
            ago = next((k for k in range(1, min(LAGS, len(truth) // 2)) if np.isclose(values[k:], truth[:-k]).mean() > NEARLY), None)
            if ago is not None:
                told = f"{column!r} is {label!r} of {ago} {'row' if ago == 1 else 'rows'} before, so rows follow each other in time, and those that are evaluated lie among the train rows"
                self.watch.tell("BH507", told, train.table.place)
                return

    def _own_label(self, table: Table, label: Any) -> None:
        """A column that is the mean of the labels of some rows up to the row itself."""
        frame = table.frame
        truth = frame[label].to_numpy().astype(np.float64) if label in frame.columns else np.empty(0)
        if not _vary(truth) or len(truth) < 2 * LAGS:
            return
        sums = np.concatenate([[0.0], truth.cumsum()])
        for column in (c for c in frame.columns[:COLUMNS] if c != label and frame[c].dtype.kind == "f"):
            values = frame[column].to_numpy()
            for width in range(2, LAGS):
                if np.isclose(values[width - 1 :], (sums[width:] - sums[:-width]) / width, rtol=1e-4, atol=1e-6 * truth.std()).mean() > NEARLY:
                    told = f"{column!r} is the mean of {label!r} over {width} rows that end at the row itself, whose label is to be foretold"
                    self.watch.tell("BH524", told, table.place)
                    break

    def _encoded(self, table: Table, label: Any) -> None:
        """A column that is one number for each value of another, and follows from how many rows have that value and from the sum of their labels."""
        frame = table.frame
        if label not in frame.columns:
            return
        truth = frame[label].to_numpy().astype(np.float64)
        columns = [c for c in frame.columns[:COLUMNS] if c != label]
        keys = [c for c in columns if GROUPS <= frame[c].nunique() <= len(frame) / 1.5]
        for key in keys[:KEYS]:
            codes = frame[key].astype("category").cat.codes.to_numpy()
            kept = codes >= 0
            sizes, sums = np.bincount(codes[kept]), np.bincount(codes[kept], truth[kept])
            for column in (c for c in columns if c != key and frame[c].dtype.kind == "f"):
                values = frame[column].to_numpy().astype(np.float64)
                mean = np.bincount(codes[kept], values[kept]) / sizes
                if np.isfinite(mean).all() and np.allclose(mean[codes[kept]], values[kept], rtol=1e-5, atol=1e-8) and _follows(mean, sizes, sums):
                    told = f"{column!r} follows from the sum of {label!r} over all rows of the same {key!r}, those that are evaluated among them"
                    self.watch.tell("BH504", told, table.place)


def _sides(known: list[tuple[bool, Part, Any]]) -> Iterator[tuple[Part, Part, Any]]:
    """Each part that trains beside each of the same table that does not and shares no row with it, and their label; the same rows once."""
    seen = set[tuple[int, bytes, bytes, Any]]()
    for _, mine, label in (k for k in known if k[0]):
        for _, theirs, other in (k for k in known if not k[0]):
            key = (id(mine.table), mine.positions.tobytes(), theirs.positions.tobytes(), label)
            if label == other and mine.table is theirs.table and key not in seen and not np.intersect1d(mine.positions, theirs.positions).size:
                seen.add(key)
                yield mine, theirs, label


def _labels_of(used: Used) -> np.ndarray | None:
    """The labels [n] of all rows of a loader as float32, in any order."""
    data = used.loader.dataset
    if isinstance(data, TensorDataset):
        found = next((t for t in data.tensors[::-1] if t.numel() == len(t)), None)
        return found.detach().cpu().reshape(-1).float().numpy() if found is not None else None
    given = torch.cat(used.labels).float().cpu().numpy() if used.labels else None
    return given if given is not None and hasattr(data, "__len__") and len(given) == len(data) else None


def _mixed(train: np.ndarray, held: np.ndarray) -> bool:
    """Whether rows [n] of one side lie between rows of the other.

    >>> _mixed(np.array([0, 2, 4, 6, 8]), np.array([1, 3, 7])), _mixed(np.arange(6), np.array([6, 7]))
    (True, False)
    """
    return float((np.isin(held - 1, train) & np.isin(held + 1, train)).mean()) > NEXT_TO


def _alike(values: np.ndarray, labels: np.ndarray) -> bool:
    """Whether labels [n] are these values, or values of many kinds that were centred and scaled.

    >>> values = np.arange(40.0) ** 2
    >>> _alike(values, values / 3 - 1), _alike(values % 2, 1 - values % 2), _alike(values, values**0.9)
    (True, False, False)
    """
    if np.allclose(values, labels, rtol=1e-5, atol=1e-6):
        return True
    if len(np.unique(values)) < MANY or not (values.std() > 0 and labels.std() > 0):
        return False
    scaled = [(v - v.mean()) / v.std() for v in (values, labels)]
    return bool(np.abs(scaled[0] - scaled[1]).max() < SAME)


def _vary(labels: np.ndarray) -> bool:
    """Whether labels [n] are many, none of them much more frequent than the others."""
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) >= MANY and counts.max() < COMMON * len(labels)


def _follows(values: np.ndarray, sizes: np.ndarray, sums: np.ndarray) -> bool:
    """Whether the value [G] of groups of one size lies on a straight line over the sum of their labels, and moves along it.

    >>> sizes, sums = np.repeat([2, 3], 12), np.tile([0.0, 1.0, 2.0], 8)
    >>> _follows((sums + 1) / (sizes + 4), sizes, sums), _follows(np.sin(np.arange(24.0)), sizes, sums)
    (True, False)
    """
    seen = 0
    for size in np.unique(sizes):
        alike = sizes == size
        if len(np.unique(sums[alike])) < VALUES:
            continue
        if values[alike].std() == 0 or abs(np.corrcoef(values[alike], sums[alike])[0, 1]) < STRAIGHT:
            return False
        seen += int(alike.sum())
    return seen >= GROUPS
