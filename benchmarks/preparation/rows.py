"""Generated table that every tool prepares: the same bytes for the same number of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BLOCK_ROWS = 1_000_000
ROW_GROUP_ROWS = 250_000
# numeric columns: doubles, integers, doubles with nulls
MEASURES, COUNTS, WITH_NULLS = (14, 3, 3)
LEVELS = (3, 10, 50, 300, 2000)  # of the categorical columns
ROWS_A_GROUP = 5
DAYS = 730
START = 1_700_000_000


def numeric_names(measures: int = MEASURES) -> list[str]:
    """Return the names of the numeric columns."""
    return (
        [f"x{i}" for i in range(measures)]
        + [f"n{i}" for i in range(COUNTS)]
        + [f"m{i}" for i in range(WITH_NULLS)]
    )


def write_rows(
    path: Path, rows: int, measures: int = MEASURES, levels: tuple[int, ...] = LEVELS
) -> Path:
    """Write a Parquet file of `rows` rows: id, group (five rows each), time, binary label, numeric
    and categorical columns.

    Args:
        path: the file; an existing one is replaced.
        rows: number of rows.
        measures: number of columns of doubles without nulls.
        levels: number of values of each categorical column.
    """
    with pq.ParquetWriter(
        path, _block(0, 1, measures, levels, rows).schema, compression="zstd", compression_level=1
    ) as writer:
        for number, start in enumerate(range(0, rows, BLOCK_ROWS)):
            writer.write_table(
                _block(number, min(BLOCK_ROWS, rows - start), measures, levels, rows),
                row_group_size=ROW_GROUP_ROWS,
            )
    return path


def _block(number: int, size: int, measures: int, levels: tuple[int, ...], rows: int) -> pa.Table:
    """Return `BLOCK_ROWS` rows from row `number * BLOCK_ROWS`."""
    rng = np.random.default_rng([rows, number])
    numeric = rng.normal(size=(measures + WITH_NULLS, size))
    codes = [
        np.minimum(rng.exponential(level / 4, size), level - 1).astype(np.int32) for level in levels
    ]
    signal = numeric[:4].sum(axis=0) + 0.5 * (codes[-1] % 3) + 2 * rng.normal(size=size)
    groups = rng.integers(0, max(1, rows // ROWS_A_GROUP), size)
    columns: dict[str, pa.Array] = {
        "row_id": pa.array(np.arange(number * BLOCK_ROWS, number * BLOCK_ROWS + size)),
        "patient": pa.array(groups),
        "seen_at": pa.array((START + rng.integers(0, DAYS * 86_400, size)).astype("datetime64[s]")),
        "outcome": pa.array((signal > 1.0).astype(np.int64)),
    }
    columns |= {f"x{i}": pa.array(numeric[i] * (i + 1) + i) for i in range(measures)}
    columns |= {f"n{i}": pa.array(rng.poisson(5 * (i + 1), size)) for i in range(COUNTS)}
    columns |= {
        f"m{i}": pa.array(numeric[measures + i], mask=rng.random(size) < 0.1)
        for i in range(WITH_NULLS)
    }
    for i, (code, level) in enumerate(zip(codes, levels, strict=True)):
        columns[f"c{i}"] = pa.DictionaryArray.from_arrays(
            pa.array(code), pa.array([f"level-{v}" for v in range(level)])
        ).cast(pa.string())
    return pa.table(columns)
