"""Columns scaled or filled with statistics of all rows before the split.

Their pooled statistics are neater than chance allows, train's are not. No label is needed. A mean
of exactly 0 over train and test together, where train's own is as far from 0 as its size makes
likely, can only come from a fit on both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.engine.engine import count_distinct, ident, row
from training.data.engine.many_columns import figures_of
from training.data.leakage.sampled import Flags, Floats, Sampled
from training.data.leakage.sides import Sides

FIGURES = ("count", "favg", "stddev_pop", "min", "max")  # of `Moments`
LEAST_ROWS = 30
LEAST_DISTINCT = 0.2  # least share of distinct values in a measurement
UNLIKELY = 1e-5  # highest probability that gives a warning
TRAIN_UNLIKELY = 1e-3  # train's own statistics must not be neat, too
# times as frequent as the next value: a median is a value of the data, which many rows may share
# without it
LEAST_LEAD = 5.0
SAME = 1e-6  # in standard deviations: two fills are the same number


class Moments(NamedTuple):
    """Non-null values of a column: number, mean, population standard deviation, extremes."""

    number: int
    mean: float
    std: float
    low: float
    high: float


class Pooled(NamedTuple):
    """Statistic that is neat over all rows: name, value there and in train, and p-value."""

    column: str
    what: str
    pooled: float
    train: float
    chance: float


def find_moments(sides: Sides, sample: Sampled) -> dict[str, dict[str, Moments]]:
    """Return moments of every numeric column by split, over all rows.

    Columns that are null throughout a split are left out. If the sample has all rows, they are
    those of the sample: the engine takes a third of a millisecond for each column.
    """
    if len(sample.train) == sum(sides.num_rows.values()):
        return _common(_of_sample(sides, sample))
    found: dict[str, dict[str, Moments]] = {}
    for side, relation in sides.relations.items():
        for name, (count, mean, std, low, high) in figures_of(
            sides.connection,
            sides.spec.numeric,
            relation,
            lambda c: [f"{figure}({c})" for figure in FIGURES],
        ).items():
            if count:
                found.setdefault(name, {})[side] = Moments(
                    int(count), float(mean), float(std), float(low), float(high)
                )
    return _common(found)


def _of_sample(sides: Sides, sample: Sampled) -> dict[str, dict[str, Moments]]:
    found: dict[str, dict[str, Moments]] = {}
    for side in sides.relations:
        rows = np.flatnonzero(sample.side == side)
        for name, values in sample.numeric.items():
            present = values[rows]
            present = present[~np.isnan(present)]
            if len(present):
                mean = float(present.mean())
                found.setdefault(name, {})[side] = Moments(
                    len(present),
                    mean,
                    math.sqrt(((present - mean) ** 2).mean()),
                    float(present.min()),
                    float(present.max()),
                )
    return found


def _common(found: dict[str, dict[str, Moments]]) -> dict[str, dict[str, Moments]]:
    """Return the columns with finite moments in train and another split."""
    return {
        name: by_side
        for name, by_side in found.items()
        if "train" in by_side and len(by_side) > 1 and all(map(_finite, by_side.values()))
    }


def _finite(moments: Moments) -> bool:
    return all(map(math.isfinite, moments))


def pooled_moments(parts: list[Moments]) -> Moments:
    """Return moments of several splits together."""
    count = sum(p.number for p in parts)
    mean = sum(p.number * p.mean for p in parts) / count
    square = sum(p.number * (p.std**2 + (p.mean - mean) ** 2) for p in parts) / count
    return Moments(
        count, mean, math.sqrt(square), min(p.low for p in parts), max(p.high for p in parts)
    )


def find_pooled_scaling(moments: dict[str, dict[str, Moments]], sides: Sides) -> list[Pooled]:
    """Find columns that are standardized over all rows but not over train, least likely first.

    They have mean 0 (and standard deviation 1), or range 0 to 1.
    """
    found = []
    for name, by_side in moments.items():
        train, everything = by_side["train"], pooled_moments(list(by_side.values()))
        if (
            min(train.number, everything.number - train.number) < LEAST_ROWS
            or not everything.std
            or not train.std
        ):
            continue
        chance = _neat(everything) * len(moments)
        standard = abs(everything.std - 1) <= 2 / everything.number  # by n or by n - 1
        if (
            chance <= UNLIKELY
            and _neat(train) > TRAIN_UNLIKELY
            and (standard or _is_measured(sides, name, everything.number))
        ):
            found.append(
                Pooled(
                    name,
                    "mean 0 and standard deviation 1" if standard else "mean 0",
                    everything.mean,
                    train.mean,
                    chance,
                )
            )
    return sorted(found, key=lambda p: (p.chance, p.column))


def _neat(m: Moments) -> float:
    """Return the probability that sampling brings the mean so near to 0.

    If the standard deviation is near 1 (or n - 1's), its probability is included.
    """
    off_mean = abs(m.mean) * math.sqrt(m.number) / m.std
    off_std = min(
        abs(m.std - 1), abs(m.std * math.sqrt(m.number / (m.number - 1)) - 1)
    ) * math.sqrt(2 * m.number)
    return min(1.0, 0.8 * max(off_mean, 1e-12)) * min(1.0, max(off_std, 1e-12))


def _is_measured(sides: Sides, name: str, count: int) -> bool:
    return (
        count_distinct(sides.connection, ident(name), sides.together((name,)))
        >= LEAST_DISTINCT * count
    )


def find_pooled_range(moments: dict[str, dict[str, Moments]], sides: Sides) -> list[Pooled]:
    """Find columns with range exactly 0 (or -1) to 1 over all rows.

    Each end is in one row, and one of these rows is outside train.
    """
    found = []
    for name, by_side in moments.items():
        train, everything = by_side["train"], pooled_moments(list(by_side.values()))
        if (
            everything.high != 1
            or everything.low not in (0, -1)
            or (train.low, train.high) == (everything.low, everything.high)
        ):
            continue
        column = ident(name)
        ends = row(
            sides.connection,
            f"select count(*) from {sides.together((name,))} where {column} in"
            f" ({everything.low}, 1)",
        )[0]
        if (
            ends == 2
            and train.number >= LEAST_ROWS
            and _is_measured(sides, name, everything.number)
        ):
            shown = train.high if train.high != 1 else train.low
            found.append(
                Pooled(
                    name,
                    f"range {everything.low:g} to 1, each end once",
                    everything.high if train.high != 1 else everything.low,
                    shown,
                    1e-9,
                )
            )
    return found


def find_pooled_fill(
    moments: dict[str, dict[str, Moments]], sample: Sampled, sides: Sides
) -> list[Pooled]:
    """Find columns where one value is much more frequent than others and is a pooled statistic.

    It is the mean or median of all other rows, but not of train's.
    """
    found = []
    for name in moments:
        value, lead = _fill_value(sample.numeric[name], sample.train)
        if value is not None:
            found += _as_mean(sides, name, value) or (
                _as_median(sides, name, value) if lead >= LEAST_LEAD else []
            )
    return found


def _fill_value(values: Floats, train: Flags) -> tuple[float | None, float]:
    """Return the most frequent value of a measurement in the sample, if it may be a fill.

    Also return how many times as frequent as the next value it is.
    """
    found, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    if len(found) < LEAST_ROWS:
        return None, 0.0
    second, first = np.partition(counts, -2)[-2:]
    value = float(found[counts.argmax()])
    possible = (
        first >= max(5, 0.002 * counts.sum())
        and first >= 1.5 * second
        and bool((values[train] == value).any())
    )
    return (value, float(first / second)) if possible else (None, 0.0)


def _as_mean(sides: Sides, name: str, value: float) -> list[Pooled]:
    column = ident(name)
    others = f"{sides.together((name,))} where {column} is not null and {column} <> {value!r}"
    figures = f"select count(*), favg({column}), stddev_pop({column}) from {others}"
    count, mean, std = row(sides.connection, figures)
    train_count, train_mean, _ = row(sides.connection, f"{figures} and side = 'train'")
    if not train_count or count - train_count < LEAST_ROWS or not std:
        return []
    exact = abs(mean - value) <= SAME * std
    # how far train's mean is from that of all rows by chance
    apart = std * math.sqrt(1 / train_count - 1 / count)
    chance = max(abs(mean - value), 1e-12 * std) / apart
    own = abs(train_mean - value) > 1000 * max(abs(mean - value), 1e-12 * std)
    return (
        [
            Pooled(
                name,
                f"its frequent value {value:.6g} is the mean of all other rows",
                mean,
                train_mean,
                chance,
            )
        ]
        if exact and own
        else []
    )


def _as_median(sides: Sides, name: str, value: float) -> list[Pooled]:
    """Check a fill as the median by rank, so that a median between two values counts as well.

    As many rows lie below as above over all splits, but not in train.
    """
    column, where = ident(name), f"{ident(name)} is not null"
    counted = ", ".join(
        f"count(*) filter (where {column} {sign} {value!r} {side})"
        for side in ("", "and side = 'train'")
        for sign in ("<", ">")
    )
    below, above, train_below, train_above = row(
        sides.connection, f"select {counted} from {sides.together((name,))} where {where}"
    )
    total, train_total = below + above, train_below + train_above
    if total - train_total < LEAST_ROWS or not train_total or not _is_measured(sides, name, total):
        return []
    off, train_off = abs(below - above), abs(train_below - train_above)
    expected = math.sqrt(train_total * (total - train_total) / total)
    if off > 1 or train_off <= 4:
        return []
    return [
        Pooled(
            name,
            f"its frequent value {value:.6g} is the median of all other rows",
            below / total,
            train_below / train_total,
            1.0 / max(expected, 1.0),
        )
    ]


def _tidy(value: float) -> float:
    """Round off the last bits, in which sums of a parallel engine differ from run to run."""
    return float(f"{value:.9g}") if abs(value) > 1e-12 else 0.0


def judge_pooled(name: str, found: list[Pooled], checks: ChecksConfig) -> list[CheckResult]:
    """Fail if chance is excluded; warn if it is unlikely."""
    results = [
        CheckResult(
            name=name,
            verdict="fail" if p.chance <= checks.pooled_chance else "warn",
            summary=(
                f"column {p.column!r}: {p.what} over all sides ({_tidy(p.pooled):.6g}), not over"
                f" train ({p.train:.6g}): it was fitted on held-out rows, too"
            ),
            figures={
                "pooled": _tidy(p.pooled),
                "train": _tidy(p.train),
                "chance": float(f"{p.chance:.3g}"),
                "threshold": checks.pooled_chance,
            },
            evidence=(
                {
                    "column": p.column,
                    "statistic": p.what,
                    "over all sides": _tidy(p.pooled),
                    "over train": _tidy(p.train),
                },
            ),
            columns=(p.column,),
            remedy=(
                "take the column as it was before, and let the run fit scaling and filling on train"
            ),
        )
        for p in found
    ]
    text = {
        "pooled_scaling": "no column is scaled by statistics of all sides",
        "pooled_fill": "no column is filled with a statistic of all sides",
    }[name]
    return results or [
        CheckResult(
            name=name, verdict="pass", summary=text, figures={"threshold": checks.pooled_chance}
        )
    ]


def pooled_results(sides: Sides, sample: Sampled) -> list[CheckResult]:
    """Return the results for scaling and filling by statistics of all splits."""
    moments = find_moments(sides, sample)
    checks = sides.declaration.checks
    fills = find_pooled_fill(moments, sample, sides)
    scaled = [*find_pooled_scaling(moments, sides), *find_pooled_range(moments, sides)]
    return [
        *judge_pooled("pooled_scaling", scaled, checks),
        *judge_pooled("pooled_fill", fills, checks),
    ]
