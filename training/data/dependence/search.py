"""How far a score rests on rows that belong together.

Each candidate tie is tried: a quick learner is scored on folds of train and validation rows as the
declared split draws them, and on folds that keep the rows of one value together. Folds of a random
grouping of the same sizes are folds of single rows, so the first is also the null of the second.
Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from schemas.checks_config import ChecksConfig
from training.data.dependence.pool import (
    FOLDS,
    Pool,
    compact,
    fall_error,
    folds_of,
    out_of_fold,
    strength_of,
)
from training.data.dependence.strength import Codes
from training.data.dependence.ties import Tie, between_share, find_value_ties, steady_columns

ROWS = 4_000  # of one fit's folds
MOST_VALUE_TIES = 2  # that are fitted where there is no split yet
SMALL = 20  # rows of a value: of larger ones, some rows of each are enough
LEAST_SCORE = 0.2  # strength as split, below which there is nothing to lose
FIRST_FALL = 0.04  # of the first fold, below which the other folds are not fitted
REPEATS = 2  # with other folds, before anything is said
# standard errors of the fall: to say so, and to be sure
SOME, SURE = 3.0, 3.5
MOST_LEFT = 0.8  # share of the strength that is left: more is no finding
MOST_LEFT_ALONG = 0.6  # the same along a column, whose ends no learner reaches
UNEXPLAINED, UNEXPLAINED_VALUE, SOMEWHAT = 0.5, 0.8, 0.3
FEWEST_TIED = 10
TELLING = 0.4  # different numbers of a column for each tie, so that it nearly tells the tie
FEWEST_ROWS = 100
ORDERED = ("time", "order", "place")


class Found(NamedTuple):
    """One tie, tried.

    Strength as split and with ties kept whole, the fall in standard errors, the share of the honest
    errors' variance between ties, ties and rows that were tried, columns that never change within a
    tie, and True if one of its columns is a measurement.
    """

    tie: Tie
    as_split: float
    honest: float
    errors: float
    unexplained: float
    num_ties: int
    rows: int
    steady: tuple[str, ...] = ()
    is_measured: bool = False

    @property
    def fall(self) -> float:
        """Return by how much the strength falls."""
        return self.as_split - self.honest

    @property
    def left(self) -> float:
        """Return the share of the strength that is left, from 0."""
        return max(self.honest, 0.0) / max(self.as_split, 1e-9)


class Finding(NamedTuple):
    """A tie that was tried, and its verdict: warn or fail."""

    found: Found
    verdict: str


def first_finding(
    ties: Iterable[tuple[Pool, Tie]], least_fall: float, most_left: float
) -> Finding | None:
    """Return the first tie that fails, else the first that warns, in the given order.

    Args:
        ties: candidates, each with the rows that it is tried on.
        least_fall: of the strength, below which a tie is no finding.
        most_left: share of the strength up to which a fall is a failure.
    """
    first: Finding | None = None
    for pool, tie in ties:
        found = try_tie(pool, tie, least_fall)
        verdict = verdict_of(found, most_left) if found else "pass"
        if found is not None and verdict == "fail":
            return Finding(found, verdict)
        if found is not None and verdict == "warn" and first is None:
            first = Finding(found, verdict)
    return first


def first_value_tie(pool: Pool) -> Found | None:
    """Return the likeliest tie by equal values that fails under the default limits, or None."""
    ties = sorted(find_value_ties(pool), key=lambda tie: -tie.shared)[:MOST_VALUE_TIES]
    checks = ChecksConfig()
    finding = first_finding(
        ((pool, tie) for tie in ties), checks.dependence_fall, checks.dependence_left
    )
    return finding.found if finding is not None and finding.verdict == "fail" else None


def try_tie(pool: Pool, tie: Tie, least_fall: float) -> Found | None:
    """Return how far the strength falls with the tie kept whole; None if hardly."""
    chosen = chosen_rows(tie)
    codes = compact(tie.codes[chosen]) if len(chosen) else tie.codes
    if len(chosen) < FEWEST_ROWS or not codes.max():
        return None
    part = pool.of(chosen)
    return _tried(part._replace(unit=compact(part.unit)), tie._replace(codes=codes), least_fall)


def chosen_rows(tie: Tie) -> Codes:
    """Return positions of the rows to fit on: whole small ties, or some rows of large ones."""
    rows = np.flatnonzero(tie.codes >= 0)
    if len(rows) <= ROWS or tie.kind in ORDERED:
        return rows
    codes = compact(tie.codes[rows])
    sizes, random = np.bincount(codes), np.random.default_rng(len(rows))
    if len(rows) > SMALL * len(sizes):
        return rows[np.sort(random.permutation(len(rows))[:ROWS])]
    order = random.permutation(len(sizes))
    kept = np.zeros(len(sizes), dtype=bool)
    kept[order[np.cumsum(sizes[order]) <= ROWS]] = True
    return rows[kept[codes]]


def _tried(pool: Pool, tie: Tie, least_fall: float) -> Found | None:
    """Return the mean of two trials, or None if one of them has no fall to speak of."""
    trials = []
    for seed in range(REPEATS):
        trial = _trial(pool, tie, seed)
        if trial is None or trial.fall < least_fall or trial.errors < SOME:
            return None
        trials.append(trial)
    mean = trials[0]._replace(
        as_split=float(np.mean([t.as_split for t in trials])),
        honest=float(np.mean([t.honest for t in trials])),
        errors=min(t.errors for t in trials),
        unexplained=min(t.unexplained for t in trials),
        steady=steady_columns(pool, tie),
        is_measured=_has_measured(pool, tie),
    )
    return mean if mean.left <= MOST_LEFT else None


def _trial(pool: Pool, tie: Tie, seed: int) -> Found | None:
    """Return one trial, or None if the first fold shows no fall."""
    apart, together = folds_of(pool.unit, seed), folds_of(tie.codes, seed)
    as_split, honest = out_of_fold(pool, apart, (0,)), out_of_fold(pool, together, (0,))
    start = strength_of(pool, as_split)[0]
    if start < LEAST_SCORE or start - strength_of(pool, honest)[0] < FIRST_FALL:
        return None
    rest = range(1, FOLDS)
    as_split = np.where(np.isnan(as_split), out_of_fold(pool, apart, rest), as_split)
    honest = np.where(np.isnan(honest), out_of_fold(pool, together, rest), honest)
    (before, moved), (after, moved_after) = strength_of(pool, as_split), strength_of(pool, honest)
    unexplained, _ = between_share(tie.codes, np.nan_to_num(pool.target - honest))
    return Found(
        tie,
        before,
        after,
        (before - after) / fall_error(moved, moved_after, tie.codes),
        unexplained,
        int(tie.codes.max()) + 1,
        len(pool.target),
    )


def verdict_of(found: Found, most_left: float) -> str:
    """Return pass, warn or fail.

    A category that is rightly a feature falls, too, when its values are held out. So values of one
    column count only where other columns never change within them, or hardly anything but the value
    says the label; and they fail only with both, or if the column is a measurement. Combinations
    of categories, such as the make and the trim of cars, are categories, too: they only warn.

    Args:
        found: a tie that was tried.
        most_left: share of the strength up to which a fall is a failure.
    """
    kind, far = found.tie.kind, found.left <= most_left
    if found.as_split < LEAST_SCORE:
        return "pass"
    if kind in ORDERED:
        if kind == "order" and found.left > MOST_LEFT_ALONG:
            return "pass"
        return "fail" if far and found.errors >= SURE and found.as_split >= 0.5 else "warn"
    sure = far and found.errors >= SURE and found.num_ties >= FEWEST_TIED
    if kind == "values" and len(found.tie.columns) == 1:
        told = bool(found.steady) or found.is_measured
        strange = found.unexplained >= UNEXPLAINED_VALUE
        if not told and not strange:
            return "pass"
        return "fail" if sure and told and strange else "warn"
    if found.unexplained < SOMEWHAT:
        return "pass"
    strange = found.unexplained >= UNEXPLAINED and found.is_measured
    return "fail" if sure and strange else "warn"


def _has_measured(pool: Pool, tie: Tie) -> bool:
    """Return True if a tie's column is a measurement; of several, a number that nearly tells ties.

    Whole numbers that nearly tell which tie it is, such as ages of people, are no category.
    """
    if len(tie.columns) == 1:
        return is_measured(pool, tie.columns[0])
    numbers = [name for name in tie.columns if name not in pool.categories]
    least = TELLING * (int(tie.codes.max()) + 1)
    return any(
        is_measured(pool, name) or len(np.unique(pool.column(name))) >= least for name in numbers
    )


def is_measured(pool: Pool, name: str) -> bool:
    """Return True for a number with fractions: no one numbers things like that."""
    values = pool.column(name)
    known = values[~np.isnan(values)]
    return name not in pool.categories and bool((known != np.floor(known)).mean() > 0.5)
