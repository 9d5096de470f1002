"""Rows for statistics: a sample of every split in memory, as numbers and codes.

Shapes: N rows of all splits together, train first; K targets of a label. Rows are in the order of
the hash of their id, so that nothing depends on the order of a file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from training.data.leakage.sides import Sides

TRAIN_ROWS, HELD_OUT_ROWS = 50_000, 20_000
MOST_CLASSES = 20
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Label(NamedTuple):
    """Label column: its kind, targets [N, K] with NaN where unknown, and its values [N].

    Targets: 0 or 1 of a binary label, one column for each class (the most frequent ones), the rank
    among train's values of a number, from 0 to 1. Values: class codes, or the number.
    """

    name: str
    kind: str
    targets: Floats
    values: Floats


class Sampled(NamedTuple):
    """Rows of all splits.

    `train` [N]; `side` [N] names of splits; `ids` [N]; `group` codes [N], where a row without one
    is its own group; `time` [N], NaN if there is none; `numeric` values with NaN for null;
    `category` codes with -1 for null, and `texts` their meaning.
    """

    train: Flags
    side: NDArray[Any]
    ids: NDArray[Any]
    group: Codes
    time: Floats
    numeric: dict[str, Floats]
    category: dict[str, Codes]
    texts: dict[str, NDArray[Any]]
    labels: tuple[Label, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the numeric and categorical features."""
        return (*self.numeric, *self.category)

    def value(self, name: str, position: int) -> float | str | None:
        """Return the value of a feature in a row, for evidence."""
        if name in self.numeric:
            number = float(self.numeric[name][position])
            return None if np.isnan(number) else number
        code = int(self.category[name][position])
        return None if code < 0 else str(self.texts[name][code])


def sampled(
    sides: Sides, train_rows: int = TRAIN_ROWS, held_out_rows: int = HELD_OUT_ROWS
) -> Sampled:
    """Sample rows of train and of the held-out splits together, as numbers and codes.

    Each sample has at most the given number of rows; tensors are left out.
    """
    spec = sides.spec
    labels = tuple(spec.label_columns) if spec.text is None else ()
    columns = tuple(
        dict.fromkeys(("__id", "__group", "__time", *labels, *spec.numeric, *spec.categorical))
    )
    parts = {"train": sides.sample("train", columns, train_rows)}
    parts |= {
        side: sides.sample(side, columns, held_out_rows // len(sides.held_out))
        for side in sides.held_out
    }
    table = pa.concat_tables(list(parts.values()))
    side = np.repeat(list(parts), [len(part) for part in parts.values()])
    coded = {name: coded_texts(table[name]) for name in spec.categorical}
    train = side == "train"
    return Sampled(
        train,
        side,
        table["__id"].to_numpy(),
        _groups(table["__group"]),
        numbers(table["__time"]),
        {name: numbers(table[name]) for name in spec.numeric},
        {name: codes for name, (codes, _) in coded.items()},
        {name: texts for name, (_, texts) in coded.items()},
        tuple(
            _label(name, table[name], sides.declaration.task.label(name).kind, train)
            for name in labels
        ),
    )


def numbers(column: pa.ChunkedArray) -> Floats:
    """Return a numeric column [N] with NaN for null."""
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def coded_texts(column: pa.ChunkedArray) -> tuple[Codes, NDArray[Any]]:
    """Return codes [N] in the order in which values appear, -1 for null, and the values."""
    encoded = column.combine_chunks().dictionary_encode()
    return np.asarray(
        pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64
    ), np.asarray(encoded.dictionary.to_pylist(), dtype=object)


def _groups(column: pa.ChunkedArray) -> Codes:
    codes, values = coded_texts(column)
    alone = codes < 0
    codes[alone] = len(values) + np.arange(int(alone.sum()))
    return codes


def _label(name: str, column: pa.ChunkedArray, kind: str, train: Flags) -> Label:
    if kind == "regression":
        values = numbers(column)
        return Label(
            name, kind, _ranks(values, np.sort(values[train & ~np.isnan(values)]))[:, None], values
        )
    encoded, classes = coded_texts(column)
    order = np.argsort(np.argsort(classes)) if len(classes) else np.zeros(0, dtype=np.int64)
    values = np.where(encoded < 0, np.nan, order[encoded] if len(order) else np.nan).astype(
        np.float64
    )
    counts = np.bincount(values[train & ~np.isnan(values)].astype(np.int64), minlength=2)
    kept = (
        np.array([len(counts) - 1])
        if kind == "binary" and len(counts) == 2
        else np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES])
    )
    targets = np.where(np.isnan(values)[:, None], np.nan, values[:, None] == kept[None, :])
    return Label(name, kind, targets, values)


def _ranks(values: Floats, known: Floats) -> Floats:
    """Return the ranks of values among the known ones, from 0 to 1; ties share the middle."""
    if not len(known):
        return np.full(len(values), np.nan)
    middle = (np.searchsorted(known, values, "left") + np.searchsorted(known, values, "right")) / (
        2 * len(known)
    )
    return np.where(np.isnan(values), np.nan, middle)
