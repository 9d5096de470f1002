"""Texts and sets of a batch as the array of their codes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from schemas.statistics import BagStats
from training.data.serving_expressions.bag_codes import encode


def encode_bag(bag: BagStats, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Return the codes of each row, int32 [N, length]; see `BagStats`."""
    return encode(batch.column(bag.name).to_pylist(), bag.rule())[0]
