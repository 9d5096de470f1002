"""Leaks in a table whose train and held-out rows are known. The checks find wrong statistics for
scaling, persons in both splits, mixed time, and columns made from labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from training.review.syntax import words
from training.watch.events import Place
from training.watch.scopes import PERSONS

COLUMNS = 64  # most columns of an array
# persons: least share of held-out rows that belong to train persons; mean rows per person
SHARED, SEVERAL = 0.5, 2.0
IN_ORDER = 0.9  # share of persons whose held-out rows follow their train rows: a split by time
# words next to the word for a person: the age or weight of a person identifies nobody
WHO = {
    "id", "ids", "idx", "index", "no", "nr", "num", "number", "numbers", "key", "keys", "code",
    "codes", "name", "names", "uid", "hash", "of", "per", "by", "each", "row", "rows", "all",
    "window", "windows", "sample", "samples", "list", "array", "column", "s",
}  # fmt: skip
FEW = 30  # least number of distinct values in a scaled column
CLOSE = 2e-5  # largest distance between statistics, in standard deviations
MOVED = 1e-3  # shift of a centred column, in standard deviations
STRAIGHT = 1 - 1e-9  # squared correlation of a column with a linear function of it
GROUPS, VALUES = 20, 3  # least number of groups; distinct sums of their labels
EXACT, FACTOR = 1e-4, 100.0  # residual of a linear fit; ratio to the residual without the labels
LAGS, WINDOW = 49, 31  # most rows of a lag; most rows of a window
MANY, EQUAL = 20, 1e-4  # least distinct labels; tolerance in deviations
NEARLY, ASKED = 0.9, 1000  # share of equal values; rows of the first, quick comparison
NEXT_TO = 0.3  # share of held-out rows between two train rows
WIDE, FEWEST_CHOSEN, MOSTLY = 8, 2, 0.7  # columns to select from; selected; share found


@dataclass(eq=False)
class Part:
    """Rows of a table that a network was given as an array."""

    values: np.ndarray | None  # [n, ...]
    places: np.ndarray  # [n] row numbers in the table
    train: np.ndarray  # [n] true for rows used in training
    seen: Place  # the line where the part was seen


@dataclass(eq=False)
class Line:
    """A column of a part that is linear in a table column: (raw - subtracted) / divided."""

    name: str
    raw: np.ndarray  # [N]
    part: Part
    subtracted: float
    divided: float


@dataclass(eq=False)
class Divided:
    """A table with the row numbers of its train rows and its held-out rows."""

    columns: Mapping[str, np.ndarray]  # [N] each
    train: np.ndarray
    held: np.ndarray
    label: str | None  # name of the target column
    arrays: list[np.ndarray]
    lines: list[Line]

    @property
    def truth(self) -> np.ndarray | None:
        """Return the labels [N], or None if they are not numbers."""
        values = self.columns.get(self.label or "")
        numbers = values is not None and values.dtype.kind in "iufb"
        return values.astype(np.float64) if values is not None and numbers else None

    def given(self, kinds: str) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the columns of these dtype kinds that the network receives, as float64."""
        for name in dict.fromkeys(line.name for line in self.lines):
            if name != self.label and self.columns[name].dtype.kind in kinds:
                yield name, self.columns[name].astype(np.float64)


def lines_of(columns: Mapping[str, np.ndarray], parts: list[Part]) -> list[Line]:
    """Find the table columns that parts contain, scaled or unchanged."""
    numbers = {n: v.astype(np.float64) for n, v in columns.items() if v.dtype.kind in "iufb"}
    found = list[Line]()
    for part in parts:
        if part.values is None or part.values.ndim > 2:
            continue
        made = part.values.reshape(len(part.places), -1).astype(np.float64)
        step = max(len(made) // ASKED, 1)
        for name, raw in numbers.items() if made.shape[1] <= COLUMNS else ():
            for j in range(made.shape[1]):
                if straight(raw[part.places[::step]], made[::step, j]) is None:
                    continue
                line = straight(raw[part.places], made[:, j])
                if line is not None:
                    found.append(Line(name, raw, part, *line))
    return found


def scaled_by_all(table: Divided) -> Iterator[str]:
    """Report columns scaled with statistics of all rows instead of the train rows (BH503)."""
    everything = np.concatenate([table.train, table.held])
    rows = (everything, slice(None))
    names = {
        line.name for line in _scaled(table) if any(numbers_of(line, line.raw[r]) for r in rows)
    }
    if names:
        yield f"{len(names)} columns, as {min(names)!r}, are scaled by numbers of all rows"


def scaled_by_held_out(table: Divided) -> Iterator[str]:
    """Report columns of held-out rows scaled with statistics of held-out rows only (BH502)."""
    names = {
        line.name
        for line in _scaled(table)
        if not line.part.train.any()
        and any(numbers_of(line, line.raw[r]) for r in (table.held, line.part.places))
    }
    if names:
        yield f"{len(names)} columns, as {min(names)!r}, of held-out rows are scaled by their own"


def _scaled(table: Divided) -> Iterator[Line]:
    """Yield scaled columns whose statistics are not those of train rows."""
    for line in table.lines:
        if line.name == table.label or len(np.unique(line.raw)) <= FEW:
            continue
        if abs(line.subtracted) < MOVED * float(np.nanstd(line.raw)):
            continue
        of_part = line.part.places[line.part.train]
        if not any(numbers_of(line, line.raw[rows]) for rows in (table.train, of_part)):
            yield line


def straight(raw: np.ndarray, values: np.ndarray) -> tuple[float, float] | None:
    """Return the c and s of values [n] = (raw [n] - c) / s, or None if no such pair fits.

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
    if not power > 0 or float(x @ y) ** 2 < STRAIGHT * power:
        return None
    s = float(x @ x) / float(x @ y)
    return float(a.mean() - s * b.mean()), s


def numbers_of(line: Line, rows: np.ndarray) -> bool:
    """Check that a column is scaled with the center and spread of these values [n]."""
    rows = rows[np.isfinite(rows)]
    if len(rows) < FEW / 10 or rows.std() == 0:
        return False
    c, s = line.subtracted, line.divided
    centres = (rows.mean(), np.median(rows), rows.min())
    spreads = [rows.std(ddof=n) + small for n in (0, 1) for small in (0.0, 1e-8, 1e-6, 1e-3)]
    widths = (*spreads, np.ptp(rows), np.subtract(*np.percentile(rows, [75, 25])), 1.0)
    return any(abs(c - n) < CLOSE * rows.std() for n in centres) and any(
        abs(s - n) < CLOSE * n for n in widths
    )


def persons_on_both_sides(table: Divided) -> Iterator[str]:
    """Report persons in train and held-out rows, unless the split is by time (BH506)."""
    for name, who in table.columns.items():
        if name == table.label or not (PERSONS & words(name) and words(name) <= PERSONS | WHO):
            continue
        kinds = codes_of(who)
        count = int(kinds.max()) + 1
        mine, theirs = kinds[table.train], kinds[table.held]
        if len(who) < SEVERAL * count or np.isin(theirs, mine).mean() < SHARED:
            continue
        last, first = np.full(count, -1), np.full(count, len(who))
        np.maximum.at(last, mine, table.train)
        np.minimum.at(first, theirs, table.held)
        both = np.intersect1d(mine, theirs)
        if (last[both] < first[both]).mean() < IN_ORDER:
            yield f"rows of {len(both)} values of {name!r} are trained on and evaluated on"


def mixed_in_time(table: Divided) -> Iterator[str]:
    """Report held-out rows among train rows of a time series (BH507). Rows are in time order if a
    column contains the label of an earlier row.
    """
    truth = table.truth
    between = np.isin(table.held - 1, table.train) & np.isin(table.held + 1, table.train)
    if truth is None or between.mean() <= NEXT_TO or not _vary(truth):
        return
    for name, values in table.given("iuf"):
        for ago in range(1, min(LAGS, len(truth) // 2)):
            if _equal(values[ago:], truth[:-ago]):
                yield (
                    f"{name!r} is {table.label!r} of {ago} rows before, so rows follow each other"
                    " in time, and those that are evaluated lie among the train rows"
                )
                return


def looking_ahead(table: Divided) -> Iterator[str]:
    """Report a column that contains future labels (BH524). It is a later label, or a mean of labels
    over a window that ends at the row or later.
    """
    truth = table.truth
    if truth is None or len(truth) < 2 * LAGS or not _vary(truth):
        return
    sums = np.concatenate([[0.0], truth.cumsum()])
    for name, values in table.given("f"):
        for width in range(1, WINDOW + 1):
            means = (sums[width:] - sums[:-width]) / width  # of rows i to i + width - 1
            for end in range(0 if width > 1 else 1, width + 1):
                first = width - 1 - end  # the row of the first mean
                rows = slice(max(first, 0), min(first + len(means), len(values)))
                theirs = means[rows.start - first : rows.stop - first]
                if _equal(values[rows], theirs):
                    yield (
                        f"{name!r} is the mean of {table.label!r} over {width} rows that end {end}"
                        " rows after the row itself, where it is not known yet"
                    )
                    return


def _equal(values: np.ndarray, labels: np.ndarray) -> bool:
    """Check that most values equal the labels. The first rows are compared first."""
    if len(values) > 2 * ASKED and not _equal(values[:ASKED], labels[:ASKED]):
        return False
    return bool((np.abs(values - labels) <= EQUAL * labels.std()).mean() > NEARLY)


def _vary(labels: np.ndarray) -> bool:
    """Check that labels [n] have many values and change from row to row. Others match by chance."""
    moves = np.abs(np.diff(labels)) > 100 * EQUAL * labels.std()
    return len(np.unique(labels)) >= MANY and bool(moves.mean() > 0.5)


def chosen_by_labels(table: Divided) -> Iterator[str]:
    """Report a feature selection that used the labels of all rows (BH523). The selected columns are
    the best ones for all rows, but not for the train rows.
    """
    truth = table.truth
    if truth is None or truth.std() == 0:
        return
    arrays = [a for a in table.arrays if a.ndim == 2]
    everything = np.concatenate([table.train, table.held])
    for wide in (a for a in arrays if a.shape[1] >= WIDE and np.isfinite(a).all()):
        for narrow in (a for a in arrays if FEWEST_CHOSEN <= a.shape[1] <= wide.shape[1] / 2):
            chosen = _among(narrow, wide)
            if len(chosen) < max(FEWEST_CHOSEN, MOSTLY * narrow.shape[1]):
                continue
            best, best_of_train = (
                set(np.argsort(-_together(wide[rows], truth[rows]))[: len(chosen)].tolist())
                for rows in (everything, table.train)
            )
            if chosen == best != best_of_train:
                yield (
                    f"{len(chosen)} of {wide.shape[1]} columns were chosen that go with"
                    f" {table.label!r} most in all rows, the held-out ones among them"
                )
                return


def _among(narrow: np.ndarray, wide: np.ndarray) -> set[int]:
    """Return the column numbers of a wide array [N, W] that a narrow one [N, D] contains."""
    found = {c.tobytes() for c in np.ascontiguousarray(narrow.T.astype(np.float32))}
    columns = np.ascontiguousarray(wide.T.astype(np.float32))
    return {j for j, column in enumerate(columns) if column.tobytes() in found}


def _together(columns: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the squared correlation of each column [n, W] with labels [n], up to a factor."""
    x = columns.astype(np.float64) - columns.mean(0)
    return np.asarray((x.T @ (labels - labels.mean())) ** 2 / (x**2).sum(0).clip(1e-300))


def encoded_by_labels(table: Divided) -> Iterator[str]:
    """Report a target encoding fitted on all rows (BH504). Such a column has one number per
    category, computed from the count and label sum of its rows.
    """
    truth = table.truth
    if truth is None:
        return
    known = np.flatnonzero(np.isfinite(truth))
    train = np.isin(known, table.train)
    for key, names in table.columns.items():
        kinds = codes_of(names[known]) if names.dtype.kind in "iuUSO" else np.zeros(1, int)
        count = int(kinds.max()) + 1
        if key == table.label or not GROUPS <= count <= len(kinds) / 1.5:
            continue
        labels = truth[known]
        of_all, of_train = (
            (np.bincount(kinds[r], minlength=count), np.bincount(kinds[r], labels[r], count))
            for r in (np.ones(len(kinds), bool), train)
        )
        for name, values in table.given("f"):
            mean = np.bincount(kinds, values[known]) / of_all[0]
            if (
                name != key
                and np.allclose(mean[kinds], values[known], rtol=1e-5, atol=1e-8)
                and smoothed(mean, *of_all)
                and not smoothed(mean, *of_train)
            ):
                yield (
                    f"{name!r} follows from the sum of {table.label!r} over all rows of the same"
                    f" {key!r}, held-out rows among them"
                )
                return


def smoothed(values: np.ndarray, sizes: np.ndarray, sums: np.ndarray) -> bool:
    """Check that group values [G] are label means, perhaps smoothed toward another mean and scaled.

    Such a value v satisfies v (n + b) = p (s + a) + q (n + b), linear in the unknowns.

    >>> rng = np.random.default_rng(0)
    >>> sizes, sums = rng.integers(5, 30, 40), rng.integers(0, 6, 40)
    >>> mean = (sums + 2.0) / (sizes + 8)
    >>> (smoothed(mean, sizes, sums), smoothed(mean / 3 - 1, sizes, sums),
    ...     smoothed(rng.normal(size=40), sizes, sums))
    (True, True, False)
    """
    if len(sizes) < GROUPS or values.std() == 0 or len(np.unique(sums)) < VALUES:
        return False
    scaled = (values - values.mean()) / values.std()
    known = np.stack([sums, sizes, scaled, np.ones(len(sizes))], axis=1).astype(np.float64)
    left = []
    for part in (known, known[:, 1:]):
        rest = scaled * sizes - part @ np.linalg.lstsq(part, scaled * sizes, rcond=None)[0]
        left.append(float(np.abs(rest).max() / (scaled * sizes).std()))
    return left[0] < EXACT <= left[1] / FACTOR


def codes_of(values: np.ndarray) -> np.ndarray:
    """Return the category number of each value [N]."""
    kinds = values.astype(str) if values.dtype.kind == "O" else values
    return np.unique(kinds, return_inverse=True)[1].reshape(-1)


QUESTIONS = {
    "BH502": scaled_by_held_out,
    "BH503": scaled_by_all,
    "BH504": encoded_by_labels,
    "BH506": persons_on_both_sides,
    "BH507": mixed_in_time,
    "BH523": chosen_by_labels,
    "BH524": looking_ahead,
}
