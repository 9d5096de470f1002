"""Tables of arrays of which rows went to training and to evaluations, however the program divides
them: from the batches back to its variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Subset

from training.review.syntax import words
from training.watch.apart import rows_apart, same
from training.watch.divided import Divided, look
from training.watch.events import Listener, Used
from training.watch.fitted import Made, fed, look_at_made
from training.watch.loaders import Loaders
from training.watch.origins import MOST, Origin, Origins, places_of
from training.watch.record import Watch
from training.watch.rows import History, Rows
from training.watch.scopes import (
    FEWEST,
    LABELS,
    Column,
    Scopes,
    Space,
    arrays_of,
    columns_of,
    key_of,
    plain,
    row_keys,
)
from training.watch.series import look_at_windows
from training.watch.sets import source

PAIRS = 64  # rows whose labels are compared
KNOWN = 0.9  # of them are in the table
DEEPEST = 4  # data sets in each other


@dataclass(frozen=True)
class Given:
    """Rows of an array that a network was trained on, and such as were held out."""

    column: Column
    train: np.ndarray
    held: np.ndarray
    origin: Origin


class Tables(Listener):
    """Puts together at the end what the scopes and the batches show."""

    def __init__(self, watch: Watch, scopes: Scopes, rows: Rows, loaders: Loaders) -> None:
        self.watch, self.scopes, self.rows, self.loaders = watch, scopes, rows, loaders

    def ended(self) -> None:
        """Look at each table of which rows went to both sides, and at the rows and labels that were
        trained on.
        """
        self.origins = Origins(self.scopes)
        pairs: list[list[Column]] = []
        for history in (h for h in self.rows.all if h.steps):
            for space, given in self._sides(history).items():
                self._look(history, space, given)
                for column in {g.column for g in given if len(g.train)}:
                    beside = (
                        self.origins.spaces[column.key].columns.values()
                        if column.key in self.origins.spaces
                        else ()
                    )
                    if all(
                        self._of_one_order(c, column)
                        for c in beside
                        if c.unlike and c.width == column.width
                    ):
                        pairs.append([column, *(c for c in beside if LABELS & words(c.name))])
        pairs += [
            list({c.key: c for c, *_ in self._drawn(used)}.values())
            for used in self.loaders.used.values()
            if used.steps
        ]
        for held in pairs:
            rows_apart(self.watch, self.origins, held)
            look_at_windows(self.watch, self.scopes.spaces, held)

    def _of_one_order(self, other: Column, column: Column) -> bool:
        """Whether two columns of one space hold the same rows: parts of one size may stand in one
        function, as validation and test do.
        """
        first, second = self.origins.of(other), self.origins.of(column)
        return (
            first is not None
            and second is not None
            and first.space is second.space
            and np.array_equal(first.places, second.places)
        )

    def _look(self, history: History, space: Space, given: list[Given]) -> None:
        train, held = (
            np.unique(np.concatenate(side))
            for side in (
                [g.origin.places[g.train] for g in given],
                [g.origin.places[g.held] for g in given],
            )
        )
        both = np.intersect1d(train, held)
        columns = dict(columns_of(space))
        if not columns or min(len(train), len(held)) < FEWEST or len(both) > (1 - MOST) * len(held):
            return
        arrays = {
            f"{c.name} {i}": c.values
            for i, c in enumerate(space.columns.values())
            if c.values is not None and c.values.ndim == 2
        }
        place = max(given, key=lambda g: len(g.train)).origin.place
        made = list(made_of(given))
        label = self._label(history, space, columns)
        table = Divided(
            columns,
            np.setdiff1d(train, both),
            np.setdiff1d(held, both),
            label,
            place,
            arrays,
            fed(columns, made),
        )
        look(self.watch, table)
        look_at_made(self.watch, table, made)

    # -----------------------------------------------------------------------------------------
    # sides

    def _sides(self, history: History) -> dict[Space, list[Given]]:
        """What the network was given of each table."""
        trained = keys_of(list(history.trained.rows.values()))
        held_out = np.setdiff1d(
            keys_of([row for p in history.phases for row in p.batches.rows.values()]), trained
        )
        found = [
            (c, np.flatnonzero(np.isin(c.rows, trained)), np.flatnonzero(np.isin(c.rows, held_out)))
            for c in self.scopes.columns.values()
            if c.unlike
        ]
        if not (any(len(rows) for _, rows, _ in found) and any(len(rows) for _, _, rows in found)):
            found = [
                part
                for used in self.loaders.used.values()
                for part in self._drawn(used)
                if part[0].width > 1
            ]
        given: dict[Space, list[Given]] = {}
        for column, train, held in found:
            if (
                max(len(train), len(held)) >= FEWEST
                and (origin := self.origins.of(column)) is not None
            ):
                given.setdefault(origin.space, []).append(Given(column, train, held, origin))
        return given

    def _drawn(self, used: Used) -> Iterator[tuple[Column, np.ndarray, np.ndarray]]:
        """Columns in the data set of a loader, and the rows that it gives of them to training or
        else to evaluations.
        """
        data = source(used.loader)
        if data is None:
            return
        dataset, index = unwrapped(data[0], np.asarray(list(data[1]), dtype=np.int64))
        none = np.empty(0, dtype=np.int64)
        columns = self._held_by(dataset)
        for column in columns:
            rows = index
            if len(column.rows) > len(dataset):
                numbers = (
                    c.values
                    for c in columns
                    if len(c.rows) == len(dataset)
                    and c.values is not None
                    and c.values.dtype.kind in "iu"
                )
                places = next(
                    (
                        v
                        for v in numbers
                        if v.ndim == 1
                        and v.min() >= 0
                        and v.max() < len(column.rows)
                        and len(np.unique(v)) == len(v)
                    ),
                    None,
                )
                rows = places[index] if places is not None else index
            if len(column.rows) > rows.max(initial=0):
                yield (column, rows, none) if used.steps else (column, none, rows)

    def _held_by(self, dataset: Any) -> list[Column]:
        """Columns that a data set holds."""
        keys = (key_of(row_keys(plain(held.array))) for held in arrays_of("", dataset))
        return [self.scopes.columns[key] for key in keys if key in self.scopes.columns]

    # ----------------------------------------------------------------------------------------
    # labels

    def _label(self, history: History, space: Space, columns: dict[str, np.ndarray]) -> str | None:
        """The column whose values the losses were given for these rows, by name where rows were
        changed in between.
        """
        if history.inputs and len({x.shape[1] for x in history.inputs}) == 1:
            x = np.concatenate([t.numpy() for t in history.inputs]).astype(np.float32)
            y = np.concatenate([t.numpy() for t in history.labels])
            for column in (
                c for c in self.scopes.columns.values() if c.unlike and c.width == x.shape[1]
            ):
                places = places_of(row_keys(x + np.float32(0)), column.rows, least=KNOWN)
                origin = self.origins.of(column) if places is not None else None
                if origin is None or places is None or origin.space is not space or len(y) < PAIRS:
                    continue
                where = origin.places[places]
                for name, values in columns.items():
                    if (
                        values.dtype.kind in "iufb"
                        and values.std() > 0
                        and same(values[where].astype(np.float64), y)
                    ):
                        return name
        return next((name for name in columns if LABELS & words(name)), None)


def unwrapped(dataset: Any, index: np.ndarray) -> tuple[Any, np.ndarray]:
    """The data set that others are made of, which change its rows or choose some of them, and which
    of its rows are given.
    """
    for _ in range(DEEPEST):
        if isinstance(dataset, Subset):
            dataset, index = (
                dataset.dataset,
                np.asarray([int(dataset.indices[i]) for i in index], dtype=np.int64),
            )
            continue
        inner = next(
            (
                v
                for v in getattr(dataset, "__dict__", {}).values()
                if isinstance(v, Dataset) and _length(v) == _length(dataset)
            ),
            None,
        )
        if inner is None:
            break
        dataset = inner
    return dataset, index


def _length(dataset: Any) -> int:
    return len(dataset) if hasattr(dataset, "__len__") else -1


def keys_of(rows: list[Tensor]) -> np.ndarray:
    """One number for each of flat rows, as `row_keys` gives."""
    if not rows or len({row.shape for row in rows}) != 1:
        return np.empty(0, dtype=np.uint64)
    return np.unique(row_keys(np.stack([row.float().numpy() for row in rows]) + np.float32(0)))


def made_of(given: list[Given]) -> Iterator[Made]:
    """Arrays [n, D] of what a network was given, those of both sides together where they are of one
    width.
    """
    parts = [
        (g, np.concatenate([g.train, g.held]))
        for g in given
        if g.column.values is not None and g.column.values.ndim == 2 and len(g.train) + len(g.held)
    ]
    made = [
        Made(g.column.name, g.column.values[rows], g.origin.places[rows], g.origin.place)
        for g, rows in parts
        if g.column.values is not None
    ]
    yield from made
    for width in dict.fromkeys(m.values.shape[1] for m in made):
        alike = [m for m in made if m.values.shape[1] == width]
        places, first = np.unique(np.concatenate([m.places for m in alike]), return_index=True)
        if len(alike) > 1 and len(places) > max(len(m.places) for m in alike):
            yield Made(
                alike[0].name,
                np.concatenate([m.values for m in alike])[first],
                places,
                alike[0].line,
            )
