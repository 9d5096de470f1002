"""Folds for the members of an ensemble: which rows of train and validation each one trains on.

They are the folds of cross-validation (folds.py), whose test block is the member's validation
here. Nothing is frozen in a ledger: the folds are a function of the rows of this run alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from schemas.config import Declaration
from schemas.errors import SplitError
from schemas.records import SplitTables, ValidatedTable
from training.data.split.folds import decided_sides
from training.data.split.split import SIDES


class FoldIds(NamedTuple):
    """Ids (`__id`, text) of the rows that a member trains on, and of its own fold."""

    train: pa.Array
    val: pa.Array


def member_fold(
    validated: ValidatedTable, pool: SplitTables, declaration: Declaration, number: int
) -> FoldIds:
    """Divide the rows of train and validation for one member; test rows are in neither part.

    Groups stay whole. Rows that folds in time leave out (purged, embargo) are in neither part.

    Args:
        validated: the table that was split.
        pool: its declared sides.
        declaration: its section `cv` as `schemas.members.folded` gives it.
        number: of the member, from 1.

    Raises:
        SplitError: too few groups, rows or times for so many members.
    """
    with tempfile.TemporaryDirectory(prefix="bulkhead-folds-") as scratch:
        ledger = Path(scratch) / "ledger.jsonl"
        try:
            with decided_sides(validated, pool, declaration, number - 1, ledger) as decided:
                found = decided[0].sql(f"select __id, side from {SIDES} order by __id")
                table = found.to_arrow_table()
        except SplitError as error:
            raise SplitError(
                f"ensemble.over: folds: {error} (cv.folds is ensemble.members here)"
            ) from error
    ids, side = table["__id"].combine_chunks(), table["side"].to_numpy(zero_copy_only=False)
    # of a fold of cross-validation, train and val together surround its test block
    return FoldIds(
        ids.filter(pa.array((side == "train") | (side == "val"))),
        ids.filter(pa.array(side == "test")),
    )
