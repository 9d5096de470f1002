"""Numbers that replace a category by its mean label.

Encoded on train they know train's labels; encoded on all rows, the test's as well. Each distinct
value of the column is a category. Its mean label is taken over train and over all splits; the
column follows one or the other. Smoothing towards the overall mean by any number of rows is tried
for both, so that shrinkage is not mistaken for test labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.engine.engine import ident, rows
from training.data.leakage.label_sql import LabelNumber, label_numbers
from training.data.leakage.sampled import Floats, Sampled
from training.data.leakage.sides import Sides

FEWEST_CODES, FEWEST_UNSEEN, MOST_CODES = 8, 4, 20_000
SMOOTHING = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 100.0, 200.0, 300.0, 500.0, 1000.0)
ROUNDING = 1e-12
EVIDENCE_CODES = 5
EXACT = 1e-6  # unexplained share of a code's variance: rounding
# a code that follows all rows this closely, and train this many times less so
CLOSE, RATIO = (0.05, 4.0)


class TargetCodes(NamedTuple):
    """Column and label, with the share of the codes' variance that mean labels leave unexplained.

    The mean labels are those of train, and of all splits. `unseen`: the same for codes that no
    train row has, by the mean labels of the held-out rows.
    """

    column: str
    label: str
    codes: int
    by_train: float
    by_all: float
    unseen: float = 1.0
    shown: tuple[dict[str, Any], ...] = ()  # some codes next to the mean labels that they may be


def find_target_codes(sides: Sides, sample: Sampled) -> list[TargetCodes]:
    """Find numeric columns that follow mean labels closely; those of all splits first.

    The columns have few enough values to encode categories.
    """
    found, labels = [], label_numbers(sides, with_places=True)
    for name, values in sample.numeric.items():
        known = values[~np.isnan(values)]
        distinct = len(np.unique(known))
        if (
            distinct < FEWEST_CODES
            or distinct > 0.2 * len(known)
            or np.array_equal(known, np.floor(known))
        ):
            continue
        found += [codes for label in labels if (codes := _codes(sides, name, label)) is not None]
    return sorted(found, key=lambda f: (min(f.by_all / max(f.by_train, 1e-12), f.unseen), f.column))


def _codes(sides: Sides, name: str, label: LabelNumber) -> TargetCodes | None:
    parts = " union all ".join(
        f"select '{side}' as side, {ident(name)} as code, {label.sql} as v from {relation}"
        for side, relation in sides.relations.items()
    )
    train = "filter (where side = 'train')"
    sql = (
        f"select code, count(v) as n, sum(v) as s, count(v) {train} as train_n, coalesce(sum(v)"
        f" {train}, 0) as train_s from ({parts}) where code is not null and isfinite(code) group by"
        f" code order by code limit {MOST_CODES}"
    )
    table = np.asarray(rows(sides.connection, sql), dtype=np.float64)
    if not len(table):
        return None
    both, alone = (
        (table[:, 3] > 0) & (table[:, 1] > table[:, 3]),
        (table[:, 3] == 0) & (table[:, 1] > 0),
    )
    mean = table[:, 2].sum() / max(table[:, 1].sum(), 1)
    by_train = by_all = unseen = 1.0
    if both.sum() >= FEWEST_CODES:
        code, count, total, train_count, train_total = table[both].T
        by_all = _unexplained(code, count, total, mean, count)
        by_train = _unexplained(
            code, train_count, train_total, table[:, 4].sum() / max(table[:, 3].sum(), 1), count
        )
    if alone.sum() >= FEWEST_UNSEEN:
        code, count, total, _, _ = table[alone].T
        unseen = _unexplained(code, count, total, mean, count)
    return TargetCodes(
        name,
        label.name,
        len(table),
        by_train,
        by_all,
        unseen,
        _shown(name, label.name, table[both | alone]),
    )


def _shown(name: str, label: str, table: Floats) -> tuple[dict[str, Any], ...]:
    """Return codes with held-out rows, and the mean label of their rows in all splits and in train.

    The codes with most rows come first.
    """
    return tuple(
        {
            name: code,
            "rows": int(count),
            f"mean {label}": _six(total / count),
            "train rows": int(number),
            "of train": _six(part / number) if number else None,
        }
        for code, count, total, number, part in table[np.argsort(-table[:, 1], kind="stable")][
            :EVIDENCE_CODES
        ].tolist()
    )


def _unexplained(code: Floats, count: Floats, total: Floats, mean: float, weight: Floats) -> float:
    """Return the share of the codes' variance that the best smoothed mean label leaves unexplained.

    The comparison is up to a linear map.
    """
    shares = []
    for rows_of_mean in SMOOTHING:
        encoded = (total + rows_of_mean * mean) / (count + rows_of_mean)
        centred, target = (
            encoded - np.average(encoded, weights=weight),
            code - np.average(code, weights=weight),
        )
        power, spread = (weight * centred**2).sum(), (weight * target**2).sum()
        shares.append(
            1 - (weight * centred * target).sum() ** 2 / (power * spread)
            if power > 0 and spread > 0
            else 1.0
        )
    least = max(min(shares), 0.0)
    # below, sums of a parallel engine differ from run to run
    return _short(least) if least > ROUNDING else 0.0


def judge_target_codes(found: list[TargetCodes], checks: ChecksConfig) -> list[CheckResult]:
    """Fail if the codes are the mean labels of all splits and not of train.

    Warn if they follow them much more closely.
    """
    results: dict[str, CheckResult] = {}
    for f in found:
        ratio = f.by_train / max(f.by_all, 1e-12)
        exact = f.unseen <= EXACT or (f.by_all <= EXACT and f.by_train > 100 * max(f.by_all, 1e-12))
        if f.column in results or not (exact or (f.by_all <= CLOSE and ratio >= RATIO)):
            continue
        how = f"that leaves {f.by_all:.2g} of it unexplained, train's mean {f.by_train:.2g}"
        if f.unseen <= EXACT:
            how = f"values that no train row has leave {f.unseen:.2g} of it unexplained"
        results[f.column] = CheckResult(
            name="pooled_target_codes",
            verdict="fail" if exact else "warn",
            summary=(
                f"column {f.column!r} encodes categories by the mean of {f.label!r} over all sides:"
                f" {how}"
            ),
            figures={
                "codes": f.codes,
                "by_all": _short(f.by_all),
                "by_train": _short(f.by_train),
                "unseen": _short(f.unseen),
                "threshold": EXACT,
            },
            evidence=f.shown,
            columns=(f.column,),
            remedy="give the category itself, and let the run encode it on train",
        )
    text = "no column encodes categories by labels of the held-out sides"
    return list(results.values()) or [
        CheckResult(
            name="pooled_target_codes",
            verdict="pass",
            summary=text,
            figures={"columns": len(found), "threshold": EXACT},
        )
    ]


def _six(value: float) -> float:
    """Round off the last bits, in which sums of a parallel engine differ from run to run."""
    return float(f"{value:.6g}")


def _short(value: float) -> float:
    return float(f"{value:.3g}")
