"""The first rows of a side: as it lies in the order of a hash, a random sample of it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.records import TableRef, TableSpec


def first_rows(table: TableRef, rows: int) -> pa.Table:
    """At most so many rows from the beginning of a side, with the metadata of its file."""
    with pq.ParquetFile(table.file.file) as file:
        return pa.Table.from_batches(
            [next(file.iter_batches(batch_size=rows))]
        ).replace_schema_metadata(file.schema_arrow.metadata)


def of_known_classes(table: pa.Table, train: pa.Table, spec: TableSpec) -> pa.Table:
    """Held-out rows with a class of train's sample wherever theirs is not in it; values of a
    regression are not classes.
    """
    for name in spec.label_columns if spec.text is None else ():
        field, known = table.schema.field(name), train[name].combine_chunks().drop_null()
        if len(known) and not pa.types.is_floating(field.type):
            is_known = pc.or_(pc.is_null(table[name]), pc.is_in(table[name], known))
            table = table.set_column(
                table.column_names.index(name), field, pc.if_else(is_known, table[name], known[0])
            )
    return table
