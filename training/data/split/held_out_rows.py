"""Rows that another run validates or tests on (`data.held_out_by`): left out of all splits.

So weights can be trained on one table, and be tested on another that shares rows with it. N rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from schemas.config import SPLITS, Declaration
from schemas.errors import LeakageError
from schemas.init_records import HeldOut, SeenReport, SeenSplit
from schemas.records import SplitTables, TableRef, TableSpec
from training.data.split.seen_rows import find_alike, have_ids, without_rows
from training.data.split.unseen import trained_keys, unseen_rows

REASON = "held_out_by_another_run"  # of excluded rows


def find_held_out(split: SplitTables, spec: TableSpec, other: HeldOut) -> dict[str, np.ndarray]:
    """Return masks [N] of each split: the other run holds the row out, its group or its scaffold.

    Raises:
        LeakageError: the rows of the two cannot be compared.
        IntegrityError: a table was changed.
    """
    origin = other.origin
    tables: dict[str, Sequence[TableRef]] = dict.fromkeys(map(str, SPLITS), origin.fitted)
    found = find_alike(split, spec, origin, tables, origin.scaffold)
    if found is not None:
        return found.masks
    if not have_ids(spec, origin, origin.id):
        raise LeakageError(
            f"data.held_out_by: the rows of this table cannot be compared with those of"
            f" {origin.words}: its id columns are {list(origin.id or ())}, those of this table"
            f" {list(spec.id)}, and not both have molecules or texts; declare the same id columns"
        )
    keys = trained_keys(origin.fitted)
    by_group = bool(spec.group) and origin.group == spec.group
    return {side: ~unseen_rows(split.side(side), keys, by_group) for side in SPLITS}


def leave_out(
    split: SplitTables,
    spec: TableSpec,
    declaration: Declaration,
    others: Sequence[HeldOut],
    folder: Path,
) -> SeenSplit:
    """Write the splits without rows that other runs hold out.

    Args:
        split: of this run.
        spec: of its table.
        declaration: of this run.
        others: the other runs.
        folder: where the tables are written.

    Returns:
        The splits, with the names of the other runs in their plan, and the rows of each split.

    Raises:
        LeakageError: rows cannot be compared.
        SplitError: no row of a split is left.
    """
    found = [find_held_out(split, spec, other) for other in others]
    masks = {str(s): np.logical_or.reduce([masks[s] for masks in found]) for s in SPLITS}
    kept = without_rows(split, spec, declaration, masks, folder, REASON)
    plan = {**kept.plan, "held_out_by": [other.resolved for other in others]}
    report = SeenReport(asked="exclude", found={s: int(mask.sum()) for s, mask in masks.items()})
    return SeenSplit(split=kept.model_copy(update={"plan": plan}), report=report)
