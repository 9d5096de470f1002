"""Columns of a sample as codes: each value has a number, in the order of its first row."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.table_look import LookKind
from training.data.draft.profile import SAMPLE, Profile, date_format
from training.data.engine.engine import ident, literal
from training.data.look.row_sample import RowSample
from training.data.table.sql_types import Family, family, is_whole

TRUTHS = ({"0", "1"}, {"yes", "no"}, {"y", "n"}, {"true", "false"}, {"t", "f"})
MANY, MOSTLY = 1000, 0.5  # a text of more values, in more of its rows, hardly repeats
WORDS = 4  # a text of more words on average is no category
MAY_BE_DATE = re.compile(r"(?=.*\d).{6,32}")
NUMBER = re.compile(r"(?=.*[^\d])[<>$€£+-]*\s*\d[\d,' ]*[.,]?\d*\s*[%$€£]?")
EXAMPLES = 200


@dataclass
class CodedColumn:
    """One column of the sample.

    `codes` has a number for each row, -1 for null: 0 for the first value of the file, 1 for the
    next that differs, and so on. `counts` gives the rows of each code, `values` their values.
    `numbers` are values of rows as doubles, of a time in seconds since 1970; NaN is null.
    """

    name: str
    type: str
    family: Family
    codes: NDArray[np.int32]
    counts: NDArray[np.int64]
    values: pa.Array
    kind: LookKind = "other"
    by_code: NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def present(self) -> int:
        """Rows with a value."""
        return int(self.counts.sum())

    @property
    def nulls(self) -> int:
        """Rows without one."""
        return len(self.codes) - self.present

    @property
    def distinct(self) -> int:
        """Number of different values; null is none."""
        return len(self.counts)

    @property
    def is_unique(self) -> bool:
        """True if every row has a value of its own."""
        return self.distinct == len(self.codes) > 1

    @cached_property
    def texts(self) -> list[str]:
        """The values as text, by code."""
        return [str(value) for value in self.values.to_pylist()]

    @cached_property
    def numbers(self) -> NDArray[np.float64] | None:
        """Values of the rows as doubles; none if the column has no numbers and no times."""
        if self.by_code is None:
            return None
        return np.append(self.by_code, np.nan)[self.codes]  # code -1 is the last one: null

    def pattern(self) -> bytes:
        """Return a digest that is equal for columns of which each value goes with one value of the
        other.
        """
        return hashlib.blake2b(self.codes.tobytes(), digest_size=16).digest()

    def content(self) -> bytes:
        """Return a digest that is equal for columns with equal values in every row."""
        digest = hashlib.blake2b(self.codes.tobytes(), digest_size=16)
        if self.by_code is not None and self.family in ("int", "float"):
            digest.update(b"number" + (self.by_code + 0.0).tobytes())
        else:
            for buffer in self.values.buffers():
                digest.update(b"|" + (buffer.to_pybytes() if buffer else b""))
        return digest.digest()


def code_columns(
    connection: duckdb.DuckDBPyConnection, sample: RowSample
) -> tuple[CodedColumn, ...]:
    """Return the columns of a sample with their kinds, in order.

    No step takes more than one column at a time, so the cost grows with rows times columns.
    """
    columns = tuple(
        _coded(name, kind, sample.table.column(place))
        for place, (name, kind) in enumerate(sample.types.items())
    )
    for column in columns:
        column.kind = _kind(column)
        if column.kind in ("categorical", "text", "id-like"):
            _read_times(connection, column)
    return columns


def _coded(name: str, kind: str, column: pa.ChunkedArray) -> CodedColumn:
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.chunk(0) if chunk.num_chunks else pa.array([], column.type)
    found = chunk.dictionary_encode()
    codes = pc.fill_null(found.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    counts = np.bincount(codes[codes >= 0], minlength=len(found.dictionary)).astype(np.int64)
    group: Family = "int" if is_whole(kind) else family(kind)
    coded = CodedColumn(name, kind, group, codes, counts, found.dictionary)
    coded.by_code = _doubles(found.dictionary, group)
    return coded


def _doubles(values: pa.Array, group: Family) -> NDArray[np.float64] | None:
    if group in ("int", "float"):
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if group in ("date", "instant"):
        stamps = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return np.asarray(stamps.to_numpy(zero_copy_only=False)) / 1e6
    return None


def _kind(column: CodedColumn) -> LookKind:
    if column.family in ("list", "other"):
        return column.family
    if column.distinct < 2:
        return "constant"
    if column.family in ("date", "instant"):
        return "time"
    if column.family == "bool" or (
        column.distinct == 2
        and column.family in ("int", "text")
        and {t.strip().lower() for t in column.texts} in TRUTHS
    ):
        return "boolean"
    if column.family == "int":
        return "id-like" if _counts_rows(column) else "numeric"
    return "numeric" if column.family == "float" else _kind_of_text(column)


def _counts_rows(column: CodedColumn) -> bool:
    """Return True for whole numbers that differ in every row and leave few numbers between out."""
    if not column.is_unique or column.by_code is None:
        return False
    span = float(column.by_code.max() - column.by_code.min()) + 1
    ordered = bool(np.all(np.diff(column.by_code) > 0)) and len(column.codes) >= 20
    return span <= 2 * len(column.codes) or ordered


def _kind_of_text(column: CodedColumn) -> LookKind:
    if column.distinct <= MOSTLY * column.present:
        return "categorical"
    examples = column.values.slice(0, EXAMPLES).to_pylist()
    words = sum(len(str(text).split()) for text in examples) / len(examples)
    if words > WORDS or max(len(str(text)) for text in examples) > 100:
        return "text"
    written = sum(bool(NUMBER.fullmatch(str(text).strip())) for text in examples)
    if 2 * written > len(examples):
        return "text"  # numbers with a currency, a percent sign, a comma or a bound
    if column.is_unique and words <= 2:
        return "id-like"
    return "text" if column.distinct > MANY else "categorical"


def _read_times(connection: duckdb.DuckDBPyConnection, column: CodedColumn) -> None:
    """Make a column of texts a time if every text is a date of one form."""
    if not MAY_BE_DATE.fullmatch(str(column.values[0].as_py())):
        return
    profile = Profile(
        column.name,
        column.type,
        column.family,
        column.present,
        column.distinct,
        column.nulls / len(column.codes),
    )
    if found := date_format(connection, profile):
        form = found[0] if isinstance(found, tuple) else str(found)
        moment = f"epoch(strptime({ident(column.name)}, {literal(form)}))"
        read = connection.sql(f"select {moment} as moment from {SAMPLE}").to_arrow_table()
        numbers: NDArray[np.float64] = np.asarray(
            read.column(0).cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64
        )
        by_code = np.full(column.distinct, math.nan)
        by_code[column.codes[column.codes >= 0]] = numbers[column.codes >= 0]
        column.by_code, column.kind = by_code, "time"


def most_frequent(column: CodedColumn, most: int) -> list[int]:
    """Return codes of the most frequent values, equal ones in the order of their texts."""
    if column.distinct > 10 * most:
        least = np.partition(column.counts, -most)[-most]
        codes: Sequence[Any] = np.flatnonzero(column.counts >= least)[: 50 * most].tolist()
        texts = {int(c): str(column.values[int(c)].as_py()) for c in codes}
    else:
        texts = dict(enumerate(column.texts))
    return sorted(texts, key=lambda c: (-int(column.counts[c]), texts[c]))[:most]
