"""Pictures of a batch as the array of their pixels. N rows; [H, W] or [3, H, W] of a picture."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from schemas.records import TableSpec, TensorStats
from training.data.engine.picture_store import PictureStore


def picture_maker(stats: TensorStats, spec: TableSpec) -> Callable[[pa.RecordBatch], np.ndarray]:
    """Return the function from a batch to the pixels uint8 [N, *shape] of a column; null is zeros.

    Args:
        stats: fitted on train.
        spec: of the table; says where its decoded pictures lie.
    """
    store = PictureStore(spec.images[stats.name])
    return lambda batch: store.read(batch.column(stats.name))
