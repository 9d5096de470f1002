"""Ledgers of this home: where splits are frozen, and each scoring of held-out rows is a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from schemas.config import Declaration
from schemas.home import home
from schemas.look_records import Look, Looks
from schemas.records import SplitArrays, TableRef, digest_of
from training.data.split.unseen import evaluated_keys
from training.run.look_ledger import FILE, Scope, record_look, row_set


def ledger_path(declaration: Declaration) -> Path:
    """Return the ledger of frozen split decisions of this model; it separates kinds of splits
    itself.
    """
    return home() / "ledgers" / declaration.name


def looks_path() -> Path:
    """Return the ledger of looks, next to those of the splits."""
    return home() / "ledgers" / FILE


def deciding_metrics(declaration: Declaration) -> tuple[str, ...]:
    """Return the metrics that choose a model: the declared one, and that of the gate."""
    both = (declaration.metric, declaration.register_.metric or declaration.metric)
    return tuple(dict.fromkeys(both))


def count_looks(declaration: Declaration, table: TableRef, model: str, by: str) -> Looks:
    """Write down, before the rows are scored, that a model is; return the looks so far.

    Args:
        declaration: names the model, its source and its metrics.
        table: the held-out rows, with `__id`.
        model: digest of the weights: one that was scored on these rows before is no new look.
        by: step that scores, for a reader of the ledger.

    Raises:
        IntegrityError: the ledger was changed.
    """
    return count_keys(declaration, evaluated_keys(table), model, by)


def count_keys(declaration: Declaration, keys: np.ndarray, model: str, by: str) -> Looks:
    """Write down a look at the rows of these sorted distinct hashes, uint64; see `count_looks`."""
    rows, metrics = row_set(keys), deciding_metrics(declaration)
    labels = sorted(declaration.data.named("label"))
    data = declaration.data
    source = [data.uri, *filter(None, (data.table, data.query, data.sheet))]
    scope = Scope(declaration.name, digest_of([source if source[1:] else data.uri, labels]))
    counts = record_look(looks_path(), scope, rows, metrics, model, by)
    return tuple(
        Look(rows_sha256=rows.sha256, metric=metric, number=counts[metric]) for metric in metrics
    )


def scored_rows(arrays: SplitArrays) -> TableRef:
    """Return the table with the ids of a split's rows or documents."""
    return TableRef(file=arrays.documents or arrays.ids, rows=arrays.rows)
