"""Ids, groups and labels as given of a split's rows, in the order of its arrays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from schemas import digest
from schemas.errors import IntegrityError
from schemas.records import SplitArrays, Statistics


def label_names(statistics: Statistics) -> list[str]:
    """Return the true label's columns in ids and predictions: `label`, or `label_<name>` of
    several.
    """
    return [f"label_{label.name}" for label in statistics.labels] or ["label"]


def read_ids(arrays: SplitArrays, statistics: Statistics) -> pd.DataFrame:
    """Return `__id`, `__group` and labels (as given) of a split's rows, in the order of its arrays.

    Raises:
        IntegrityError: the file was changed, or has other rows than recorded.
    """
    return _read(arrays, ["__id", "__group", *label_names(statistics)])


def read_groups(arrays: SplitArrays) -> np.ndarray:
    """Return the group of each row [N], null for a row without one, in the order of its arrays.

    Raises:
        IntegrityError: the file was changed, or has other rows than recorded.
    """
    return np.asarray(_read(arrays, ["__group"])["__group"].to_numpy(dtype=object))


def _read(arrays: SplitArrays, columns: list[str]) -> pd.DataFrame:
    table = pq.read_table(digest.verify(arrays.ids), columns=columns)
    if table.num_rows != arrays.rows:
        raise IntegrityError(
            f"{arrays.ids.path}: expected {arrays.rows} rows, found {table.num_rows}; prepare the"
            " data again"
        )
    return table.to_pandas(types_mapper=pd.ArrowDtype)
