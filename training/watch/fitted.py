"""Columns that were scaled or filled: by numbers of which rows, as they tell beside the columns
that they were made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.watch.divided import COLUMNS, Divided
from training.watch.record import Watch

SAME = 1 - 1e-9  # squared correlation of a column and what was made of it by a straight line
FEW, GAPS = 30, 5  # rows that are looked at; gaps that were filled
CLOSE = 2e-5  # of a deviation
LINES = 1e-3  # of the deviation of a column, beyond which a number was not left as it was
# correlation of components, how much larger it is in other rows, and pairs that are asked for
APART, FACTOR, PAIRS = (2e-6, 100.0, 3)
KINDS, ASKED = 20, 1000  # values of a column; rows that are asked first


@dataclass(frozen=True)
class Made:
    """An array of some rows of a table."""

    name: str
    values: np.ndarray  # [n, D]
    places: np.ndarray  # [n] in the table
    line: Any  # where it was seen


def fed(columns: Mapping[Any, np.ndarray], made: list[Made]) -> frozenset[Any]:
    """Names of columns of a table that arrays hold, scaled perhaps."""
    numbers = {
        name: values.astype(np.float64)
        for name, values in columns.items()
        if values.dtype.kind in "iufb"
    }
    return frozenset(
        name for part in made for names in _lines(numbers, part).values() for name in names
    )


def look_at_made(watch: Watch, table: Divided, made: list[Made]) -> None:
    """Tell of arrays that were made by numbers of rows that are held out; once of each rule, since
    one mistake shows in every part.
    """
    raw = {
        name: values.astype(np.float64)
        for name, values in table.columns.items()
        if values.dtype.kind in "iuf" and name != table.label
    }
    raw = {name: values for name, values in raw.items() if len(np.unique(values)) > FEW}
    for part in made:
        if part.values.shape[1] <= COLUMNS and len(part.values) >= FEW and raw:
            lines = _lines(raw, part)
            for rule, told in (
                *_scaled(table, raw, part, lines),
                *_filled(table, raw, part, lines),
                *_turned(table, part),
                *_ranked(table, raw, part),
            ):
                if not any(known == rule for known, _ in watch.found):
                    watch.tell(rule, told, part.line)


def _lines(raw: Mapping[Any, np.ndarray], part: Made) -> dict[int, list[Any]]:
    """The raw columns over which each column of a part [n, D] lies on a straight line, where both
    are known; a sample of long ones is asked first.
    """
    step = max(len(part.places) // ASKED, 1)
    places, few = part.places[::step], part.values[::step].astype(np.float64)
    found: dict[int, list[Any]] = {}
    for name, column in raw.items():
        sample = column[places]
        for j in range(few.shape[1]):
            if straight(sample, few[:, j]) is not None and (
                step == 1
                or straight(column[part.places], part.values[:, j].astype(np.float64)) is not None
            ):
                found.setdefault(j, []).append(name)
    return found


def _turned(table: Divided, part: Made) -> Iterator[tuple[str, str]]:
    """Components of all rows: columns that do not go together at all in all rows, and do in train
    rows.
    """
    values, everything = part.values, np.concatenate([table.train, table.held])
    if values.shape[1] < 2 or len(part.places) < len(everything) or not np.isfinite(values).all():
        return
    given, train = np.isin(part.places, everything), np.isin(part.places, table.train)
    for rows in (given, np.ones(len(values), dtype=bool)):
        apart = (_together(values[rows]) < APART) & (_together(values[train]) > FACTOR * APART)
        count = int(np.triu(apart, 1).sum())
        if count >= min(PAIRS, values.shape[1] * (values.shape[1] - 1) // 2):
            yield (
                "BH503",
                (
                    f"{count} pairs of columns of {part.name!r} do not go together at all in all"
                    " rows, and do in train rows: they are components of all rows"
                ),
            )
            return


def _together(values: np.ndarray) -> np.ndarray:
    """The correlations [D, D] of columns [n, D]; 1 where a column stands still."""
    x = values.astype(np.float64) - values.mean(0)
    size = np.sqrt((x**2).sum(0))
    still = size == 0
    found = np.abs(x.T @ x) / np.outer(np.where(still, 1, size), np.where(still, 1, size))
    found[still] = found[:, still] = 1.0
    return np.asarray(found)


def _ranked(table: Divided, raw: dict[Any, np.ndarray], part: Made) -> Iterator[tuple[str, str]]:
    """Ranks among all rows: columns in the order of a raw one whose values lie evenly in all rows,
    and not in train rows.
    """
    everything = np.concatenate([table.train, table.held])
    if len(np.unique(part.places)) < len(everything):
        return
    for j in range(part.values.shape[1]):
        values = np.full(len(next(iter(raw.values()))), np.nan)
        values[part.places] = part.values[:, j]
        if _even(values[table.train]) or not (
            _even(values[everything]) or _even(values[part.places])
        ):
            continue
        order = np.argsort(values[everything])
        name = next(
            (
                n
                for n, column in raw.items()
                if not _even(column[everything]) and _rises(column[everything][order])
            ),
            None,
        )
        if name is not None:
            yield (
                "BH503",
                (
                    f"{part.name!r} holds the ranks of {name!r} among all rows, the held-out ones"
                    " among them"
                ),
            )
            return


def _rises(values: np.ndarray) -> bool:
    """Whether the values [n] that are known rise."""
    known = values[np.isfinite(values)]
    return bool(len(known) > len(values) / 2 and (np.diff(known) > 0).all())


def _even(values: np.ndarray) -> bool:
    """Whether values [n] lie at equal distances.

    >>> _even(np.array([0.1, 0.3, 0.2])), _even(np.array([0.1, 0.4, 0.2]))
    (True, False)
    """
    steps = np.diff(np.sort(values.astype(np.float64)))
    return bool(
        np.isfinite(values).all()
        and steps.min(initial=np.inf) > 0
        and np.ptp(steps) < 1e-3 * steps.mean()
    )


def _scaled(
    table: Divided, raw: dict[Any, np.ndarray], part: Made, lines: dict[int, list[Any]]
) -> Iterator[tuple[str, str]]:
    """Columns that lie on a straight line over a raw one: whether its numbers are those of all
    rows, of train rows or of the held-out ones.
    """
    of_train, of_held = (
        part.places[np.isin(part.places, side)] for side in (table.train, table.held)
    )
    if not len(of_train) and not len(of_held):
        return
    everything = np.concatenate([table.train, table.held])
    by_all, by_held = list[Any](), list[Any]()
    for j, names in lines.items():
        found = (
            (n, straight(raw[n][part.places], part.values[:, j].astype(np.float64))) for n in names
        )
        name, line = next(
            ((n, line) for n, line in found if line is not None and moved(line, raw[n])),
            (None, None),
        )
        if line is None or any(numbers(line, raw[name][rows]) for rows in (table.train, of_train)):
            continue
        if any(numbers(line, raw[name][rows]) for rows in (everything, np.arange(len(raw[name])))):
            by_all.append(name)
        elif not len(of_train) and any(
            numbers(line, raw[name][rows]) for rows in (table.held, part.places)
        ):
            by_held.append(name)
    by_all = by_all or _level_in(table.train, everything, part)
    if by_all:
        yield (
            "BH503",
            (
                f"{len(by_all)} columns are scaled by numbers of all rows, the held-out ones among"
                f" them: {_names(by_all)}"
            ),
        )
    elif by_held:
        yield "BH502", f"held-out rows are scaled by numbers of their own: {_names(by_held)}"


def _level_in(train: np.ndarray, everything: np.ndarray, part: Made) -> list[Any]:
    """Columns of both sides that have median 0 and quartiles 1 apart in all rows, and not in train
    rows: that of what they were made is not known.

    Mean 0 and deviation 1 are looked for among the rows that the network was given (`rows`).
    """
    rows, mine = np.isin(part.places, everything), np.isin(part.places, train)
    if rows.sum() < len(everything):
        return []
    columns = {
        f"{part.name}[:, {j}]": part.values[:, j]
        for j in range(part.values.shape[1])
        if len(np.unique(part.values[:, j])) > KINDS
    }
    return [
        name
        for name, values in columns.items()
        if _level(values[rows]) and not _level(values[mine])
    ]


def _level(values: np.ndarray) -> bool:
    low, middle, high = (
        np.percentile(values.astype(np.float64), [25, 50, 75])
        if np.isfinite(values).all()
        else (0.0, 0.0, 0.0)
    )
    return bool(abs(middle) < CLOSE and abs(high - low - 1) < CLOSE)


def _filled(
    table: Divided, raw: dict[Any, np.ndarray], part: Made, lines: dict[int, list[Any]]
) -> Iterator[tuple[str, str]]:
    """Columns that are raw ones with their gaps filled: by a number of all rows, or from later
    rows.
    """
    everything = np.concatenate([table.train, table.held])
    for j, name in ((j, name) for j, names in lines.items() for name in names):
        column, values = raw[name], part.values[:, j].astype(np.float64)
        gaps = np.isnan(column[part.places])
        line = straight(column[part.places], values)
        if line is None or gaps.sum() < GAPS or not np.isfinite(values[gaps]).all():
            continue
        filled = values[gaps] * line[1] + line[0]
        close = CLOSE * float(np.nanstd(column))
        if np.ptp(filled) < close:
            by = [
                any(abs(filled[0] - n) < close for n in _middle(column[rows]))
                for rows in (table.train, everything)
            ]
            if by == [False, True]:
                yield (
                    "BH503",
                    (
                        f"gaps in {name!r} are filled by a number of all rows, the held-out ones"
                        " among them"
                    ),
                )


def _names(found: list[Any]) -> str:
    return ", ".join(map(str, found[:3])) + (", …" if len(found) > 3 else "")


def straight(raw: np.ndarray, values: np.ndarray) -> tuple[float, float] | None:
    """The number c that was subtracted of raw values [n], and the s that they were divided by; None
    where values are not made so.

    >>> c, s = straight(np.arange(5.0), (np.arange(5.0) - 2) / 4)
    >>> round(c, 9), round(s, 9)
    (2.0, 4.0)
    """
    kept = np.isfinite(raw) & np.isfinite(values)
    if kept.sum() < FEW / 10 or not kept.mean() > 0.5:
        return None
    a, b = raw[kept], values[kept]
    x, y = a - a.mean(), b - b.mean()
    power = float(x @ x) * float(y @ y)
    if not power > 0 or float(x @ y) ** 2 < SAME * power:
        return None
    s = float(x @ x) / float(x @ y)
    return float(a.mean() - s * b.mean()), s


def moved(line: tuple[float, float], column: np.ndarray) -> bool:
    """Whether a straight line changes anything, and more than a unit of measurement does: it takes
    off some of the middle, or divides by no round number.
    """
    c, s = line
    return s > 0 and (
        abs(c) > LINES * float(np.nanstd(column)) or abs(float(f"{s:.3g}") - s) > LINES * LINES * s
    )


def numbers(line: tuple[float, float], rows: np.ndarray) -> bool:
    """Whether the numbers of a line are a middle and a width of these values [n]."""
    rows = rows[np.isfinite(rows)]
    if len(rows) < FEW / 10 or rows.std() == 0:
        return False
    c, s = line
    spread = float(rows.std())
    centre = any(abs(c - n) < CLOSE * spread for n in (*_middle(rows), float(rows.min())))
    width = any(abs(s - n) < CLOSE * n for n in _widths(rows))
    return (
        (centre and width) or (centre and abs(s - 1) < CLOSE) or (width and abs(c) < CLOSE * spread)
    )


def _middle(rows: np.ndarray) -> Iterator[float]:
    rows = rows[np.isfinite(rows)]
    if len(rows):
        yield float(rows.mean())
        yield float(np.median(rows))


def _widths(rows: np.ndarray) -> Iterator[float]:
    for small in (0.0, 1e-8, 1e-6, 1e-3):
        yield float(rows.std()) + small
        yield float(rows.std(ddof=1)) + small
    yield float(np.ptp(rows))
    yield float(np.abs(rows).max())
    low, high = np.percentile(rows, [25, 75])
    yield float(high - low) or 1.0
