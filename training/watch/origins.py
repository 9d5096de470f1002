"""Which table the rows of an array were taken of, and where they stand in it: found by equal rows,
by scaled ones, and by the numbers that choose them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from training.watch.events import Place
from training.watch.scopes import Column, Scopes, Space, plain

MOST = 0.98  # of the rows of a part are rows of the table
# correlation of columns that stand beside each other, and the share of columns that do
BESIDE, EXACTLY, MOSTLY = (0.98, 1 - 1e-6, 0.8)
HOLES = 0.4  # of the values that may be missing
FIRST = 3  # rows by which an array is told from most others


@dataclass(frozen=True)
class Origin:
    """A table, the places of some rows in it [n], and where they were seen apart from the
    others.
    """

    space: Space
    places: np.ndarray
    place: Place


class Origins:
    """Looks for what arrays were taken of, once all scopes are seen."""

    def __init__(self, scopes: Scopes) -> None:
        self.columns = scopes.columns
        self.spaces = {
            c.key: space for space in reversed(scopes.spaces) for c in space.columns.values()
        }
        self.steps: dict[bytes, tuple[Column, Column, np.ndarray] | None] = {}
        self.positions: dict[bytes, tuple[Column, np.ndarray]] = {}
        unlike = [c for c in scopes.columns.values() if c.unlike]
        orders = [np.argsort(c.rows, kind="stable") for c in unlike]
        for i, column in enumerate(unlike):
            for j, (other, order) in enumerate(zip(unlike, orders, strict=True)):
                older = len(other.rows) > len(column.rows) or (
                    len(other.rows) == len(column.rows) and j < i
                )
                if (
                    older
                    and column.width == other.width
                    and (found := places_of(column.rows, other.rows, order=order)) is not None
                ):
                    self.positions[column.key] = (other, found)
                    break

    def of(self, column: Column) -> Origin | None:
        """The table that a column's rows were taken of, and where they stand in it; the column's
        own table where it is that.
        """
        places, part, here = np.arange(len(column.rows)), column, column
        for _ in range(len(self.positions) + 1):
            taken = self._taken(here)
            if taken is None:
                break
            part, here = taken[:2]
            places = taken[2][places]
        space = self.spaces.get(here.key)
        return Origin(space, places, self.spaces[part.key].place) if space is not None else None

    def _taken(self, column: Column) -> tuple[Column, Column, np.ndarray] | None:
        """What a column's rows were taken of: the part that shows it, the whole, and the places in
        it.
        """
        if column.key not in self.steps:
            self.steps[column.key] = self._found(column)
        return self.steps[column.key]

    def _found(self, column: Column) -> tuple[Column, Column, np.ndarray] | None:
        if column.key in self.positions:
            return column, *self.positions[column.key]
        if column.width == 1 and (chosen := self._chosen(column)) is not None:
            return chosen
        space = self.spaces.get(column.key)
        near = [
            c
            for c in (space.columns.values() if space is not None else ())
            if c.key in self.positions
        ]
        if len({self.positions[c.key][1].tobytes() for c in near}) == 1:
            return near[0], *self.positions[near[0].key]
        known = (self.columns[key] for key in self.positions)
        part = next(
            (
                c
                for c in known
                if len(c.rows) == len(column.rows) and moves_with(column.values, c.values)
            ),
            None,
        )
        if part is not None:
            return part, *self.positions[part.key]
        return (self._chosen(column) or self._reordered(column)) if column.width > 1 else None

    def _reordered(self, column: Column) -> tuple[Column, Column, np.ndarray] | None:
        """The older column whose rows these are, scaled and put in another order at once."""
        for other in self.columns.values():
            if other is column:
                break
            if other.unlike and other.width == column.width and len(other.rows) == len(column.rows):
                places = in_another_order(column.values, other.values)
                if places is not None:
                    return column, other, places
        return None

    def _chosen(self, column: Column) -> tuple[Column, Column, np.ndarray] | None:
        """The column of a table of which the program's own numbers choose these rows."""
        for whole in self.columns.values():
            if (
                whole.telling
                and (whole.unlike or whole.width == 1)
                and whole.width == column.width
                and len(whole.rows) > len(column.rows)
            ):
                for places in self._selections(len(column.rows), len(whole.rows)):
                    if (
                        np.array_equal(whole.rows[places], column.rows)
                        if column.width == 1
                        else _scaled_alike(column, whole, places)
                    ):
                        return column, whole, places
        return None

    def _selections(self, part: int, whole: int) -> Iterator[np.ndarray]:
        """Places of so many of the rows of a table that the program's variables name: the first or
        last ones, by numbers, and by yes or no.
        """
        yield np.arange(part)
        yield np.arange(whole - part, whole)
        for column in self.columns.values():
            values = column.values
            if values is None or values.ndim != 1:
                continue
            if (
                len(values) == part
                and values.dtype.kind in "iu"
                and values.min() >= 0
                and values.max() < whole
                and len(np.unique(values)) == part
            ):
                yield values.astype(np.int64)
            elif (
                len(values) == whole
                and values.dtype.kind == "b"
                and values.sum() in (part, whole - part)
            ):
                yield np.flatnonzero(values if values.sum() == part else ~values)


def places_of(
    rows: np.ndarray, table: np.ndarray, least: float = MOST, order: np.ndarray | None = None
) -> np.ndarray | None:
    """Where rows [n] stand in a table [N], told by a number each; None where some of them are not
    in it.

    Args:
        rows: [n]
        table: [N]
        least: share of the rows that are in it.
        order: [N] that sorts the table.

    >>> (places_of(np.array([3, 1]), np.array([1, 2, 3])).tolist(),
    ...     places_of(np.array([4, 1]), np.array([1, 2, 3])))
    ([2, 0], None)
    """
    if order is None:
        order = np.argsort(table, kind="stable")
    elif not np.isin(rows[:FIRST], table).any():
        return None
    found = order[np.searchsorted(table, rows, sorter=order).clip(0, len(table) - 1)]
    return found if (table[found] == rows).mean() >= least else None


def in_another_order(values: np.ndarray | None, others: np.ndarray | None) -> np.ndarray | None:
    """Where rows [N, D] stand among others [N, D] that are the same ones, once scaled: told by the
    order in which a column rises, and asked of all of them.

    >>> others = np.random.default_rng(0).normal(size=(40, 3))
    >>> (in_another_order(others[[3, 1, 2, 0, *range(4, 40)]] * 2 - 1, others)[:5].tolist(),
    ...     in_another_order(others + others[::-1], others))
    ([3, 1, 2, 0, 4], None)
    """
    if values is None or others is None or values.ndim != 2 or others.shape != values.shape:
        return None
    a, b = (plain(array).astype(np.float64) for array in (values, others))
    for j in range(a.shape[1]):
        orders = [np.argsort(side[:, j], kind="stable") for side in (a, b)]
        first, second = a[orders[0], j], b[orders[1], j]
        if len(np.unique(second)) < len(second) or not np.isfinite([first, second]).all():
            continue
        if moves_with(first[:, None], second[:, None], EXACTLY):
            places = np.empty(len(a), dtype=np.int64)
            places[orders[0]] = orders[1]
            return places if moves_with(values, others[places], EXACTLY) else None
        return None
    return None


def moves_with(values: np.ndarray | None, others: np.ndarray | None, least: float = BESIDE) -> bool:
    """Whether most columns of two arrays [N, D] rise and fall together, as where one was scaled.

    >>> values = np.random.default_rng(0).normal(size=(40, 3))
    >>> moves_with(values, values * 2 - 1), moves_with(values, values[::-1])
    (True, False)
    """
    if values is None or others is None or values.shape[1:] != others.shape[1:]:
        return False
    a, b = (plain(array).astype(np.float64) for array in (values, others))
    known = np.isfinite(a) & np.isfinite(b)
    if known.mean() < 1 - HOLES:
        return False
    count = known.sum(0).clip(1)
    a, b = (np.where(known, side, 0.0) for side in (a, b))
    a, b = (np.where(known, side - side.sum(0) / count, 0.0) for side in (a, b))
    power = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    together = np.abs((a * b).sum(0)) / np.where(power > 0, power, np.inf)
    moving = power > 0
    return bool(moving.any() and (together > least)[moving].mean() >= MOSTLY)


def _scaled_alike(column: Column, whole: Column, places: np.ndarray) -> bool:
    return whole.values is not None and moves_with(column.values, whole.values[places], EXACTLY)
