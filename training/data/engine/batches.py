"""Arrow batches of a Parquet file in file order, with memory bounded by one row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def arrow_batches(
    path: Path, max_rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield every row once, in file order, in batches of at most `max_rows`.

    It reads row group by row group: one iterator over the whole file keeps every group it has
    passed (pyarrow 25).

    Args:
        path: the Parquet file.
        max_rows: largest batch; a batch never spans two row groups.
        columns: columns to read, all by default; batches hold them in the file's order.
    """
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield from file.iter_batches(
                batch_size=max_rows,
                row_groups=[group],
                columns=None if columns is None else list(columns),
            )
