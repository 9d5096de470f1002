"""What a table shows of which it is known what rows went to which side: by numbers of which rows it
was scaled, persons on both sides, time that was mixed, and columns that were made of labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from training.review.syntax import words
from training.watch.events import Place
from training.watch.scopes import PERSONS

COLUMNS = 64  # of an array that are looked at
# persons: the least share of held-out rows that are of train persons; rows of one, in the mean
SHARED, SEVERAL = 0.5, 2.0
IN_ORDER = 0.9  # of the persons, whose held-out rows follow their train rows: a split by time
# beside the word for a person: an age or a weight of one is no person
WHO = {
    "id", "ids", "idx", "index", "no", "nr", "num", "number", "numbers", "key", "keys", "code",
    "codes", "name", "names", "uid", "hash", "of", "per", "by", "each", "row", "rows", "all",
    "window", "windows", "sample", "samples", "list", "array", "column", "s",
}  # fmt: skip
FEW = 30  # values of a column that is scaled
CLOSE = 2e-5  # of a deviation, that numbers of a scaled column are from those of some rows
MOVED = 1e-3  # of a deviation, by which a column that is said to be centred was moved
STRAIGHT = 1 - 1e-9  # squared correlation of a column and what was made of it by a straight line
GROUPS, VALUES = 20, 3  # groups of rows that are looked at; different sums of their labels
EXACT, FACTOR = 1e-4, 100.0  # what a straight line leaves, and how much more there is to explain
LAGS, WINDOW = 49, 31  # rows back; rows of a window
MANY, EQUAL = 20, 1e-4  # values of labels; of their deviation, by which equal ones differ
NEARLY, ASKED = 0.9, 1000  # share of values that are equal; rows that are asked first
NEXT_TO = 0.3  # of the held-out rows have a train row on both sides
WIDE, FEWEST_CHOSEN, MOSTLY = 8, 2, 0.7  # columns of which some are chosen; share that is found


@dataclass(eq=False)
class Part:
    """An array that a network was given rows of, which were taken of a table."""

    values: np.ndarray | None  # [n, ...]
    places: np.ndarray  # [n] in the table
    train: np.ndarray  # [n] whether it was trained on
    seen: Place  # the line where the part was seen


@dataclass(eq=False)
class Line:
    """A column of a part that lies on a straight line over a column of its table: values are (raw -
    subtracted) / divided.
    """

    name: str
    raw: np.ndarray  # [N]
    part: Part
    subtracted: float
    divided: float


@dataclass(eq=False)
class Divided:
    """A table, and the places of its rows that were trained on and that were held out."""

    columns: Mapping[str, np.ndarray]  # [N] each
    train: np.ndarray
    held: np.ndarray
    label: str | None  # the name of the column that is to be foretold
    arrays: list[np.ndarray]
    lines: list[Line]

    @property
    def truth(self) -> np.ndarray | None:
        """The labels [N]; None where they are no numbers."""
        values = self.columns.get(self.label or "")
        numbers = values is not None and values.dtype.kind in "iufb"
        return values.astype(np.float64) if values is not None and numbers else None

    def given(self, kinds: str) -> Iterator[tuple[str, np.ndarray]]:
        """Columns of such a kind that the network is given, as float64."""
        for name in dict.fromkeys(line.name for line in self.lines):
            if name != self.label and self.columns[name].dtype.kind in kinds:
                yield name, self.columns[name].astype(np.float64)


def lines_of(columns: Mapping[str, np.ndarray], parts: list[Part]) -> list[Line]:
    """Columns of a table that parts of it hold, scaled perhaps."""
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
    """BH503: the numbers of a scaled column are those of all rows, and not of train rows."""
    everything = np.concatenate([table.train, table.held])
    rows = (everything, slice(None))
    names = {
        line.name for line in _scaled(table) if any(numbers_of(line, line.raw[r]) for r in rows)
    }
    if names:
        yield f"{len(names)} columns, as {min(names)!r}, are scaled by numbers of all rows"


def scaled_by_held_out(table: Divided) -> Iterator[str]:
    """BH502: the numbers of a scaled column are those of held-out rows alone."""
    names = {
        line.name
        for line in _scaled(table)
        if not line.part.train.any()
        and any(numbers_of(line, line.raw[r]) for r in (table.held, line.part.places))
    }
    if names:
        yield f"{len(names)} columns, as {min(names)!r}, of held-out rows are scaled by their own"


def _scaled(table: Divided) -> Iterator[Line]:
    """Lines of columns that were scaled, and not by numbers of train rows."""
    for line in table.lines:
        if line.name == table.label or len(np.unique(line.raw)) <= FEW:
            continue
        if abs(line.subtracted) < MOVED * float(np.nanstd(line.raw)):
            continue
        of_part = line.part.places[line.part.train]
        if not any(numbers_of(line, line.raw[rows]) for rows in (table.train, of_part)):
            yield line


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
    if not power > 0 or float(x @ y) ** 2 < STRAIGHT * power:
        return None
    s = float(x @ x) / float(x @ y)
    return float(a.mean() - s * b.mean()), s


def numbers_of(line: Line, rows: np.ndarray) -> bool:
    """Whether the numbers of a line are a middle and a width of these values [n]."""
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
    """BH506: held-out rows are of persons of the train rows, and not only later ones."""
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
    """BH507: rows stand in the order of time, since a column holds the label of an earlier one, and
    held-out rows lie among train rows.
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
    """BH524: a column is a later label, or the mean of the labels of a window that ends at the row
    itself or later.
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
    """Whether most of these are equal; the first rows are asked first."""
    if len(values) > 2 * ASKED and not _equal(values[:ASKED], labels[:ASKED]):
        return False
    return bool((np.abs(values - labels) <= EQUAL * labels.std()).mean() > NEARLY)


def _vary(labels: np.ndarray) -> bool:
    """Whether labels [n] are many, and move from row to row: others are equal by chance."""
    moves = np.abs(np.diff(labels)) > 100 * EQUAL * labels.std()
    return len(np.unique(labels)) >= MANY and bool(moves.mean() > 0.5)


def chosen_by_labels(table: Divided) -> Iterator[str]:
    """BH523: columns of a wider array are those that go with the labels of all rows most, and not
    those that go with the labels of train rows most.
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
    """Which columns of a wide array [N, W] are in a narrow one [N, D]."""
    found = {c.tobytes() for c in np.ascontiguousarray(narrow.T.astype(np.float32))}
    columns = np.ascontiguousarray(wide.T.astype(np.float32))
    return {j for j, column in enumerate(columns) if column.tobytes() in found}


def _together(columns: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How much each column [n, W] goes with labels [n]: squared correlation, but for a factor."""
    x = columns.astype(np.float64) - columns.mean(0)
    return np.asarray((x.T @ (labels - labels.mean())) ** 2 / (x**2).sum(0).clip(1e-300))


def encoded_by_labels(table: Divided) -> Iterator[str]:
    """BH504: a column is one number for each value of another, and follows from how many rows have
    that value and from the sum of their labels.
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
    """Whether the value [G] of a group is the mean of its labels, drawn to another mean perhaps,
    and scaled perhaps.

    Such a value v holds v (n + b) = p (s + a) + q (n + b), which is linear in what is not known.

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
    """Each value [N] as the number of its kind."""
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
