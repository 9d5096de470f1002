"""Values of columns that could tie rows together, found without a fit.

A tie is a code for each row: rows of one code may belong to one person, device or batch. Only ties
whose rows share more of the label than chance are worth a fit. Shapes: N rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from training.data.dependence.pool import Pool, compact
from training.data.dependence.strength import Codes, Flags, Floats

FEWEST_VALUES = 15  # with fewer, a column is a setting and not a key
LEAST_MATES = 0.4  # share of rows that have another row of their value
LEAST_SHARED = 0.1  # share of the label's variance that lies between the values
LEAST_ROUGH = 0.25  # of that share: neighbouring values of a number differ as strangers do
CROWDED = 0.75  # combinations seen, over those that unrelated columns would show
LEAST_GAIN = 0.02  # of the share, by one column more
MOST_TOGETHER = 4
STEADY = 0.98  # of the values with several rows: a column that does not change within them
CHANCE = 15.0  # natural logarithm: constant by luck once in three million tables
BINS = 16


class Tie(NamedTuple):
    """What ties rows: a kind, the columns that say so, and a code [N] for each row.

    `kind`: values, cluster, time, moment, order or place. `shared`: share of the label's variance
    between the codes. A code of -1 is a row that was not looked at.
    """

    kind: str
    columns: tuple[str, ...]
    codes: Codes
    shared: float


def between_share(codes: Codes, values: Floats) -> tuple[float, float]:
    """Return the share of the values' variance between codes, and of rows with another of theirs.

    The share is that of a one-way analysis of variance, corrected for the number of codes.
    """
    several = np.bincount(codes)[codes] > 1
    if several.sum() < 2:
        return 0.0, 0.0
    own, mine = compact(codes[several]), values[several]
    counts = np.bincount(own)
    within = (mine**2).sum() - (np.bincount(own, weights=mine) ** 2 / counts).sum()
    total = ((values - values.mean()) ** 2).mean()
    if not total:
        return 0.0, float(several.mean())
    return float(1 - within / (len(mine) - len(counts)) / total), float(several.mean())


def codes_of(values: Floats) -> Codes:
    """Return codes [N] in the order of the values; a null is a code of its own."""
    null = np.isnan(values)
    codes = np.zeros(len(values), dtype=np.int64)
    codes[~null] = np.unique(values[~null], return_inverse=True)[1]
    codes[null] = (codes.max() + 1 if (~null).any() else 0) + np.arange(int(null.sum()))
    return codes


def find_value_ties(pool: Pool) -> list[Tie]:
    """Return columns, and a combination of columns, whose values could tie rows."""
    codes = {name: codes_of(pool.column(name)) for name in pool.names}
    found = [tie for name in pool.names if (tie := _single(pool, name, codes[name]))]
    repeated = {n: c for n, c in codes.items() if 2 <= c.max() + 1 <= len(c) / 1.5}
    columns, together, shared = grow(repeated, pool.target)
    if len(columns) > 1 and together.max() + 1 >= FEWEST_VALUES and shared >= LEAST_SHARED:
        expected = _expected([codes[c] for c in columns])
        if together.max() + 1 <= CROWDED * expected:
            found.append(Tie("values", columns, together, shared))
    return found


def _single(pool: Pool, name: str, codes: Codes) -> Tie | None:
    distinct = int(codes.max()) + 1
    if not FEWEST_VALUES <= distinct <= len(codes) / 1.5:
        return None
    shared, mates = between_share(codes, pool.target)
    if mates < LEAST_MATES or shared < LEAST_SHARED:
        return None
    if name not in pool.categories:
        # three neighbouring values at a time: a smooth relation loses little by it
        smooth, _ = between_share(codes // 3, pool.target)
        if shared - smooth < LEAST_ROUGH * shared:
            return None
    return Tie("values", (name,), codes, shared)


def grow(columns: dict[str, Codes], target: Floats) -> tuple[tuple[str, ...], Codes, float]:
    """Return the columns whose combined values share most of the label, found one by one.

    Returns:
        Their names, the codes [N] of their combinations, and the share.
    """
    best: tuple[tuple[str, ...], Codes, float] = ((), np.zeros(len(target), dtype=np.int64), 0.0)
    for _ in range(MOST_TOGETHER):
        tried = []
        for name, codes in columns.items():
            if name in best[0]:
                continue
            both = compact(best[1] * (int(codes.max()) + 1) + codes)
            shared, mates = between_share(both, target)
            if mates >= LEAST_MATES:
                tried.append(((*best[0], name), both, shared))
        better = max(tried, key=lambda t: t[2], default=best)
        if better[2] < best[2] + LEAST_GAIN:
            break
        best = better
    return best


def coarse(pool: Pool) -> dict[str, Codes]:
    """Return codes of every column; numbers of many values in sixteen bins of equal size."""
    found = {}
    for name in pool.names:
        values = pool.column(name)
        codes = np.unique(np.nan_to_num(values, nan=np.inf), return_inverse=True)[1]
        if codes.max() + 1 > BINS and name not in pool.categories:
            place = np.searchsorted(np.sort(codes), codes, "left")
            codes = compact(place * BINS // len(codes))
        found[name] = codes
    return found


def _expected(columns: list[Codes]) -> float:
    """Return how many combinations unrelated columns with these values would show."""
    rows = len(columns[0])
    shares = np.ones(1)
    for codes in columns:
        shares = np.outer(shares, np.bincount(codes) / rows).ravel()
        if len(shares) > 2_000_000:
            return float(rows)
    return float((1 - (1 - shares) ** rows).sum())


def steady_columns(pool: Pool, tie: Tie) -> tuple[str, ...]:
    """Return other features that do not change within a tie, beyond what luck would explain.

    n rows of a value agree with the chance q^(n - 1), where q is the chance that two rows agree.
    """
    order = np.argsort(tie.codes, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(tie.codes[order]) > 0])
    sizes = np.diff(np.r_[starts, len(order)])
    several: Flags = sizes > 1
    if several.sum() < 5:
        return ()
    repeated, found = float((sizes[several] - 1).sum()), []
    for name in pool.names:
        if name in tie.columns:
            continue
        codes = np.unique(np.nan_to_num(pool.column(name), nan=np.inf), return_inverse=True)[1]
        mine = codes[order]
        same = np.minimum.reduceat(mine, starts) == np.maximum.reduceat(mine, starts)
        agree = float(((np.bincount(codes) / len(codes)) ** 2).sum())
        lucky = repeated * -math.log(agree) < CHANCE
        if same[several].mean() >= STEADY and not lucky:
            found.append(name)
    return tuple(found)
