"""Look closer at scored test rows: slices, and what the score rests on. Same rows, same look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from torch import nn

from schemas.config import Declaration
from schemas.records import RunSpec, TableRef
from schemas.slice_records import Slices
from training.evaluation.importance import find_reasons, with_question
from training.evaluation.slice_cuts import Columns, declared_cuts, default_cuts
from training.evaluation.slice_scores import Rows, score_slices


def look_closer(
    run: RunSpec,
    network: nn.Module,
    rows: Rows,
    ids: pd.DataFrame,
    table: TableRef | None,
    compared: Mapping[str, Any],
) -> dict[str, Any]:
    """Return fields of the report on test rows: slices, reasons, and the verdict with its question.

    Args:
        run: the trained run.
        network: of `reference_network`.
        rows: the scored test rows.
        ids: of the same rows, with `__id`.
        table: the table that the arrays were made from; None where it is not at hand.
        compared: fields of the report so far, with baselines and verdict; empty for other rows.
    """
    if not compared or run.statistics.tokens:
        return dict(compared)
    constant = compared["baselines"].get("constant", {}).get(rows.declaration.metric)
    fields = dict(compared) | {"slices": _slices(rows.declaration, run, rows, ids, table)}
    if not rows.declaration.evaluate.importance:
        return fields
    reasons = find_reasons(run, network, rows, constant)
    return with_question(fields, reasons) | {"reasons": reasons}


def _slices(
    declaration: Declaration, run: RunSpec, rows: Rows, ids: pd.DataFrame, table: TableRef | None
) -> Slices | None:
    declared = declaration.evaluate.slices
    if table is None or declared == ():
        return None
    columns = Columns(table, run.spec, ids["__id"])
    cuts, notes = (declared_cuts if declared else default_cuts)(declaration, columns)
    return score_slices(rows, cuts, notes)
