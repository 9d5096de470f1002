"""Texts as places in a dictionary, written to Parquet files as if they were texts: the same bytes, and no text is made, looked at or hashed on the way."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_BYTES = 2**19  # of a dictionary; texts with one of 2^20 are no longer written as a dictionary


def with_dictionaries(schema: pa.Schema, table: pa.Table) -> pa.Schema:
    """The schema, but that columns of texts which the table has as places in a small dictionary keep it."""
    kinds = {f.name: f.type for f in table.schema if pa.types.is_dictionary(f.type) and pa.types.is_string(schema.field(f.name).type)}
    small = {name for name in kinds if all(chunk.dictionary.nbytes <= MOST_BYTES for chunk in table[name].chunks)}
    return pa.schema([f.with_type(kinds[f.name]) if f.name in small else f for f in schema], schema.metadata)


def metadata_of(schema: pa.Schema) -> dict[str, str]:
    """What pyarrow writes into a file of a schema: its metadata and its types."""
    own = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    return {**own, "ARROW:schema": base64.b64encode(schema.serialize().to_pybytes()).decode()}


def as_if_encoded(table: pa.Table) -> pa.Table:
    """The rows of a row group, of one chunk a column, with the dictionaries that an encoder of their texts would make."""
    return pa.table([by_first_place(c.chunk(0)) if pa.types.is_dictionary(c.type) else c for c in table.columns], schema=table.schema)


def by_first_place(values: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values, with the dictionary of those that occur, in the order in which they do.

    >>> by_first_place(pa.array(["c", "a", None, "c"]).dictionary_encode().take(pa.array([2, 1, 0]))).dictionary.to_pylist()
    ['a', 'c']
    """
    size, count = len(values.dictionary), len(values)
    places = np.asarray(pc.fill_null(values.indices, size))
    first = np.full(size + 1, count)
    first[places[::-1]] = np.arange(count - 1, -1, -1)  # of several assignments the last one holds
    first[size] = count
    order = np.argsort(first[:size], kind="stable")[: int((first[:size] < count).sum())]
    new = np.zeros(size + 1, np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    known = values.is_valid() if values.null_count else None
    indices = pa.array(new[places], mask=None if known is None else ~known.to_numpy(zero_copy_only=False))
    return pa.DictionaryArray.from_arrays(indices, values.dictionary.take(pa.array(order)))
