"""Data that the report reads from the files of a run: materialised splits and test predictions.

Figures about the split come from the written arrays and ids, not from the plan. Only the columns
that are shown are read, and nothing loops over rows in Python.

Shape legend: N rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from schemas.config import SPLITS, SplitName
from schemas.errors import DataError, first_few
from schemas.records import EvaluationReport, FileRef, Prepared, SplitArrays, Statistics
from training.formatting import plural

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """One materialised split.

    `times`: float64 [N] without nulls, or None if no time is declared. `labels`: int64 counts [C]
    for classes, else (mean, standard deviation) in the user's units, or of a document's characters.
    `groups`: distinct non-null groups. `known_labels`: known fraction of each of several labels;
    counts and mean are then empty.
    """

    name: SplitName
    rows: int
    groups: int | None
    times: Floats | None
    class_counts: Ints | None
    label_mean: float
    label_std: float
    known_labels: float | None = None

    @property
    def first(self) -> float | None:
        """Smallest time."""
        return float(self.times.min()) if self.times is not None and len(self.times) else None

    @property
    def last(self) -> float | None:
        """Largest time."""
        return float(self.times.max()) if self.times is not None and len(self.times) else None


@dataclass(frozen=True)
class Predictions:
    """Scored rows in file order.

    `label` and `prediction`: class index int64 [N], or values float64 [N] in the user's units.
    `probability`: float64 [N, C], or None for regression. `time`: float64 [N] (NaN where null) or
    None.
    """

    label: NDArray[Any]
    prediction: NDArray[Any]
    probability: Floats | None
    time: Floats | None


def read_sides(prepared: Prepared) -> dict[SplitName, Side]:
    """Read the three splits from their ids and label files."""
    return {name: _side(name, prepared.arrays.side(name), prepared) for name in SPLITS}


def _side(name: SplitName, arrays: SplitArrays, prepared: Prepared) -> Side:
    spec, statistics = prepared.validated.spec, prepared.statistics
    wanted = [c for c, used in (("__time", spec.time), ("__group", spec.grouped)) if used]
    if arrays.documents is not None:
        return _side_of_documents(name, arrays.documents, prepared)
    ids = pq.read_table(arrays.ids.path, columns=wanted) if wanted else None
    label = np.load(arrays.arrays["label"].path, mmap_mode="r", allow_pickle=False)
    known = float(np.mean(~np.isnan(label))) if statistics.labels and len(label) else None
    counts = (
        np.bincount(label, minlength=len(statistics.classes)).astype(np.int64)
        if statistics.classes
        else None
    )
    mean, std = (
        (0.0, 0.0)
        if counts is not None or known is not None or not len(label)
        else (float(np.mean(label, dtype=np.float64)), float(np.std(label, dtype=np.float64)))
    )
    return Side(
        name=name,
        rows=arrays.rows,
        groups=(
            pc.count_distinct(ids["__group"]).as_py() if ids is not None and spec.grouped else None
        ),
        times=_times(ids["__time"].drop_null()) if ids is not None and spec.time else None,
        class_counts=counts,
        label_mean=mean * statistics.target_scale + statistics.target_center,
        label_std=std * statistics.target_scale,
        known_labels=known,
    )


def _side_of_documents(name: SplitName, documents: FileRef, prepared: Prepared) -> Side:
    """Read a split of a language model.

    Its rows are documents, and their varying quantity is the length in characters.
    """
    spec, table = (
        prepared.validated.spec,
        pq.read_table(documents.path, columns=["__group", "__time", "characters"]),
    )
    characters = table["characters"].to_numpy()
    return Side(
        name=name,
        rows=table.num_rows,
        groups=pc.count_distinct(table["__group"]).as_py() if spec.grouped else None,
        times=_times(table["__time"].drop_null()) if spec.time else None,
        class_counts=None,
        label_mean=float(characters.mean()),
        label_std=float(characters.std()),
    )


def _times(column: pa.ChunkedArray) -> Floats:
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy()
    return values


def read_predictions(report: EvaluationReport, prepared: Prepared) -> Predictions:
    """Read the predictions that the metrics were computed from.

    Raises:
        DataError: the file lacks a column, or contains a label that train did not have.
    """
    path, statistics = report.predictions.path, prepared.statistics
    names = pq.read_schema(path).names
    missing = [c for c in ("label", "prediction") if c not in names]
    if missing:
        raise DataError(
            f"{path}: expected columns label and prediction, lacks {missing}; it has"
            f" {first_few(names)}"
        )
    probability = [n for n in names if n.startswith("probability_")]
    if statistics.classes and len(probability) != len(statistics.classes):
        raise DataError(
            f"{path}: expected {plural(len(statistics.classes), 'column')}"
            " probability_<class>, found"
            f" {len(probability)}: {first_few(probability)}"
        )
    shown = pq.read_table(path, columns=["label", "prediction", *probability])
    time = (
        _time_of(report, prepared)
        if prepared.validated.spec.time and not statistics.classes
        else None
    )
    if not statistics.classes:
        return Predictions(_values(shown["label"]), _values(shown["prediction"]), None, time)
    values = np.column_stack([_values(shown[n]) for n in probability])
    return Predictions(
        _codes(shown["label"], statistics, path),
        _codes(shown["prediction"], statistics, path),
        values,
        time,
    )


def _values(column: pa.ChunkedArray) -> Floats:
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy()
    return values


def _codes(column: pa.ChunkedArray, statistics: Statistics, path: str) -> Ints:
    """Return the class index [N] of a column of classes, compared by value, else by text."""
    index: dict[Any, int] = {str(c): i for i, c in enumerate(statistics.classes)} | {
        c: i for i, c in enumerate(statistics.classes)
    }
    encoded = column.combine_chunks().dictionary_encode()
    found = [index.get(v, index.get(str(v), -1)) for v in encoded.dictionary.to_pylist()]
    unknown = [v for v, code in zip(encoded.dictionary.to_pylist(), found, strict=True) if code < 0]
    if unknown or encoded.null_count:
        raise DataError(
            f"{path}: expected the {plural(len(statistics.classes), 'class')} of train"
            f" ({first_few(statistics.classes)}), found {first_few(unknown)} and"
            f" {plural(encoded.null_count, 'null')}; evaluate again"
        )
    codes: Ints = np.asarray(found, dtype=np.int64)[encoded.indices.to_numpy()]
    return codes


def _time_of(report: EvaluationReport, prepared: Prepared) -> Floats | None:
    """Return times [N] of the scored rows, matched by id; None if the predictions have no id."""
    ids: FileRef = prepared.arrays.side(report.side).ids
    if "__id" not in pq.read_schema(report.predictions.path).names:
        return None
    scored = pq.read_table(report.predictions.path, columns=["__id"])["__id"].combine_chunks()
    known = pq.read_table(ids.path, columns=["__id", "__time"])
    if scored.equals(known["__id"].combine_chunks()):
        return _values(known["__time"])
    place = pc.index_in(scored, value_set=known["__id"].combine_chunks().cast(scored.type))
    return _values(pa.chunked_array([known["__time"].combine_chunks().take(place)]))
