"""Rows that belong together and were split apart: how far the score rests on them.

A quick, fixed learner is scored on train and validation rows as the split draws them, and with
rows kept together that may belong together. Test rows are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from schemas.records import CheckResult
from training.data.dependence.near_rows import find_clusters
from training.data.dependence.pool import Pool, compact
from training.data.dependence.row_runs import block_codes, find_blocks, find_ordered_columns
from training.data.dependence.search import FEWEST_ROWS, first_finding
from training.data.dependence.ties import Tie, find_value_ties
from training.data.dependence.times import find_later, find_moments
from training.data.leakage.dependence_rows import (
    KEPT_WHOLE,
    ROWS,
    Looked,
    learnt,
    placed,
    read_rows,
    read_runs,
    read_values,
    thin_columns,
)
from training.data.leakage.dependence_text import Dependence, quiet, result_of
from training.data.leakage.sides import Sides

TIMED = ("time", "group_time")
MOST_VALUES = 4  # ties by values that are fitted, the likeliest first
LEAST_NESTED = 0.9  # share of a unit's rows with the unit's most frequent tie
LEAST_APART = 0.5  # ties that are in both sides, over those of a random split


def find_dependence(sides: Sides) -> Dependence | None:
    """Return the clearest tie; None if there is no label, no feature, or too few rows."""
    whole, checks = placed(sides), sides.declaration.checks
    looked = read_rows(whole)
    if looked is None or len(looked.pool.target) < FEWEST_ROWS:
        return None
    finding = first_finding(_ties(whole, looked), checks.dependence_fall, checks.dependence_left)
    later = moments = None
    if sides.declaration.split.kind not in KEPT_WHOLE and np.isfinite(looked.time).all():
        # a split by time that was made elsewhere keeps whole blocks on one side
        blocks = Tie("time", (), block_codes(looked.time), 0.0)
        if _is_split_apart(blocks, looked):
            later = find_later(looked.pool, looked.time, checks.dependence_fall)
            moments = find_moments(looked.pool, looked.time)
    if moments is not None and not _is_split_apart(moments, looked):
        moments = None
    return Dependence(
        finding, later, moments, looked.label, looked.pool.is_class, len(looked.pool.target)
    )


def _ties(sides: Sides, looked: Looked) -> Iterator[tuple[Pool, Tie]]:
    """Yield candidates with the rows that they are tried on, the most telling kinds first."""
    values = sorted(find_value_ties(looked.pool), key=lambda tie: -tie.shared)[:MOST_VALUES]
    yield from _usable(looked, values)
    for column in thin_columns(sides):
        if near := read_values(sides, column):
            own = [tie for tie in find_value_ties(near.pool) if column in tie.columns]
            yield from _usable(near, own[:1])
    yield from _usable(looked, find_clusters(looked.pool))
    yield from _runs(sides, looked, "time")
    yield from _usable(looked, find_ordered_columns(looked.pool))
    yield from _runs(sides, looked, "place")


def _runs(sides: Sides, looked: Looked, kind: str) -> Iterator[tuple[Pool, Tie]]:
    """Yield blocks of neighbours; of a large table they are read for it."""
    positions = looked.time if kind == "time" else looked.place
    if sum(sides.num_rows[side] for side in learnt(sides)) > ROWS and np.isfinite(positions).any():
        near = read_runs(sides, {"time": "__time", "place": "__source_row"}[kind], positions)
        if near is None:
            return
        looked, positions = near, near.time if kind == "time" else near.place
    yield from _usable(looked, find_blocks(looked.pool, positions, kind))


def _usable(looked: Looked, ties: list[Tie]) -> Iterator[tuple[Pool, Tie]]:
    for tie in ties:
        whole = _with_whole_units(tie, looked.pool)
        if whole is not None and _is_split_apart(whole, looked):
            yield looked.pool, whole


def _with_whole_units(tie: Tie, pool: Pool) -> Tie | None:
    """Return the tie with one code for each unit of the split; None if units are torn by it."""
    rows = np.flatnonzero(tie.codes >= 0)
    unit, codes = compact(pool.unit[rows]), compact(tie.codes[rows])
    if len(np.unique(unit)) == len(unit):
        return tie
    pairs, counts = np.unique(np.stack([unit, codes], axis=1), axis=0, return_counts=True)
    order = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
    first = order[np.r_[True, np.diff(pairs[order, 0]) > 0]]
    if counts[first].sum() < LEAST_NESTED * len(rows):
        return None
    whole = np.full(len(tie.codes), -1, dtype=np.int64)
    whole[rows] = pairs[first, 1][unit]
    return tie._replace(codes=whole)


def _is_split_apart(tie: Tie, looked: Looked) -> bool:
    """Return True if validation rows have rows of their tie in train, as a random split makes it.

    Without validation rows the declared way decides, by its units.
    """
    rows = np.flatnonzero(tie.codes >= 0)
    held_out, codes = looked.held_out[rows], compact(tie.codes[rows])
    if not held_out.any():
        return True
    random = np.random.default_rng(0).permutation(held_out)

    def shared(held: Any) -> float:
        return float(np.isin(codes[held], codes[~held]).mean())

    return shared(held_out) >= LEAST_APART * shared(random)


def dependence_results(sides: Sides) -> list[CheckResult]:
    """Return one result: the clearest tie, or why nothing was tried."""
    checks = sides.declaration.checks
    spec, kind = sides.spec, sides.declaration.split.kind
    if spec.text is not None or not (spec.numeric or spec.categorical):
        return [quiet("not decided: no numeric or categorical feature to learn from", checks)]
    if kind in TIMED:
        return [quiet("not looked at: later rows of what is known may be predicted", checks)]
    found = find_dependence(sides)
    if found is None:
        return [quiet(f"not decided: fewer than {FEWEST_ROWS} labelled rows of train", checks)]
    return [result_of(found, sides, checks)]


def with_group_remedy(results: list[CheckResult]) -> list[CheckResult]:
    """Return the results; a column that ties rows is not to be ignored for telling the label."""
    tie = next(
        (r for r in results if r.name == "dependence" and r.figures.get("tie") == "key"), None
    )
    if tie is None:
        return results
    return [
        r.model_copy(update={"remedy": tie.remedy})
        if r.name == "label_proxy" and r.verdict != "pass" and r.columns == tie.columns[:1]
        else r
        for r in results
    ]
