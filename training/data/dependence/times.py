"""Rows of one moment, and the score of later rows by a learner of earlier ones.

Shapes: N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from training.data.dependence.pool import (
    Pool,
    compact,
    fall_error,
    folds_of,
    out_of_fold,
    predict,
    strength_of,
)
from training.data.dependence.row_runs import block_codes
from training.data.dependence.search import LEAST_SCORE, MOST_LEFT, ROWS, SOME
from training.data.dependence.strength import Floats
from training.data.dependence.ties import Tie, between_share, codes_of

LATER = 0.3  # share of the rows, the latest, that the others predict
LEAST_AT_ONCE = 0.3  # share of rows whose moment repeats
LEAST_EQUAL = 0.8  # share of the label's variance between moments


def find_moments(pool: Pool, time: Floats) -> Tie | None:
    """Return the moments that rows share, if rows of one moment have nearly the same label."""
    codes = codes_of(time)
    if len(np.unique(time[~np.isnan(time)])) < len(time) / 100:
        return None  # a hundred rows a moment: days or years are settings
    shared, mates = between_share(codes, pool.target)
    return (
        Tie("moment", (), codes, shared)
        if mates >= LEAST_AT_ONCE and shared >= LEAST_EQUAL
        else None
    )


class Later(NamedTuple):
    """Strength on the latest rows as split, and from earlier rows; the fall in standard errors."""

    as_split: float
    forward: float
    errors: float


def find_later(pool: Pool, time: Floats, least_fall: float) -> Later | None:
    """Return the scores on the latest rows if they fall when only earlier rows are learnt."""
    chosen = np.sort(np.random.default_rng(len(time)).permutation(len(time))[:ROWS])
    pool, time = pool.of(chosen), time[chosen]
    order = np.argsort(time, kind="stable")
    cut = int(len(order) * (1 - LATER))
    earlier, later = np.sort(order[:cut]), np.sort(order[cut:])
    split = out_of_fold(pool, folds_of(compact(pool.unit), 0))
    forward = np.full(len(time), np.nan)
    forward[later] = predict(pool, earlier, later)
    split[earlier] = np.nan
    (before, moved), (after, moved_after) = strength_of(pool, split), strength_of(pool, forward)
    runs = block_codes(np.where(np.isnan(forward), np.nan, time))
    runs[runs < 0] = runs.max() + 1
    found = Later(before, after, (before - after) / fall_error(moved, moved_after, runs))
    is_fall = before >= LEAST_SCORE and before - after >= least_fall
    return found if is_fall and found.errors >= SOME and after <= MOST_LEFT * before else None
