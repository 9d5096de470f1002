"""Inputs of yardsticks: all columns of the arrays as a DataFrame. N rows, D columns."""

from __future__ import annotations

import re

import pandas as pd

from schemas.records import Statistics
from training.boosting.tree_inputs import (
    ALL,
    Arrays,
    dense_columns,
    frequent_pieces,
    tensor_values,
)
from training.models.shape import FIRST_VALUE


def feature_frame(statistics: Statistics, arrays: Arrays, rows: slice = ALL) -> pd.DataFrame:
    """Return the values of `tree_inputs.matrix` with names and category types [N, D].

    Numeric columns are float32, scaled and without nulls; `NAME_null` is the indicator of NAME, and
    `NAME_0`, `NAME_1` are values of a tensor. Categorical columns are pandas categories of integer
    codes: 0 is unknown, 1 is null, then the values of train. A frame of any split has the same
    categories. Characters in names that some libraries refuse become `_`.
    """
    names = column_names(statistics)
    dense = dense_columns(statistics, arrays, rows)
    width = dense.shape[1]
    frame = pd.DataFrame(dense, columns=names[:width])
    if not statistics.categorical:
        return frame
    codes = arrays["categorical"][rows]
    categories = {
        name: pd.Categorical.from_codes(codes[:, i], range(len(column.values) + FIRST_VALUE))
        for i, (name, column) in enumerate(zip(names[width:], statistics.categorical, strict=True))
    }
    return pd.concat([frame, pd.DataFrame(categories)], axis=1)


def column_names(statistics: Statistics) -> list[str]:
    """Return the D different names of the columns of `feature_frame`."""
    wanted = [
        *(s.name for s in statistics.numeric),
        *(f"{s.name}_null" for s in statistics.numeric if s.indicator),
        *(f"{t.name}_{value}" for t in statistics.tensor for value in tensor_values(t)),
        *(f"{b.name}_{piece}" for b in statistics.bags for piece in frequent_pieces(b)),
        *(c.name for c in statistics.categorical),
    ]
    found: dict[str, None] = {}
    for number, name in enumerate(re.sub(r"\W", "_", name) for name in wanted):
        found[name if name not in found else f"{name}_{number}"] = None
    return list(found)
