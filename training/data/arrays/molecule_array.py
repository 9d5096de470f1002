"""Molecules of a batch as one of their arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from schemas.statistics import TensorStats


def encode_molecules(stats: TensorStats, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
    """Return the array of each row's molecule [N, *shape]; see `MoleculeStats`.

    A text that is no molecule counts as null: validation refused it, or it is declared so.
    """
    # its package needs pandas, which a rank does not
    from training.data.serving_expressions.molecules import encode

    return encode(batch.column(stats.column).to_pylist(), stats.rule())[0]
