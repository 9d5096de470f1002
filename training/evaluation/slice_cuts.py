"""Cut the rows of a split into slices: categories, ranges of numbers, missing values, periods.

Cuts never look at labels or predictions. N rows, K slices of a column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas import digest
from schemas.config import Declaration
from schemas.errors import IntegrityError
from schemas.records import TableRef, TableSpec
from schemas.slice_records import Kind
from training.formatting import instant, number, plain, plural

MOST_CATEGORIES = 30  # of a declared column; the others are one slice
MOST_BY_DEFAULT = 15
MOST_COLUMNS = 15  # with categories, or with missing values, that are cut by default
BINS = 4
FEW_VALUES = 10  # a number with so few values has a slice for each
NONE = -1


class Cut(NamedTuple):
    """A column cut into slices: the slice of each row int [N], `NONE` for none, and their names."""

    column: str
    codes: np.ndarray
    names: list[str]
    kinds: list[Kind]
    declared: bool
    is_group: bool = False  # a slice is one group: rows are resampled


class Columns:
    """The columns of a split's table that can be cut, in the order of its arrays."""

    def __init__(self, table: TableRef, spec: TableSpec, ids: pd.Series) -> None:
        self.spec = spec
        self.path = digest.verify(table.file)
        self.names = set(pq.read_schema(self.path).names)
        if not np.array_equal(self.read("__id").to_numpy(zero_copy_only=False), ids.to_numpy()):
            raise IntegrityError(
                f"{self.path}: expected the rows of the arrays in their order; prepare the data"
                " again"
            )

    def read(self, name: str) -> pa.Array:
        """Return one column."""
        found = pq.read_table(self.path, columns=[name])[name]
        return found.combine_chunks()

    def stored_name(self, name: str) -> str | None:
        """Return where the table has a declared column; None if it has not."""
        own = {self.spec.time: "__time"}
        own |= {self.spec.group[0]: "__group"} if len(self.spec.group) == 1 else {}
        if name in own:
            return own[name]
        is_cut = name in self.spec.numeric or name in self.spec.categorical
        return name if is_cut and name in self.names else None


def declared_cuts(declaration: Declaration, columns: Columns) -> tuple[list[Cut], list[str]]:
    """Return the declared cuts, and why a column has none."""
    cuts, notes = [], []
    for wanted in declaration.evaluate.slices or ():
        stored = columns.stored_name(wanted.column)
        if stored is None:
            notes.append(
                f"{plain(wanted.column)} was not cut: the prepared rows hold no such number or"
                " category"
            )
            continue
        cuts.append(_cut(wanted.column, stored, columns, wanted.bins, True))
    return cuts, notes


def default_cuts(_: Declaration, columns: Columns) -> tuple[list[Cut], list[str]]:
    """Return cuts by category, missing values and time, and which columns were left out."""
    spec, notes = columns.spec, []
    features = [n for n in (*spec.categorical, *spec.numeric) if n in columns.names]
    categories = [n for n in features if n in spec.categorical]
    left_out = len(categories) - MOST_COLUMNS
    if left_out > 0:
        notes.append(
            f"{plural(left_out, 'categorical column')} beyond the first {MOST_COLUMNS} were not"
            " cut; name those that matter in evaluate.slices"
        )
    found = [_cut(name, name, columns, None, False) for name in categories[:MOST_COLUMNS]]
    found += list(_missing(columns, [n for n in features if n in spec.numeric]))
    if spec.time is not None:
        found.append(_cut(spec.time, "__time", columns, None, False))
    return [cut for cut in found if len(cut.names) > 1], notes


def _missing(columns: Columns, names: Sequence[str]) -> Iterator[Cut]:
    """Cut the numbers that are most often missing into rows with and without."""
    if not names:
        return
    counts = {}
    with pq.ParquetFile(columns.path) as file:  # without reading a value
        places = {name: i for i, name in enumerate(file.schema_arrow.names)}
        parts = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        for name in names:
            kept = [part.column(places[name]).statistics for part in parts]
            counts[name] = sum(s.null_count if s is not None else 1 for s in kept)
    most = sorted((name for name, count in counts.items() if count), key=lambda n: -counts[n])
    for name in most[:MOST_COLUMNS]:
        null = columns.read(name).is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        yield Cut(name, (~null).astype(np.int64), ["missing", "known"], ["missing"] * 2, False)


def _cut(name: str, stored: str, columns: Columns, bins: int | None, declared: bool) -> Cut:
    """Cut one column; nulls are a slice of their own."""
    values = columns.read(stored)
    is_time = stored == "__time"
    if pa.types.is_floating(values.type):
        timestamps = is_time and columns.spec.time_is_timestamp
        kind: Kind = "time" if is_time else "range"
        codes, names = _ranges(values.to_numpy(zero_copy_only=False), bins, timestamps)
        kinds = [kind] * len(names)
    else:
        codes, names, kinds = _categories(values, MOST_CATEGORIES if declared else MOST_BY_DEFAULT)
    if (codes == NONE).any():
        codes = np.where(codes == NONE, len(names), codes)
        names, kinds = [*names, "missing"], [*kinds, "missing"]
    return Cut(name, codes, names, kinds, declared, stored == "__group")


def _categories(values: pa.Array, most: int) -> tuple[np.ndarray, list[str], list[Kind]]:
    """Return the code of each row, and the most frequent categories; the others share one."""
    coded = pc.dictionary_encode(values)
    codes = coded.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = [plain(value, 60) for value in coded.dictionary.to_pylist()]
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    order = sorted(range(len(texts)), key=lambda i: (-counts[i], texts[i]))
    place = np.empty(len(texts) + 1, dtype=np.int64)
    place[order] = np.arange(len(texts))
    place[-1] = NONE
    kept = min(len(texts), most)
    names = [texts[i] for i in order[:kept]]
    kinds: list[Kind] = ["category"] * kept
    codes = np.minimum(place[codes], kept)
    if len(texts) > kept:
        names.append(f"{plural(len(texts) - kept, 'other value')}")
        kinds.append("others")
    return codes, names, kinds


def _ranges(values: np.ndarray, bins: int | None, timestamps: bool) -> tuple[np.ndarray, list[str]]:
    """Return ranges with about equally many rows; or each value, where they are few."""
    known = values[~np.isnan(values)]
    different = np.unique(known)
    if bins is None and len(different) <= FEW_VALUES:
        edges = different
        names = [instant(v, True) if timestamps else _short(v) for v in different]
    else:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, (bins or BINS) + 1)[:-1]))
        if len(edges) < 2:
            edges = different[:1]
        ends = [*edges[1:], known.max()] if len(known) else []
        shown = [
            (_date(a), _date(b)) if timestamps else (_short(a), _short(b))
            for a, b in zip(edges, ends, strict=True)
        ]
        names = [f"{a} to {b}" for a, b in shown]
        if not timestamps:
            names = [
                f"{n}" if i + 1 == len(names) else f"{a} to below {b}"
                for i, (n, (a, b)) in enumerate(zip(names, shown, strict=True))
            ]
    codes = np.searchsorted(edges, values, side="right") - 1
    return np.where(np.isnan(values), NONE, codes).astype(np.int64), names


def _short(value: float) -> str:
    """Format a value of a column; whole numbers without a point."""
    return f"{int(value)}" if float(value).is_integer() and abs(value) < 1e12 else number(value)


def _date(seconds: float) -> str:
    return re.sub(r" .*", "", instant(float(seconds), True))
