"""Texts and sets of a batch as the array of their codes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from schemas.statistics import BagStats


def encode_bag(bag: BagStats, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Return the codes of each row, int32 [N, length]; see `BagStats`."""
    # its package needs pandas, which a rank does not
    from training.data.serving_expressions.bag_codes import encode

    return encode(batch.column(bag.name).to_pylist(), bag.rule())[0]
