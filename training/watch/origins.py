"""Origin of an array in a table: the table and the row numbers, found by equal rows or indices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.watch.events import Place
from training.watch.scopes import Column, Scopes, Space

MOST = 0.98  # share of rows of a part that are in the table
FEWEST_VOTES = 0.3  # least share of columns that support an origin
FIRST = 3  # rows that rule out most other arrays


@dataclass(frozen=True)
class Origin:
    """A table, the numbers [n] of some rows in it, and the line where they were first separate."""

    space: Space
    places: np.ndarray
    place: Place


class Origins:
    """Search for the origins of arrays, after all scopes are recorded."""

    def __init__(self, scopes: Scopes) -> None:
        self.columns, self.spaces = scopes.columns, scopes.spaces
        self.of_column = {key: space for space in reversed(scopes.spaces) for key in space.columns}
        self.steps: dict[Space, tuple[Space, np.ndarray] | None] = {}

    def of(self, column: Column) -> Origin | None:
        """Return the first table that contained a column's rows, or its own table."""
        space = self.of_column.get(column.key)
        if space is None:
            return None
        places, place = np.arange(space.length), space.place
        while (step := self._step(space)) is not None:
            place, space = space.place, step[0]
            places = step[1][places]
        return Origin(space, places, place)

    def _step(self, space: Space) -> tuple[Space, np.ndarray] | None:
        """Return the longer or older table that contained these rows, and the row numbers."""
        if space not in self.steps:
            older = self.spaces[: self.spaces.index(space)]
            steps = (
                (whole, places)
                for look in (self._equal, self._chosen)
                for whole in self.spaces
                if whole.length > space.length or (whole.length == space.length and whole in older)
                if (places := look(space, whole)) is not None
            )
            self.steps[space] = next(steps, None)
        return self.steps[space]

    def _equal(self, space: Space, whole: Space) -> np.ndarray | None:
        """Return the row numbers on which most columns agree. A single column of many proves
        nothing, because lags match elsewhere too.
        """
        votes = Counter(
            p.tobytes() for column in space.columns.values() for p in self.by_rows(column, whole)
        )
        (first, most), (_, next_most) = [*votes.most_common(2), (b"", 0), (b"", 0)][:2]
        total = sum(c.unlike for c in space.columns.values())
        if most == next_most or most <= FEWEST_VOTES * total:
            return None
        return np.frombuffer(first, dtype=np.int64)

    def _chosen(self, space: Space, whole: Space) -> np.ndarray | None:
        alike = (c for c in space.columns.values() if not c.unlike)
        return next((p for c in alike for p in self.by_choice(c, whole)), None)

    def by_rows(self, column: Column, whole: Space) -> Iterator[np.ndarray]:
        """Yield the row numbers of a column in a table, found by equal rows."""
        for other in whole.columns.values():
            alike = column.unlike and other.unlike and column.width == other.width
            found = places_of(column.rows, other) if alike else None
            if found is not None:
                yield found

    def by_choice(self, column: Column, whole: Space) -> Iterator[np.ndarray]:
        """Yield the row numbers of a column in a longer table, found by index variables of the
        program.
        """
        others = [c for c in whole.columns.values() if c.telling and c.width == column.width]
        if column.telling and others and len(column.rows) < whole.length:
            for places in self._selections(len(column.rows), whole.length):
                if any(np.array_equal(c.rows[places], column.rows) for c in others):
                    yield places

    def _selections(self, part: int, whole: int) -> Iterator[np.ndarray]:
        """Yield row selections from the program's variables: the first or last rows, indices and
        masks.
        """
        yield np.arange(part)
        yield np.arange(whole - part, whole)
        for values in (c.values for c in self.columns.values()):
            if values is None or values.ndim != 1:
                continue
            if len(values) == part and values.dtype.kind in "iu":
                if values.min() >= 0 and values.max() < whole and len(np.unique(values)) == part:
                    yield values.astype(np.int64)
            elif values.dtype.kind == "b" and len(values) == whole:
                yield from (np.flatnonzero(v) for v in (values, ~values) if v.sum() == part)


def places_of(rows: np.ndarray, table: Column, least: float = MOST) -> np.ndarray | None:
    """Return the row numbers of hashed rows [n] in a column, or None if too few are in it."""
    if not np.isin(rows[:FIRST], table.rows).any():
        return None
    after = np.searchsorted(table.rows, rows, sorter=table.order)
    found = table.order[after.clip(0, len(table.rows) - 1)]
    return found if (table.rows[found] == rows).mean() >= least else None


def same(values: np.ndarray, labels: np.ndarray) -> bool:
    """Check that labels [n] equal these values, or are linear in many distinct values."""
    if np.isclose(values, labels, rtol=1e-5, atol=1e-6).mean() >= MOST:
        return True
    many = len(np.unique(values)) > 2 and values.std() > 0 and labels.std() > 0
    return bool(many and np.corrcoef(values, labels)[0, 1] ** 2 > 1 - 1e-6)
