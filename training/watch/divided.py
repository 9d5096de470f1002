"""What a table shows of which it is known what rows went to which side: persons on both sides, and
columns that were computed of rows that they should not know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.review.syntax import words
from training.watch.events import Place
from training.watch.record import Watch

SHARED = 0.5  # of the held-out rows are of persons of the train rows
SEVERAL = 2.0  # rows of a person, in the mean
# persons of whom new ones are to be foretold
KEPT_TOGETHER = {
    "patient", "subject", "speaker", "writer", "household", "person", "participant",
}  # fmt: skip
# beside the word for a person: an age or a weight of one is no person
WHO = {
    "id", "ids", "idx", "index", "no", "nr", "num", "number", "numbers", "key", "keys", "code",
    "codes", "name", "names", "uid", "hash", "owner", "owners",
    "of", "per", "by", "each", "row", "rows", "window", "windows", "sample", "samples", "all",
    "list", "array", "vec", "col", "column", "s",
}  # fmt: skip
# persons of each label, in the mean; of them that have another label than the one before
FEW_LABELS, CHANGES = (4, 0.2)
IN_ORDER = (
    0.9  # of the persons, whose held-out rows all follow their train rows: that is a split by time
)
# groups of rows that are looked at; sums of labels that groups of one size have
GROUPS, VALUES = (20, 3)
SCALED = 1 - 1e-8  # squared correlation
STRAIGHT = 0.99999  # correlation
EXACT, FACTOR = 1e-4, 100.0  # what a straight line leaves, and how much more there is to explain
KEYS, COLUMNS, CELLS = 12, 64, 400_000  # of a table that are tried; more columns of short ones
# rows back; share of rows, and of labels that may be one and the same
LAGS, NEARLY, COMMON = (49, 0.9, 0.3)
ASKED = 1000  # rows
MANY = 20  # values of labels that vary
TIMES = {"time", "timestamp", "date", "datetime", "day", "hour", "week", "month", "ts", "t"}
FOLLOWS = 0.7  # correlation of a label and the one before
# columns of which some are chosen; share of what is given that was
WIDE, FEWEST_CHOSEN, MOSTLY = (8, 2, 0.7)
NEXT_TO = 0.3  # of the held-out rows have a train row on both sides


@dataclass(eq=False)
class Divided:
    """A table, and the places of its rows that were trained on and that were held out."""

    columns: Mapping[Any, np.ndarray]  # [N] each
    train: np.ndarray
    held: np.ndarray
    label: Any  # the name of the column that is to be foretold; None where it is not known
    place: Place  # where it was divided
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)  # [N, W] each
    fed: frozenset[Any] | None = (
        None  # names of columns that the network is given; None where that is not known
    )
    # [N] each, that the table had before they were left out
    gone: Mapping[Any, np.ndarray] = field(default_factory=dict)


def look(watch: Watch, table: Divided) -> None:
    """Tell of what the table shows."""
    _persons(watch, table)
    _in_time(watch, table)
    _encoded(watch, table)
    _own_label(watch, table)
    _chosen(watch, table)


def _persons(watch: Watch, table: Divided) -> None:
    """Rows of one person on both sides; of one of anything else, which the network is not given,
    where all its rows have one label: to know it is to know the label.
    """
    truth = table.columns.get(table.label)
    for name, who in (*table.columns.items(), *table.gone.items()):
        named = (
            isinstance(name, str)
            and bool(KEPT_TOGETHER & words(name))
            and words(name) <= KEPT_TOGETHER | WHO
        )
        if name == table.label or not (
            named
            or (
                who.dtype.kind in "iuUSO"
                and truth is not None
                and table.fed is not None
                and name not in table.fed
            )
        ):
            continue
        kinds = codes_of(who)
        count = int(kinds.max()) + 1
        if len(who) < SEVERAL * max(count, 1) or not (
            named or (truth is not None and _one_label(kinds, codes_of(truth)))
        ):
            continue
        train, held = (rows[kinds[rows] >= 0] for rows in (table.train, table.held))
        mine, theirs = kinds[train], kinds[held]
        if not len(theirs) or np.isin(theirs, mine).mean() < SHARED:
            continue
        last, first = np.full(count, -1), np.full(count, len(who))
        np.maximum.at(last, mine, train)
        np.minimum.at(first, theirs, held)
        both = np.intersect1d(mine, theirs)
        if (last[both] < first[both]).mean() < IN_ORDER:
            told = (
                f"{len(both)} values of {name!r} are among the train rows and among those that are"
                " evaluated: rows of one are on both sides"
            )
            watch.tell("BH506", told, table.place)


def _one_label(kinds: np.ndarray, labels: np.ndarray) -> bool:
    """Whether rows [n] of one kind have one label, of few, that changes from kind to kind: one that
    follows from a number changes at a bound.

    >>> kinds = np.repeat(np.arange(40), 3)
    >>> (_one_label(kinds, kinds % 3 % 2), _one_label(kinds, (kinds > 17) * 1),
    ...     _one_label(kinds, np.arange(120) % 2))
    (True, False, False)
    """
    if (kinds < 0).any() or kinds.max() + 1 < GROUPS:
        return False
    of_kind = np.zeros(kinds.max() + 1, dtype=np.int64)
    of_kind[kinds] = labels
    changes = int((of_kind[1:] != of_kind[:-1]).sum())
    return (
        bool(np.array_equal(of_kind[kinds], labels))
        and len(np.unique(labels)) <= len(of_kind) / FEW_LABELS
        and changes > CHANGES * len(of_kind)
    )


def _numbers(table: Divided, kinds: str) -> Iterator[tuple[Any, np.ndarray]]:
    """Columns of such a kind but that of the label, as float64."""
    for name, values in [*table.columns.items()][
        : max(COLUMNS, CELLS // (1 + len(table.train) + len(table.held)))
    ]:
        if (
            name != table.label
            and values.dtype.kind in kinds
            and (table.fed is None or name in table.fed)
        ):
            yield name, values.astype(np.float64)


def _truth(table: Divided) -> np.ndarray | None:
    """The labels [N]; None where they are no numbers."""
    values = table.columns.get(table.label)
    return values.astype(np.float64) if values is not None and values.dtype.kind in "iufb" else None


def _in_time(watch: Watch, table: Divided) -> None:
    """Rows that stand in the order of time, since a column holds the label of an earlier one, and
    train rows among the held-out ones.
    """
    truth = _truth(table)
    if truth is None or not mixed(table.train, table.held) or not vary(truth):
        return  # few kinds are equal to an earlier one by chance
    for name, values in _numbers(table, "iuf"):
        ago = next(
            (
                k
                for k in range(1, min(LAGS, len(truth) // 2))
                if np.isclose(values[k:], truth[:-k]).mean() > NEARLY
            ),
            None,
        )
        if ago is not None:
            rows = "row" if ago == 1 else "rows"
            told = (
                f"{name!r} is {table.label!r} of {ago} {rows} before, so rows follow each other in"
                " time, and those that are evaluated lie among the train rows"
            )
            watch.tell("BH507", told, table.place)
            return
    if abs(float(np.corrcoef(truth[1:], truth[:-1])[0, 1])) < FOLLOWS:
        return
    for name, values in table.columns.items():
        if (
            isinstance(name, str)
            and TIMES & words(name)
            and len(np.unique(values)) > len(values) / 2
            and values.dtype.kind in "iufM"
            and (np.diff(values) >= 0).all()
        ):
            told = (
                f"rows stand in the order of {name!r}, {table.label!r} follows that of the row"
                " before, and those that are evaluated lie among the train rows"
            )
            watch.tell("BH507", told, table.place)
            return


def _own_label(watch: Watch, table: Divided) -> None:
    """A column that is a later label, or the mean of the labels of some rows that ends at the row
    itself or later; sooner, where labels are values of a series that come later.
    """
    truth = _truth(table)
    if truth is None or not vary(truth) or len(truth) < 2 * LAGS:
        return
    numbers = list(_numbers(table, "f"))
    ahead = next(
        (k for k in range(1, LAGS) for _, values in numbers if _equal(truth[:-k], values[k:])), 0
    )
    sums = np.concatenate([[0.0], truth.cumsum()])
    close = 1e-6 * float(truth.std())
    for name, values in numbers:
        later = next((k for k in range(1, LAGS) if _equal(values[:-k], truth[k:])), None)
        if later is not None:
            told = (
                f"{name!r} is {table.label!r} of {later} {'row' if later == 1 else 'rows'} later,"
                " which is not known yet"
            )
            watch.tell("BH524", told, table.place)
            continue
        for width in range(2, LAGS):
            # [n - width + 1], of rows i to i + width - 1
            means = (sums[width:] - sums[:-width]) / width
            # one row later may be known: lags alone do not tell
            sooner = {end - ahead for end in (width // 2, width - 1) if ahead and end > 1}
            for end in {0, width // 2, width - 1, width} | sooner:
                first = width - 1 - end  # the row of the first mean
                rows = np.arange(max(first, 0), min(first + len(means), len(values)))
                if _equal(values[rows], means[rows - first], close):
                    ends = (
                        "at the row itself"
                        if end == 0
                        else f"{abs(end)} rows {'later' if end > 0 else 'before it'}"
                    )
                    told = (
                        f"{name!r} is the mean of {table.label!r} over {width} rows that end"
                        f" {ends}, where it is not known yet"
                    )
                    watch.tell("BH524", told, table.place)
                    return


def _equal(values: np.ndarray, others: np.ndarray, close: float = 1e-8) -> bool:
    """Whether most of these are equal, or all are, once scaled; of long columns the first rows are
    asked first.
    """
    if len(values) > 2 * ASKED and not _equal(values[:ASKED], others[:ASKED], close):
        return False
    if np.isclose(values, others, rtol=1e-4, atol=close).mean() > NEARLY:
        return True
    x, y = values - values.mean(), others - others.mean()
    power = float(x @ x) * float(y @ y)
    return bool(power > 0 and float(x @ y) > 0 and float(x @ y) ** 2 > SCALED * power)


def _chosen(watch: Watch, table: Divided) -> None:
    """Columns of a wider array that go with the labels of all rows most, and not those that go with
    the labels of train rows most.
    """
    truth = _truth(table)
    if truth is None or truth.std() == 0:
        return
    everything = np.concatenate([table.train, table.held])
    for wide in (w for w in table.arrays.values() if w.shape[1] >= WIDE and np.isfinite(w).all()):
        for name, narrow in table.arrays.items():
            if not FEWEST_CHOSEN <= narrow.shape[1] <= wide.shape[1] / 2:
                continue
            chosen = _among(narrow, wide)
            if chosen is None:
                continue
            best = [
                set(np.argsort(-_together(wide[rows], truth[rows]))[: len(chosen)].tolist())
                for rows in (everything, table.train)
            ]
            if chosen == best[0] != best[1]:
                told = (
                    f"the {len(chosen)} of {wide.shape[1]} columns in {name!r} are those that go"
                    f" with {table.label!r} most in all rows, the held-out ones among them"
                )
                watch.tell("BH523", told, table.place)
                return


def _among(narrow: np.ndarray, wide: np.ndarray) -> set[int] | None:
    """Which columns of a wide array [N, W] most of those of a narrow one [N, D] are."""
    places = {
        column.tobytes(): j
        for j, column in enumerate(np.ascontiguousarray(wide.T.astype(np.float32)))
    }
    found = {
        places.get(column.tobytes()) for column in np.ascontiguousarray(narrow.T.astype(np.float32))
    } - {None}
    return (
        {j for j in found if j is not None}
        if len(found) >= max(FEWEST_CHOSEN, MOSTLY * narrow.shape[1])
        else None
    )


def _together(columns: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How much each column [n, W] goes with labels [n]: squared correlation, or the share of
    classes in the variance.
    """
    x = columns.astype(np.float64) - columns.mean(0)
    total = (x**2).sum(0).clip(1e-300)
    kinds = np.unique(labels)
    if 2 < len(kinds) <= MANY and (kinds == np.round(kinds)).all():
        return np.asarray(
            sum((x[labels == k].sum(0)) ** 2 / (labels == k).sum() for k in kinds) / total
        )
    y = labels - labels.mean()
    return np.asarray((x.T @ y) ** 2 / (total * (y @ y)))


def _encoded(watch: Watch, table: Divided) -> None:
    """A column that is one number for each value of another, and follows from how many rows have
    that value and from the sum of their labels.
    """
    truth = _truth(table)
    if truth is None:
        return
    keys = 0
    for key, names in [*table.gone.items(), *table.columns.items()][:COLUMNS]:
        codes = codes_of(names) if key != table.label else np.empty(0, dtype=np.int64)
        if keys == KEYS or not GROUPS <= codes.max(initial=-1) + 1 <= len(names) / 1.5:
            continue
        keys += 1
        # before gaps are dropped a label of a later row is missing at the end
        rows = np.flatnonzero((codes >= 0) & np.isfinite(truth))
        groups = np.unique(codes[rows], return_inverse=True)[1]
        sizes, sums = np.bincount(groups), np.bincount(groups, truth[rows])
        mine = np.isin(rows, table.train)
        of_train = (
            np.bincount(groups[mine], minlength=len(sizes)),
            np.bincount(groups[mine], truth[rows][mine], minlength=len(sizes)),
        )
        for name, values in _numbers(table, "f"):
            if name == key:
                continue
            mean = np.bincount(groups, values[rows]) / sizes
            if not np.isfinite(mean).all() or not np.allclose(
                mean[groups], values[rows], rtol=1e-5, atol=1e-8
            ):
                continue
            if follows(mean, sizes, sums) or (
                smoothed(mean, sizes, sums) and not smoothed(mean, *of_train)
            ):
                told = (
                    f"{name!r} follows from the sum of {table.label!r} over all rows of the same"
                    f" {key!r}, those that are evaluated among them"
                )
                watch.tell("BH504", told, table.place)


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
    left = [_left(part, scaled * sizes) for part in (known, known[:, 1:])]
    return bool(left[0] < EXACT <= left[1] / FACTOR)


def _left(known: np.ndarray, wanted: np.ndarray) -> float:
    """The largest deviation from a straight line, in units of the size of values."""
    rest = wanted - known @ np.linalg.lstsq(known, wanted, rcond=None)[0]
    return float(np.abs(rest).max() / wanted.std())


def codes_of(values: np.ndarray) -> np.ndarray:
    """Each value [N] as the number of its kind; -1 where it is missing.

    >>> codes_of(np.array(["b", "a", None, "b"], dtype=object)).tolist()
    [1, 0, -1, 1]
    """
    if values.dtype.kind == "O":
        missing = np.array(
            [v is None or (isinstance(v, float) and math.isnan(v)) for v in values.tolist()]
        )
        values = np.array([str(v) for v in values.tolist()])
    else:
        missing = (
            np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
        )
    codes = np.full(len(values), -1)
    codes[~missing] = np.unique(values[~missing], return_inverse=True)[1].reshape(-1)
    return codes


def mixed(train: np.ndarray, held: np.ndarray) -> bool:
    """Whether rows [n] of one side lie between rows of the other.

    >>> mixed(np.array([0, 2, 4, 6, 8]), np.array([1, 3, 7])), mixed(np.arange(6), np.array([6, 7]))
    (True, False)
    """
    return float((np.isin(held - 1, train) & np.isin(held + 1, train)).mean()) > NEXT_TO


def vary(labels: np.ndarray) -> bool:
    """Whether labels [n] are many, none of them much more frequent than the others."""
    counts = np.unique(labels, return_counts=True)[1]
    return len(counts) >= MANY and counts.max() < COMMON * len(labels)


def follows(values: np.ndarray, sizes: np.ndarray, sums: np.ndarray) -> bool:
    """Whether the value [G] of groups of one size lies on a straight line over the sum of their
    labels, and moves along it.

    >>> sizes, sums = np.repeat([2, 3], 12), np.tile([0.0, 1.0, 2.0], 8)
    >>> (follows((sums + 1) / (sizes + 4), sizes, sums),
    ...     follows(np.sin(np.arange(24.0)), sizes, sums))
    (True, False)
    """
    seen = 0
    for size in np.unique(sizes):
        alike = sizes == size
        if len(np.unique(sums[alike])) < VALUES:
            continue
        if (
            values[alike].std() == 0
            or not abs(np.corrcoef(values[alike], sums[alike])[0, 1]) >= STRAIGHT
        ):
            return False
        seen += int(alike.sum())
    return seen >= GROUPS
