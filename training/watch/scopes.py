"""Arrays from a program's variables; arrays in the same scope are columns of one table.

The Python profiler reports each function that returns, until the first forward pass for training.
The contents of its variables are copied: arrays, tensors, lists of numbers or names, and those in
objects, dictionaries and tuples.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from training.review.syntax import words
from training.watch.events import Call, Listener, Place
from training.watch.record import Watch

FEWEST, MOST_ROWS = 30, 200_000  # least and most rows of a table
MOST_CELLS, MOST_KEPT = 2_000_000, 20_000_000  # most cells of a kept array; of all kept arrays
MOST_HASHED, MOST_SEEN = 20_000_000, 100_000_000  # most cells of a read array; of all read arrays
EVENTS, RETURNS = 8_000_000, 6  # most profiler events; most returns read per function
ARRAYS = 64  # most arrays per scope
WIDEST = 64  # most columns of an array that are split up
DISTINCT = 0.9  # least share of distinct rows
DEEPEST = 2
STEPS = 3  # most step sizes of a column that counts
LABELS = {"label", "labels", "target", "targets", "y", "outcome", "response"}
# persons; the model predicts for new ones
PERSONS = {"patient", "subject", "speaker", "writer", "household", "person", "participant"}
LOCAL, RETURNED = 0, -1
# of scikit-learn; the program may rename its results at once
SPLITTERS = {"train_test_split"}
WEIGHTS = np.random.default_rng(0).integers(1, 2**63, 2**15, dtype=np.uint64) | np.uint64(1)


@dataclass(eq=False)
class Column:
    """An array [N, ...] of the program."""

    names: dict[str, None]  # names of its variables, in order
    key: bytes  # hash of its values
    rows: np.ndarray  # one hash per row [N]
    width: int  # cells per row
    telling: bool  # other tables are unlikely to contain it: it neither counts nor is sorted
    unlike: bool  # telling, and its rows are distinct
    values: np.ndarray | None  # None if it is large

    @functools.cached_property
    def order(self) -> np.ndarray:
        """Permutation that sorts the rows."""
        return np.argsort(self.rows, kind="stable")

    @property
    def name(self) -> str:
        """Name that shows its meaning, or the first one."""
        telling = (n for n in self.names if (LABELS | PERSONS) & words(n))
        return next(telling, "") or next((n for n in self.names if n), "array")


@dataclass(eq=False)
class Space:
    """Rows in one order that arrays of one or several scopes share."""

    length: int
    place: Place
    columns: dict[bytes, Column] = field(default_factory=dict)


@dataclass(eq=False)
class Scopes(Listener):
    """Listener for returns of the program's functions."""

    watch: Watch
    spaces: list[Space] = field(default_factory=list)
    of: dict[bytes, Space] = field(default_factory=dict)  # by the hash of a telling column
    columns: dict[bytes, Column] = field(default_factory=dict)
    returned: dict[CodeType, int] = field(default_factory=dict)
    events: int = 0
    kept: int = 0  # number of kept cells
    hashed: int = 0
    done: bool = False

    def install(self) -> None:
        """Install the profiler."""
        if sys.getprofile() is None:
            sys.setprofile(self._seen)
            os.register_at_fork(after_in_child=self._stop)  # workers of a loader are not watched

    def forwarded(self, call: Call) -> None:
        """Read the variables of running functions as well, because the data are ready."""
        if not call.grad or self.done:
            return
        self.done = True
        self._stop()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self.watch.owns(frame.f_code.co_filename):
                self._scan(frame, None)
            frame = frame.f_back

    def ended(self) -> None:
        """Stop the profiler."""
        self._stop()

    def _stop(self) -> None:
        if sys.getprofile() == self._seen:
            sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, result: Any) -> None:
        self.events += 1
        if self.events > EVENTS:  # loops of small calls: the rest is read when training begins
            self._stop()
        code = frame.f_code
        if (
            event != "return"
            or self.watch.quiet
            or self.returned.get(code, 0) >= RETURNS
            or not (self.watch.owns(code.co_filename) or code.co_name in SPLITTERS)
        ):
            return
        self.returned[code] = self.returned.get(code, 0) + 1
        with self.watch.unwatched():
            try:
                self._scan(frame, result)
            except Exception as error:  # the program must run as it does without a watch
                self.watch.failures.append(f"{code.co_name}: {type(error).__name__}: {error}")

    def _scan(self, frame: FrameType, result: Any) -> None:
        """Collect the arrays in the variables of a scope and in its result."""
        found: list[Held] = []
        for name, value in frame.f_locals.items():
            if not name.startswith("__") and len(found) < ARRAYS:
                found += arrays_of(name, value)
        found += [
            held if held.table else held._replace(table=RETURNED) for held in arrays_of("", result)
        ]
        split = frame.f_code.co_name in SPLITTERS
        place = self.watch.here() if split else Place(frame.f_code.co_filename, frame.f_lineno)
        for length in dict.fromkeys(len(held.array) for held in found):
            tables: dict[int, dict[bytes, Column]] = {}
            for held in (h for h in found if len(h.array) == length):
                if (column := self._column(held.name, held.array)) is not None:
                    tables.setdefault(held.table, {})[column.key] = column
            for table in [t for t in tables if t < RETURNED]:
                self._join(tables.pop(table), length, place)
            together = {key: c for columns in tables.values() for key, c in columns.items()}
            for columns in tables.values() if disordered(together) else [together]:
                if not disordered(columns):
                    self._join(columns, length, place)

    def _column(self, name: str, array: np.ndarray) -> Column | None:
        if self.hashed + array.size > MOST_SEEN:
            return None
        self.hashed += array.size
        flat = plain(array)
        rows = row_keys(flat)
        key = hashlib.blake2b(rows.tobytes(), digest_size=12).digest()
        if key not in self.columns:
            keep = array.size <= MOST_CELLS and self.kept + array.size <= MOST_KEPT
            self.kept += array.size if keep else 0
            telling = not counted(flat)
            unlike = telling and len(np.unique(rows)) >= DISTINCT * len(rows)
            self.columns[key] = Column(
                {}, key, rows, flat.shape[1], telling, unlike, array.copy() if keep else None
            )
        self.columns[key].names.setdefault(name)
        return self.columns[key]

    def _join(self, columns: dict[bytes, Column], length: int, place: Place) -> None:
        """Put columns of one table into one space, together with their known neighbors."""
        known = list(dict.fromkeys(self.of[key] for key in columns if key in self.of))
        if disordered(columns | {key: c for space in known for key, c in space.columns.items()}):
            # some columns were reordered and others were not
            columns = {key: c for key, c in columns.items() if key not in self.of}
            if len(columns) > 1:
                return
            known = []
        if not columns:
            return
        space = known[0] if known else Space(length, place)
        if not known:
            self.spaces.append(space)
        for other in known[1:]:
            self.spaces.remove(other)
            columns = other.columns | columns
        for key, column in columns.items():
            space.columns.setdefault(key, column)
            if column.telling:
                self.of[key] = space

    def held_by(self, dataset: Any) -> list[Column]:
        """Return the columns that a data set contains."""
        found = (self._column(held.name, held.array) for held in arrays_of("", dataset))
        return [column for column in found if column is not None]


class Held(NamedTuple):
    """An array [N, ...] in a variable. Arrays of one table share their row order, others of a scope
    may not. Tables below `RETURNED` are always separate.
    """

    name: str
    array: np.ndarray
    table: int = LOCAL


def arrays_of(name: str, value: Any, depth: int = 0) -> Iterator[Held]:
    """Yield the arrays with many rows that a variable is or contains.

    >>> [(held.name, held.array.shape) for held in arrays_of("data",
    ...     {"x": np.zeros((40, 3)), "who": ["a"] * 40, "n": 3})]
    [('x', (40, 3)), ('who', (40,))]
    """
    if isinstance(value, Tensor):
        value = _of_tensor(value)
    if isinstance(value, np.ndarray):
        if (
            value.ndim
            and FEWEST <= len(value) <= MOST_ROWS
            and 0 < value.size <= MOST_HASHED
            and (value.dtype.kind in "biufUS" or (value.dtype.kind == "O" and value.ndim == 1))
        ):
            yield Held(name, value)
    elif isinstance(value, list | tuple) and FEWEST <= len(value) <= MOST_ROWS:
        kinds = {type(v) for v in value}
        if len(kinds) == 1 and issubclass(kinds.pop(), str | int | float | np.generic):
            yield Held(name, np.asarray(value))
    elif type(value).__module__.startswith("pandas"):
        yield from _of_pandas(name, value)
    elif depth < DEEPEST and not isinstance(value, type | ModuleType | nn.Module):
        inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        if isinstance(value, tuple | list):
            inside = dict(enumerate(value))
        for inner, part in list(inside.items()) if len(inside) <= ARRAYS else ():
            # in a tuple of splits, each split is a separate table
            apart = isinstance(value, list | tuple) and isinstance(part, list | tuple | dict)
            for held in arrays_of(inner if isinstance(inner, str) else name, part, depth + 1):
                yield held._replace(table=-id(part)) if apart and not held.table else held


def _of_tensor(value: Tensor) -> np.ndarray | None:
    # numpy() fails for a tensor on another device or inside `vmap`
    with suppress(RuntimeError, TypeError):
        return None if value.requires_grad else np.asarray(value.detach().numpy())
    return None


def _of_pandas(name: str, value: Any) -> Iterator[Held]:
    """Yield the columns of a data frame, its named index, and all its numbers together."""
    frame = type(value).__name__ == "DataFrame"
    if not (frame or type(value).__name__ == "Series") or not FEWEST <= len(value) <= MOST_ROWS:
        return
    columns = dict(value.items()) if frame else {value.name or name: value}
    if value.index.name is not None:
        columns.setdefault(value.index.name, value.index)
    for inner, part in list(columns.items())[:ARRAYS]:
        array = part.to_numpy() if part.dtype.kind in "biufM" else part.to_numpy(dtype=object)
        array = array.astype(np.int64) if array.dtype.kind == "M" else array
        yield Held(str(inner), array, id(value))
    if frame and 1 < value.shape[1] <= ARRAYS and all(t.kind in "biuf" for t in value.dtypes):
        yield Held(name, value.to_numpy(), id(value))


def plain(array: np.ndarray) -> np.ndarray:
    """Return rows [N, D] as float32, with a number for each name."""
    if array.dtype.kind in "USO":
        array = np.asarray([hash(str(v)) % 2**24 for v in array.tolist()])
    # replaces -0 with 0
    return np.ascontiguousarray(array, dtype=np.float32).reshape(len(array), -1) + np.float32(0)


def row_keys(flat: np.ndarray) -> np.ndarray:
    """Return one hash per row [N, D] of 32 bits, equal for equal rows.

    >>> keys = row_keys(np.float32([[1, 2], [2, 1], [1, 2]]))
    >>> bool(keys[0] == keys[2]), bool(keys[0] == keys[1])
    (True, False)
    """
    bits = np.ascontiguousarray(flat[:, : len(WEIGHTS)]).view(np.uint32).astype(np.uint64)
    return np.asarray((bits ^ (bits << np.uint64(29))) @ WEIGHTS[: bits.shape[1]])


def counted(flat: np.ndarray) -> bool:
    """Check that values rise or fall in few step sizes, as counts and sorted labels do. Such
    columns are equal in many tables.
    """
    steps = np.diff(flat[:, 0])
    return bool(
        flat.shape[1] == 1
        and ((steps >= 0).all() or (steps <= 0).all())
        and len(np.unique(steps)) <= STEPS
    )


def disordered(columns: Mapping[bytes, Column]) -> bool:
    """Check that two columns contain the same rows in different orders. Then their alignment is
    unknown.
    """
    orders = [np.sort(c.rows).tobytes() for c in columns.values() if c.unlike or c.width == 1]
    return len(set(orders)) < len(orders)


def columns_of(space: Space) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the single columns of a table by name, with a number for columns of an array."""
    taken = set[str]()
    for column in space.columns.values():
        values = column.values
        if values is None or values.ndim > 2 or (values.ndim == 2 and values.shape[1] > WIDEST):
            continue
        name = column.name
        while name in taken:
            name += "'"
        taken.add(name)
        if values.ndim == 1 or values.shape[1] == 1:
            yield name, values.reshape(-1)
        else:
            yield from ((f"{name}[:, {j}]", values[:, j]) for j in range(values.shape[1]))
