"""Inputs of trees: all columns of the materialised arrays in one matrix. N rows, D columns."""

from __future__ import annotations

import math

import numpy as np
import torch

from schemas.records import Statistics
from schemas.statistics import BagStats, TensorStats
from training.models.bag_vectors import num_columns as num_columns_of_bag
from training.models.encoders import summary, summary_width
from training.models.series_encoders import summary_columns
from training.models.shape import FIRST_VALUE

Arrays = dict[str, np.ndarray]
ALL = slice(None)


def dense_columns(
    statistics: Statistics, arrays: Arrays, rows: slice = ALL, scaled: bool = True
) -> np.ndarray:
    """Return numeric columns, flattened tensors and frequent pieces of bags, float32 [N, D].

    Of a tensor with an encoder: its summary.

    Args:
        statistics: fitted on train.
        arrays: of one split.
        rows: rows to take.
        scaled: scale tensors by their train statistics; False leaves them as stored.
    """
    count = len(arrays["label"][rows])
    parts = [arrays["numeric"][rows]] if "numeric" in arrays else []
    for stats in statistics.tensor:
        values = np.asarray(arrays[stats.key][rows])
        if scaled:
            # mean and sd by channel, or one of each, against [N, *shape]
            mean, std = (
                np.reshape(np.asarray(v, dtype=np.float32), (-1, *[1] * (len(stats.shape) - 1)))
                for v in (stats.mean, [s or 1.0 for s in stats.std])
            )
            values = (values - mean) / std
        if stats.encoder is not None:
            values = summary(stats.encoder, torch.from_numpy(np.ascontiguousarray(values))).numpy()
        parts.append(values.reshape(count, -1))
    parts += [_present(arrays[bag.key][rows], bag.num_codes) for bag in statistics.bags]
    return (
        np.concatenate(parts, axis=1, dtype=np.float32)
        if parts
        else np.zeros((count, 0), np.float32)
    )


def _present(codes: np.ndarray, num_codes: int) -> np.ndarray:
    """Return which frequent pieces rows have, as `training.models.bag_vectors.Present` does."""
    width = num_columns_of_bag(num_codes)
    found = np.zeros((len(codes), width + 1), dtype=np.float32)
    np.put_along_axis(found, np.where(codes <= width, codes, 0).astype(np.int64), 1.0, axis=1)
    return found[:, 1:]


def frequent_pieces(bag: BagStats) -> list[str]:
    """Return what each column of a bag says: null, then the frequent pieces."""
    return ["null", *bag.values][: num_columns_of_bag(bag.num_codes)]


def matrix(
    statistics: Statistics, arrays: Arrays, rows: slice = ALL, scaled: bool = True
) -> np.ndarray:
    """Join all inputs, float32 [N, D]: `dense_columns`, then category codes."""
    dense = dense_columns(statistics, arrays, rows, scaled)
    return (
        np.concatenate([dense, arrays["categorical"][rows]], axis=1, dtype=np.float32)
        if statistics.categorical
        else dense
    )


def num_columns(statistics: Statistics) -> int:
    """Return the number of columns of `matrix`."""
    return (
        statistics.num_numeric
        + sum(tensor_columns(t) for t in statistics.tensor)
        + sum(num_columns_of_bag(b.num_codes) for b in statistics.bags)
        + len(statistics.categorical)
    )


def tensor_columns(stats: TensorStats) -> int:
    """Return the number of columns of a tensor: of its summary, if it has an encoder."""
    if stats.encoder is not None:
        return summary_width(stats.encoder, stats.shape)
    return math.prod(stats.shape)


def tensor_values(stats: TensorStats) -> list[str]:
    """Return what each of these columns says: statistics of a window, else a number."""
    if stats.window:
        return summary_columns(stats.window, stats.shape[1])
    return [str(number) for number in range(tensor_columns(stats))]


def category_columns(statistics: Statistics) -> list[int]:
    """Return the columns of `matrix` that contain category codes."""
    width = num_columns(statistics)
    return list(range(width - len(statistics.categorical), width))


def native_columns(statistics: Statistics, max_bins: int) -> list[int]:
    """Return the columns of codes that trees split into sets of values.

    scikit-learn accepts as many categories as bins; columns with more are numbers in code order.
    """
    return [
        i
        for i, c in zip(category_columns(statistics), statistics.categorical, strict=True)
        if len(c.values) + FIRST_VALUE <= max_bins
    ]
