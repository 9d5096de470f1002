"""Tensors of a batch: lists as they are, molecules as one of their arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from schemas.statistics import TensorStats
from training.data.fit.tensors import tensor_array


def tensor_maker(stats: TensorStats) -> Callable[[pa.RecordBatch], np.ndarray]:
    """Return the function from a batch of rows to their array [N, *shape].

    A text that is no molecule counts as null: validation refused it, or it is declared so.
    """
    if stats.molecule is not None:
        rule = stats.rule()

        def encoded(batch: pa.RecordBatch) -> np.ndarray:
            # its package needs pandas, which a rank does not
            from training.data.serving_expressions.molecules import encode

            return encode(batch.column(stats.column).to_pylist(), rule)[0]

        return encoded
    name, shape, dtype = stats.name, stats.shape, stats.dtype
    return lambda batch: tensor_array(batch.column(name), name, shape, dtype)
