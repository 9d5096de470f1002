"""Columns of Parquet files that the typed table holds as they are: read without the engine.

Numbers and texts of few values need no expression. Arrow decodes them straight into the memory in
which they are sorted, at a third of the engine's cost; the engine reads the other columns, and one
of these as a witness that both see the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.records import SourceRef
from training.data.engine.sorted_rows import Column, Numbers, Texts, few_texts
from training.data.engine.threads import at_once, num_threads

# several columns at a time would take new memory for every batch
BATCH_ROWS, BLOCKS_A_THREAD = 32_768, 8
WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
NUMBERS = (*WHOLE, pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64())
TEXTS = (pa.string(), pa.large_string())


class _Files(NamedTuple):
    """Files of a source in their order, with their footers."""

    footers: dict[str, pq.FileMetaData]
    schema: pa.Schema

    def batches(self, names: Sequence[str], coded: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of some columns in order; texts of `coded` come as dictionaries."""
        for path, footer in self.footers.items():
            # reading ahead would take new memory for every row group
            with pq.ParquetFile(
                path, metadata=footer, read_dictionary=list(coded), pre_buffer=False
            ) as file:
                for group in range(file.num_row_groups):
                    yield from file.iter_batches(
                        BATCH_ROWS, row_groups=[group], columns=list(names), use_threads=False
                    )


def plain_columns(
    source: SourceRef, numbers: Sequence[str], texts: Sequence[str], num_rows: int
) -> dict[str, Column]:
    """Return columns that need no expression, with all rows of the source in its order.

    A column that is stored in another way is left to the engine. So are all columns if a file
    cannot be read here: the engine names the cause.

    Args:
        source: from `fingerprint`.
        numbers: columns that the typed table holds as float64; NaN becomes null, -0.0 becomes 0.0.
        texts: columns that it holds as text, to be kept as dictionaries.
        num_rows: of the source.
    """
    try:
        files = _opened(source)
        if files is None or sum(f.num_rows for f in files.footers.values()) != num_rows:
            return {}
        kinds = {field.name: field.type for field in files.schema}
        chosen: dict[str, Column] = {
            name: Numbers(num_rows, pa.float64()) for name in numbers if kinds.get(name) in NUMBERS
        }
        chosen |= {name: Texts(pa.string(), num_rows) for name in _few(files, texts, kinds)}
        size = max(2, len(chosen) // (BLOCKS_A_THREAD * num_threads()))
        names = list(chosen)
        blocks = [names[start : start + size] for start in range(0, len(names), size)]
        at_once(lambda block: _read(files, {name: chosen[name] for name in block}), blocks)
    except (pa.ArrowException, OSError):
        return {}
    return chosen


def _opened(source: SourceRef) -> _Files | None:
    """Return the files, unless folders give columns or the files store a column in several ways."""
    if source.format != "parquet" or source.partitions:
        return None
    schema, footers = None, {}
    for ref in source.files:
        with pq.ParquetFile(ref.path) as file:
            footers[ref.path], own = file.metadata, file.schema_arrow.remove_metadata()
        if schema is not None and not schema.equals(own):
            return None
        schema = own
    # a name with a dot is also a path into a nested column; the engine takes a and A for one name
    if schema is None or len({name.lower() for name in schema.names}) < len(schema.names):
        return None
    return _Files(footers, pa.schema([f for f in schema if "." not in f.name]))


def _few(files: _Files, names: Sequence[str], kinds: Mapping[str, pa.DataType]) -> list[str]:
    """Return the columns of texts whose first rows have few different values."""
    stored = [name for name in names if kinds.get(name) in TEXTS]
    first = next(files.batches(stored, stored), None) if stored else None
    return [n for n in stored if first is not None and few_texts(first.column(n))]


def _read(files: _Files, columns: Mapping[str, Column]) -> None:
    """Fill the columns."""
    coded = [name for name, column in columns.items() if isinstance(column, Texts)]
    for batch in files.batches(list(columns), coded):
        for name, column in columns.items():
            values = batch.column(name)
            if isinstance(column, Numbers):
                column.add_plain(values)
            else:
                column.add(_checked(values))


def _checked(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the texts after a check that they are UTF-8, which the engine requires."""
    texts = values.dictionary.cast(pa.string())
    texts.validate(full=True)
    return pa.DictionaryArray.from_arrays(values.indices, texts)
