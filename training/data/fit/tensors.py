"""Tensor columns: fixed-size Parquet lists as arrays, and their per-channel moments, streamed.

N rows; shape (H, W) or (D,) has one channel, shape (C, H, W) has C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import DataError
from schemas.references import PictureSpec
from training.data.engine.batches import arrow_batches
from training.data.engine.picture_store import PictureStore

BATCH_BYTES = 8_000_000
# float values become integers of 40 bits before the addition, so that sums do not depend on order
BITS = 40


def tensor_array(column: pa.Array, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an Arrow column of lists as an array [N, *shape].

    Raises:
        DataError: a null row or element, or a row with another number of elements.
    """
    size = math.prod(shape)
    if column.null_count:
        raise DataError(
            f"tensor column {name!r}: expected a value in every row, got {column.null_count} nulls;"
            " filter those rows"
        )
    lengths = np.asarray(pc.list_value_length(column))
    if (lengths != size).any():
        raise DataError(
            f"tensor column {name!r}: expected {size} elements {list(shape)} in every row,"
            f" {int((lengths != size).sum())} rows have others (first:"
            f" {lengths[lengths != size][0]})"
        )
    flat = column.flatten()
    if flat.null_count:
        raise DataError(
            f"tensor column {name!r}: expected no null elements, got {flat.null_count}; filter"
            " those rows"
        )
    return (
        np.asarray(flat.to_numpy(zero_copy_only=False))
        .astype(dtype, copy=False)
        .reshape(len(column), *shape)
    )


def rows_per_batch(shape: tuple[int, ...], dtype: str) -> int:
    """Return the number of rows of one read so that a batch stays near 8 MB."""
    return max(1, min(65_536, BATCH_BYTES // max(1, math.prod(shape) * np.dtype(dtype).itemsize)))


def channel_moments(
    path: Path, name: str, shape: tuple[int, ...], dtype: str
) -> tuple[list[float], list[float], bool]:
    """Return per-channel mean and population standard deviation, independent of row order.

    A channel without spread gets a standard deviation of 1.

    Returns:
        Means, standard deviations (one per channel), and whether the whole column is one constant
        value.

    Raises:
        DataError: nulls, wrong sizes, NaN or infinite elements.
    """
    return moments_of(lambda: _blocks(path, name, shape, dtype), name)


def picture_moments(
    path: Path, name: str, spec: PictureSpec
) -> tuple[list[float], list[float], bool, int, int]:
    """Return the figures of `channel_moments` of a column of pictures, without those that are null.

    Returns:
        Means, standard deviations, whether all values are one, the pictures, and the nulls.
    """
    store, count, nulls = PictureStore(spec), 0, 0
    size = max(1, min(rows_per_batch(spec.shape, "uint8"), 2**21 // math.prod(spec.shape)))
    for batch in arrow_batches(path, 65_536, [name]):
        nulls += batch.column(0).null_count
        count += len(batch)

    def blocks() -> Iterator[np.ndarray]:
        for batch in arrow_batches(path, size, [name]):
            if len(present := batch.column(0).drop_null()):
                channels = spec.shape[0] if len(spec.shape) == 3 else 1
                pixels = store.read(present).astype(np.float64)
                yield pixels.reshape(len(pixels), channels, -1)

    if count == nulls:
        channels = spec.shape[0] if len(spec.shape) == 3 else 1
        return [0.0] * channels, [1.0] * channels, True, 0, nulls
    return *moments_of(blocks, name), count - nulls, nulls


def moments_of(
    blocks: Callable[[], Iterator[np.ndarray]], name: str
) -> tuple[list[float], list[float], bool]:
    """Return the figures of `channel_moments` of blocks float64 [rows, channels, elements].

    Args:
        blocks: is called three times, for the same blocks.
        name: of the column, for messages.

    Returns:
        Means, standard deviations (one per channel), and whether the whole column is one constant
        value.

    Raises:
        DataError: nulls, wrong sizes, NaN or infinite elements.
    """
    extreme = 0.0
    low, high = math.inf, -math.inf
    for block in blocks():
        low, high = min(low, float(block.min())), max(high, float(block.max()))
        extreme = max(abs(low), abs(high))
        if not math.isfinite(extreme) or np.isnan(block).any():
            raise DataError(
                f"tensor column {name!r}: expected finite elements, got NaN or infinite ones;"
                " filter those rows"
            )
    unit = _unit(extreme)
    means = np.array(
        [float(m * Fraction(unit)) for m in _exact_means(block / unit for block in blocks())]
    )
    squares = _exact_means(((block - means[None, :, None]) / (2 * unit)) ** 2 for block in blocks())
    stds = [math.sqrt(m) * 2 * unit for m in squares]
    return means.tolist(), [s if s > 1e-7 * extreme else 1.0 for s in stds], low == high


def _exact_means(blocks: Iterable[np.ndarray]) -> list[Fraction]:
    """Return per-channel means of values within [-1, 1].

    Each value is rounded to 40 bits and added as an integer.
    """
    totals = np.zeros(1, dtype=object)
    count = 0
    for block in blocks:
        totals = totals + np.rint(block * 2.0**BITS).astype(np.int64).sum(axis=(0, 2)).astype(
            object
        )
        count += block.shape[0] * block.shape[2]
    return [Fraction(int(total), count << BITS) for total in totals]


def _blocks(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> Iterator[np.ndarray]:
    """Yield the column as float64 blocks [rows, channels, elements of a channel].

    A block has at most 2^21 elements.
    """
    channels = shape[0] if len(shape) == 3 else 1
    for batch in arrow_batches(
        path, max(1, min(rows_per_batch(shape, dtype), 2**21 // math.prod(shape))), [name]
    ):
        yield (
            tensor_array(batch.column(0), name, shape, dtype)
            .astype(np.float64)
            .reshape(len(batch), channels, -1)
        )


def _unit(magnitude: float) -> float:
    """Return the power of two just above a magnitude; 1 for zero."""
    return math.ldexp(1.0, math.frexp(magnitude)[1]) if magnitude else 1.0
