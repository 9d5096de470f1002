"""First rows of a split, which are a random sample because rows lie in the order of a hash."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.records import TableRef, TableSpec


def first_rows(table: TableRef, rows: int) -> pa.Table:
    """Return up to `rows` rows from the beginning of a split, with the metadata of its file."""
    with pq.ParquetFile(table.file.file) as file:
        return pa.Table.from_batches(
            [next(file.iter_batches(batch_size=rows))]
        ).replace_schema_metadata(file.schema_arrow.metadata)


def of_known_classes(table: pa.Table, train: pa.Table, spec: TableSpec) -> pa.Table:
    """Return held-out rows; a class that train's sample lacks becomes one that it has.

    Values of a regression are not classes.
    """
    for name in spec.label_columns if spec.text is None else ():
        field, known = table.schema.field(name), train[name].combine_chunks().drop_null()
        if len(known) and not pa.types.is_floating(field.type):
            is_known = pc.or_(pc.is_null(table[name]), pc.is_in(table[name], known))
            table = table.set_column(
                table.column_names.index(name), field, pc.if_else(is_known, table[name], known[0])
            )
    return table
