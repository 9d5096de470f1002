"""Held-out rows that equal a row of train but for the spelling of their categories.

Shapes: N rows of the sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.chance import tail_above
from training.data.leakage.near_duplicates import (
    EVIDENCE_PAIRS,
    LEAST_ROWS,
    REMEDY,
    collision_verdict,
    near_figures,
    row_pair,
)
from training.data.leakage.one_spelling import one_spelling
from training.data.leakage.sampled import Codes, Sampled

ACCIDENT = 1e-6  # chance of one more row that equals one of train, if columns were independent


class Respelt(NamedTuple):
    """Held-out rows equal to one of train but for spelling, and rows of train that repeat another.

    `accident` is the chance that a row agrees with one of train in every column; `pairs` are
    indices of a held-out row and of a train row.
    """

    columns: tuple[str, ...]
    rows: int
    total: int
    null_rows: int
    null_total: int
    accident: float
    pairs: tuple[tuple[int, int], ...]

    @property
    def chance(self) -> float:
        """Return the probability of this many rows, given the rate inside train."""
        return tail_above(self.rows, self.total, self.null_rows, self.null_total)


def find_respelt(rows: Sampled) -> Respelt | None:
    """Find held-out rows equal to one of train but for spelling; None if no value is respelt."""
    plain = one_spelling(rows)
    respelt = tuple(n for n, codes in plain.items() if codes is not rows.category[n])
    if not respelt or not rows.train.any() or rows.train.all():
        return None
    as_given, as_one = _keys(rows, rows.category), _keys(rows, plain)
    train, held = np.flatnonzero(rows.train), np.flatnonzero(~rows.train)
    copies = held[np.isin(as_one[held], as_one[train]) & ~np.isin(as_given[held], as_given[train])]
    keys, first = np.unique(as_one[train], return_index=True)
    places = np.searchsorted(keys, as_one[copies])
    return Respelt(
        respelt,
        len(copies),
        len(held),
        _repeated(as_one[train], rows.group[train]),
        len(train),
        len(train) * _agreement(rows, plain),
        tuple((int(h), int(train[first[p]])) for h, p in zip(copies, places, strict=True)),
    )


def _keys(rows: Sampled, categories: dict[str, Codes]) -> np.ndarray:
    """Return one uint64 [N] for each row, equal for rows of equal numbers and codes."""
    columns = [*(v + 0.0 for v in rows.numeric.values()), *categories.values()]
    factors = np.random.default_rng(len(columns)).integers(0, 2**63, len(columns), dtype=np.uint64)
    found = np.zeros(len(rows.train), np.uint64)
    for values, factor in zip(columns, factors * 2 + 1, strict=True):
        number = np.where(np.isnan(values), np.nan, values).astype(np.float64).view(np.uint64)
        found += (number ^ (number >> np.uint64(29))) * factor
    return found


def _repeated(keys: np.ndarray, group: Codes) -> int:
    """Return how many rows have the key of a row of another group."""
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    low, high = np.full(len(counts), np.iinfo(np.int64).max), np.full(len(counts), -1)
    np.minimum.at(low, place, group)
    np.maximum.at(high, place, group)
    return int(counts[low < high].sum())


def _agreement(rows: Sampled, categories: dict[str, Codes]) -> float:
    """Return the chance that two rows of train agree in every column, if these were independent."""
    chance = 1.0
    for values in (*rows.numeric.values(), *categories.values()):
        _, counts = np.unique(values[rows.train], return_counts=True)
        chance *= float(((counts / counts.sum()) ** 2).sum())
    return chance


def judge_respelt(found: Respelt | None, rows: Sampled, checks: ChecksConfig) -> CheckResult | None:
    """Fail if copies in another spelling are far more frequent than rows of train that repeat.

    Rows of many values do not agree by accident: where none of train does, three of them fail and
    one warns. Return None without a finding.
    """
    if found is None or not found.rows:
        return None
    verdict = collision_verdict(found.rows, found.chance, checks)
    if not found.null_rows and found.accident * found.total <= ACCIDENT:
        verdict = "fail" if found.rows >= LEAST_ROWS else "warn"
    if verdict == "pass":
        return None
    columns = ", ".join(repr(c) for c in found.columns[:5])
    return CheckResult(
        name="near_duplicates",
        verdict=verdict,
        summary=(
            f"{found.rows} of {found.total} sampled held-out rows equal a train row but for the"
            f" spelling of {columns} (case, spaces, punctuation, accents); {found.null_rows} of"
            f" {found.null_total} train rows repeat one of another group"
        ),
        figures=near_figures(
            found.rows, found.total, found.null_rows, found.null_total, found.chance, checks
        ),
        evidence=tuple(
            row_pair(rows, h, t, found.columns) for h, t in found.pairs[:EVIDENCE_PAIRS]
        ),
        remedy=REMEDY,
    )


def with_respelt(
    results: list[CheckResult], rows: Sampled, checks: ChecksConfig
) -> list[CheckResult]:
    """Return the results of near copies, and that of copies in another spelling if it is one.

    It stands in the place of a passed result of its name.
    """
    found = judge_respelt(find_respelt(rows), rows, checks)
    if found is None:
        return results
    return [found, *(r for r in results if r.name != found.name or r.verdict != "pass")]
