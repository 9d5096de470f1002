"""Tensors, pictures and molecules of a batch as arrays. N rows; *shape of one row's array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from schemas.records import TableSpec, TensorStats
from training.data.engine.picture_store import PictureStore
from training.data.fit.tensors import tensor_array

Maker = Callable[[pa.RecordBatch], np.ndarray]


def tensor_maker(stats: TensorStats, spec: TableSpec) -> Maker:
    """Return the function from a batch to the array [N, *shape] of a column.

    Of a column of pictures it is their pixels, with zeros for null; of molecules one of their
    arrays.

    Args:
        stats: fitted on train.
        spec: of the table; says where its decoded pictures lie.
    """
    if stats.molecule is not None:
        return _of_molecules(stats)
    if stats.picture is None:
        return lambda b: tensor_array(b.column(stats.name), stats.name, stats.shape, stats.dtype)
    store = PictureStore(spec.images[stats.name])
    return lambda batch: store.read(batch.column(stats.name))


def _of_molecules(stats: TensorStats) -> Maker:
    """Return the maker of an array of molecules.

    A text that is no molecule counts as null: validation refused it, or it is declared so.
    """
    rule = stats.rule()

    def encoded(batch: pa.RecordBatch) -> np.ndarray:
        # its package needs pandas, which a rank does not
        from training.data.serving_expressions.molecules import encode

        return encode(batch.column(stats.column).to_pylist(), rule)[0]

    return encoded
