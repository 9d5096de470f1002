"""Whether a score would rest on rows that belong together: the dependence check, before a split.

N rows, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.table_look import TiedRows
from training.data.dependence.pool import Pool, ranks
from training.data.dependence.search import first_value_tie
from training.data.look.coded_columns import CodedColumn

ROWS, FEW = 20_000, 5_000  # a sample of more rows is looked at in few of them
LEAST_ROWS = 100
MOST_COLUMNS = 40


def find_tied(
    columns: Sequence[CodedColumn], label: CodedColumn | None, code: int | None
) -> TiedRows | None:
    """Return what ties rows that a score rests on, and both scores; None if nothing does.

    Args:
        columns: of the sample.
        label: the column to predict.
        code: of its positive value; None for a number.
    """
    if label is None or (code is None and label.numbers is None):
        return None
    pool = _pool([c for c in columns if c.name != label.name], label, code)
    if pool is None:
        return None
    found = first_value_tie(pool)
    if found is None:
        return None
    return TiedRows(
        columns=found.tie.columns,
        values=found.num_ties,
        rows=found.rows,
        as_split=found.as_split,
        honest=found.honest,
        is_class=pool.is_class,
    )


def _pool(columns: Sequence[CodedColumn], label: CodedColumn, code: int | None) -> Pool | None:
    features = [c for c in columns if c.kind in ("numeric", "categorical", "boolean")]
    features = features[:MOST_COLUMNS]
    is_class, numbers = code is not None, label.numbers
    if is_class or numbers is None:
        numbers = np.where(label.codes >= 0, label.codes == code, np.nan)
    known = np.flatnonzero(np.isfinite(numbers))
    if len(known) > ROWS:
        known = np.sort(np.random.default_rng(0).permutation(known)[:FEW])
    if len(known) < LEAST_ROWS or not features:
        return None
    values = np.stack([_values(c)[known] for c in features], axis=1)
    wanted = numbers[known] if is_class else ranks(numbers[known])
    return Pool(
        tuple(c.name for c in features),
        frozenset(c.name for c in features if c.kind != "numeric"),
        values,
        wanted,
        is_class,
        np.arange(len(known)),
    )


def _values(column: CodedColumn) -> NDArray[np.float64]:
    """Return numbers, or codes of categories [N], NaN for null."""
    if column.kind == "numeric" and column.numbers is not None:
        return np.where(np.isfinite(column.numbers), column.numbers, np.nan)
    return np.where(column.codes >= 0, column.codes, np.nan).astype(np.float64)
