"""New training data: rows of each split that it did not have in an earlier run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from schemas.config import SPLITS, SplitName
from schemas.new_rows import NewRows
from schemas.records import SplitTables, TableRef
from training.data.engine.engine import connect, parquet, row


def find_new_rows(now: SplitTables, before: SplitTables, since: str) -> NewRows | None:
    """Count the rows of each split whose `__id` the same split did not have before.

    Args:
        now: Today's splits.
        before: Those of an earlier run.
        since: That run, in words.

    Returns:
        None if a file of the earlier run is gone.
    """
    counts: dict[SplitName, int] = {}
    for side in SPLITS:
        ours, theirs = now.side(side), before.side(side)
        if ours.file.sha256 != theirs.file.sha256 and not Path(theirs.file.path).is_file():
            return None
        counts[side] = 0 if ours.file.sha256 == theirs.file.sha256 else _missing(ours, theirs)
    cuts = now.plan.get("cuts_text") or {}
    frozen = str(now.plan.get("cuts_from", "")).startswith("shares")
    return NewRows(
        since=since,
        **counts,
        cut=str(cuts["val"]) if "val" in cuts else None,
        is_frozen=frozen,
        moves_on="newest" in now.plan,
    )


def _missing(ours: TableRef, theirs: TableRef) -> int:
    with closing(connect()) as connection:
        return int(
            row(
                connection,
                f"select count(*) from {parquet(ours)} a anti join {parquet(theirs)} b on a.__id ="
                " b.__id",
            )[0]
        )
