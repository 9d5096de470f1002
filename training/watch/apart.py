"""Rows that are trained on beside labels of other rows: found again in the tables that both were
taken of.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from training.watch.origins import MOST, Origin, Origins, places_of
from training.watch.record import Watch
from training.watch.scopes import DISTINCT, Column, columns_of, counted, plain

NOT_THOSE, NEAR = 0.9, 0.3  # share of labels that are those of their row; correlation of places
AGREE = 0.98  # share of labels that are equal


def rows_apart(watch: Watch, origins: Origins, held: Iterable[Column]) -> None:
    """Rows that are trained on, and labels that are those of other rows of the table they were
    taken of.
    """
    held = list(held)
    for column in (c for c in held if c.unlike and c.width > 1):
        origin = origins.of(column)
        for labels in (
            c
            for c in held
            if c.width == 1 and c.values is not None and len(c.rows) == len(column.rows)
        ):
            if origin is None or labels.values is None or labels.values.dtype.kind not in "biuf":
                continue
            given = labels.values.reshape(-1).astype(np.float64)
            truths = {
                n: v.astype(np.float64)
                for n, v in columns_of(origin.space)
                if v.dtype.kind in "biuf"
            }
            if any(same(v[origin.places], given) for v in truths.values()):
                continue
            name = next(
                (n for n, v in truths.items() if elsewhere(v, origin.places, given)), None
            ) or _of_others(origins, origin, labels)
            if name is not None:
                told = (
                    "rows and labels that are trained on are not of one row: labels follow"
                    f" {name!r} in another order than the rows"
                )
                watch.tell("BH537", told, origin.place)
                return


def _of_others(origins: Origins, origin: Origin, labels: Column) -> str | None:
    """The column by which the labels' table stands in another order than that of the rows, and both
    hold the same values; or the labels' own, of other rows.
    """
    theirs = origins.of(labels)
    if theirs is None:
        return None
    if theirs.space is origin.space:
        apart = (theirs.places == origin.places).mean() < NEAR and abs(
            np.corrcoef(theirs.places, origin.places)[0, 1]
        ) < NEAR
        return labels.name if apart else None
    for column in theirs.space.columns.values():
        for mine in origin.space.columns.values():
            if (
                mine.name == column.name != ""
                and mine.width == column.width == 1
                and len(np.unique(mine.rows)) >= DISTINCT * len(mine.rows)
            ):
                a, b = mine.rows[origin.places], column.rows[theirs.places]
                inside = max(
                    np.isin(*pair).mean()
                    for pair in ((column.rows, mine.rows), (mine.rows, column.rows))
                )
                if inside >= MOST and (a == b).mean() < NEAR:
                    return mine.name
    return None


def same(values: np.ndarray, labels: np.ndarray) -> bool:
    """Whether labels [n] are these values, or follow from them on a straight line where they are of
    many kinds.
    """
    if np.isclose(values, labels, rtol=1e-5, atol=1e-6).mean() >= AGREE:
        return True
    many = len(np.unique(values)) > 2 and values.std() > 0 and labels.std() > 0
    return bool(
        many
        and abs(np.corrcoef(values, labels)[0, 1]) > AGREE
        and np.corrcoef(values, labels)[0, 1] ** 2 > 1 - 1e-6
    )


def elsewhere(values: np.ndarray, places: np.ndarray, labels: np.ndarray) -> bool:
    """Whether labels [n] are values [N] of a table, and not those that stand at the places [n], nor
    at some that follow these in order.

    >>> values = np.random.default_rng(0).integers(0, 2, 60)
    >>> places = np.random.default_rng(1).permutation(60)[:40]
    >>> elsewhere(values, places, values[:40]), elsewhere(values, places, values[places])
    (True, False)
    """
    n = len(labels)
    if len(np.unique(labels)) < 2 or (np.isclose(values[places], labels)).mean() > NOT_THOSE:
        return False
    if any(
        np.array_equal(part, labels) for part in (values[:n], values[len(values) - n :])
    ) and not counted(plain(labels)):
        return not np.array_equal(np.sort(places), places)
    if n == len(values) and np.array_equal(np.sort(values), np.sort(labels)):
        return bool(abs(np.corrcoef(values[places], labels)[0, 1]) < NEAR)
    if len(np.unique(labels)) < DISTINCT * n:
        return False
    found = places_of(labels, values)
    return found is not None and bool(abs(np.corrcoef(found, places)[0, 1]) < NEAR)
