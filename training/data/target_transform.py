"""Logarithm of a regression label (`task.transform`): in SQL for the fit, in arrays for the loss.

Both call the machine's own `log`, so that a label is the same number to the bit on either way. The
inverse is `training.objectives.link.inverse_transform`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import DataError

LOWEST = {"log": "above 0", "log1p": "of at least 0"}  # what each transform takes


def transform_sql(transform: str, column: str) -> str:
    """Return the SQL expression of a transformed column, whose name is quoted already.

    >>> transform_sql("log1p", '"dose"')
    'ln(1 + cast("dose" as double))'
    """
    value = f"cast({column} as double)"
    return f"ln({value})" if transform == "log" else f"ln(1 + {value})"


def outside_sql(transform: str, column: str) -> str:
    """Return the SQL condition of a label that a transform cannot take; its name is quoted."""
    return f"{column} {'<=' if transform == 'log' else '<'} 0"


def transform_labels(transform: str | None, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the transformed labels, float64; without a transform the same values.

    Raises:
        DataError: a label that the transform cannot take.
    """
    if transform is None:
        return values
    outside = pc.less_equal(values, 0.0) if transform == "log" else pc.less(values, 0.0)
    if count := pc.sum(outside).as_py():
        first = values.filter(outside)[0].as_py()
        raise DataError(
            f"task.transform {transform} expects labels {LOWEST[transform]}, got {count} others"
            f" (first: {first:g}); leave those rows out with data.filter"
        )
    return pc.ln(values) if transform == "log" else pc.ln(pc.add(values, 1.0))
