"""Drift: compare new rows with earlier ones, column by column, adjusted for the number of columns.

Numbers: the two-sample Kolmogorov–Smirnov test on known values, and a chi-square test on the number
of nulls. Text: a chi-square test on values. The p-values of all columns are adjusted by Holm's
method. So a table of a hundred columns without drift has a finding in one of twenty
comparisons at most, not in all of them. Besides the p-value, the effect size is the population
stability index over the tenths of the earlier values (or the values themselves), with nulls as a
separate class.

Rows of one group are not independent draws, so one row of each group is used. With fewer than 30
such rows a large difference can still be found: classes are then compared by the exact distribution
given the margins, as the chi-square approximation fails. N rows.
Source: Holm 1979; PSI and its customary bounds 0.1 and 0.25 as in Siddiqi 2006.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import chi2_contingency, ks_2samp, random_table

from schemas.registry_records import Drift

LEVEL = 0.05  # of the whole table of columns
MODERATE, LARGE = 0.1, 0.25  # of the population stability index
MIN_ROWS = 30  # fewer say nothing about a small difference
FEWEST_ROWS = 5  # fewer say nothing at all
DRAWS = 4999  # of tables with the observed margins, if rows are few
MAX_CATEGORIES = 50  # by count; the rest is one more
TENTHS = 10


def find_drift(
    before: pd.DataFrame, now: pd.DataFrame, columns: Sequence[str]
) -> tuple[Drift, ...]:
    """Return each column's distance from the earlier rows, largest first.

    The result is empty if either table has fewer than 5 rows. Below 30 rows, a missing difference
    is no sign that there is none.

    Args:
        before: earlier rows, one of each group.
        now: new rows, one of each group.
        columns: numbers, booleans or text; null where unknown.
    """
    if min(len(before), len(now)) < FEWEST_ROWS:
        return ()
    found = [_one(name, before[name], now[name]) for name in columns]
    adjusted = holm([d.p_value for d in found])
    return tuple(
        sorted(
            (d.model_copy(update={"adjusted": p}) for d, p in zip(found, adjusted, strict=True)),
            key=lambda d: (-d.psi, d.column),
        )
    )


def one_of_each(frame: pd.DataFrame, group: str) -> pd.DataFrame:
    """Return the first row of each group, and every row without one.

    Rows lie in the order of a hash, so the first is a random one.
    """
    return frame[~frame[group].duplicated() | frame[group].isna()]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number.

    All those below a level together are wrong with at most that probability.

    >>> holm([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    order = np.argsort(p_values, kind="stable")
    steps = [min(1.0, (len(p_values) - rank) * p_values[i]) for rank, i in enumerate(order)]
    adjusted = np.maximum.accumulate(steps) if steps else np.empty(0)
    found = np.empty(len(p_values))
    found[order] = adjusted
    return [float(p) for p in found]


def _one(name: str, before: pd.Series, now: pd.Series) -> Drift:
    numeric = pd.api.types.is_numeric_dtype(before.dtype) and pd.api.types.is_numeric_dtype(
        now.dtype
    )
    codes = _tenths(before, now) if numeric else _values(before, now)
    counts = np.stack([np.bincount(part, minlength=max(map(np.max, codes)) + 1) for part in codes])
    nulls = np.array([[part.isna().sum(), part.notna().sum()] for part in (before, now)])
    if numeric:
        known = [part.dropna().to_numpy(dtype=np.float64) for part in (before, now)]
        distance, p_value = (
            (float(v) for v in ks_2samp(*known, method="asymp"))
            if all(map(len, known))
            else (0.0, 1.0)
        )
        p_value = min(1.0, 2 * min(p_value, _chi_square(nulls)))  # two tests of one column
    else:
        p_value, shares = _chi_square(counts), counts / counts.sum(axis=1, keepdims=True)
        distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    null_shares = nulls[:, 0] / nulls.sum(axis=1)
    return Drift(
        column=name,
        numeric=numeric,
        psi=psi(counts),
        distance=distance,
        p_value=p_value,
        null_before=float(null_shares[0]),
        null_now=float(null_shares[1]),
    )


def psi(counts: np.ndarray) -> float:
    """Return the population stability index of two rows of counts [2, classes].

    Half a row is added to each count, so that an empty class gives no infinity.

    >>> round(psi(np.array([[500, 500], [400, 600]])), 3)
    0.04
    """
    smooth = counts[:, counts.sum(axis=0) > 0] + 0.5
    before, now = smooth / smooth.sum(axis=1, keepdims=True)
    return float(((now - before) * np.log(now / before)).sum())


def _chi_square(counts: np.ndarray) -> float:
    """Return the p-value of counts [2, classes] if both rows have one distribution.

    The result is 1 for a single class.
    """
    present = counts[:, counts.sum(axis=0) > 0]
    if present.shape[1] < 2:
        return 1.0
    if counts.sum(axis=1).min() >= MIN_ROWS:
        return float(chi2_contingency(present, correction=False).pvalue)
    rows, columns = present.sum(axis=1), present.sum(axis=0)
    expected = np.outer(rows, columns) / present.sum()
    drawn = random_table(rows, columns).rvs(DRAWS, random_state=np.random.default_rng(0))
    distances = [
        ((table - expected) ** 2 / expected).sum(axis=(-2, -1)) for table in (present, drawn)
    ]
    return float((1 + np.sum(distances[1] >= distances[0] - 1e-9)) / (1 + DRAWS))


def _tenths(before: pd.Series, now: pd.Series) -> list[np.ndarray]:
    """Return the class of each value [N] by the tenths of the earlier ones; 0 for null."""
    known = before.dropna().to_numpy(dtype=np.float64)
    edges = (
        np.unique(np.quantile(known, np.arange(1, TENTHS) / TENTHS)) if len(known) else np.empty(0)
    )
    return [
        np.where(
            part.isna(),
            0,
            1
            + np.searchsorted(
                edges, part.to_numpy(dtype=np.float64, na_value=np.nan), side="right"
            ),
        )
        for part in (before, now)
    ]


def _values(before: pd.Series, now: pd.Series) -> list[np.ndarray]:
    """Return the class of each value [N].

    It is 0 for null, one class for each value frequent in both tables together, and one for all
    others.
    """
    texts = [part.astype("string") for part in (before, now)]
    frequent: Mapping[str, int] = {
        str(v): i
        for i, v in enumerate(pd.concat(texts).value_counts().index[:MAX_CATEGORIES], start=1)
    }
    return [
        np.where(part.isna(), 0, part.map(frequent).fillna(len(frequent) + 1)).astype(np.int64)
        for part in texts
    ]
