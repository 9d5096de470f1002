"""Tensors and pictures of a batch as arrays. N rows; *shape of a tensor or picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from schemas.records import TableSpec, TensorStats
from training.data.engine.picture_store import PictureStore
from training.data.fit.tensors import tensor_array


def tensor_maker(stats: TensorStats, spec: TableSpec) -> Callable[[pa.RecordBatch], np.ndarray]:
    """Return the function from a batch to the array [N, *shape] of a column.

    Of a column of pictures it is their pixels, with zeros for null.

    Args:
        stats: fitted on train.
        spec: of the table; says where its decoded pictures lie.
    """
    if stats.picture is None:
        return lambda b: tensor_array(b.column(stats.name), stats.name, stats.shape, stats.dtype)
    store = PictureStore(spec.images[stats.name])
    return lambda batch: store.read(batch.column(stats.name))
