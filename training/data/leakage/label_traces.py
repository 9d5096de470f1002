"""Traces of the label: nulls, values that only one class has, values equal to a numeric label."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.chance import binomial_tail
from training.data.leakage.label_proxies import FEWEST_ROWS, FINE, REMEDY, label_evidence
from training.data.leakage.sampled import Codes, Flags, Floats, Label, Sampled
from training.data.leakage.scores import Halves, Score, score_codes

LEAST_EQUAL = 3
LEAST_EMPTY = 0.05  # least share of a measurement's rows with one value that may mean no value
MOST_COMMON = 0.6  # largest share of a class for which a value that only it has is a surprise
EXTREME = 0.35  # share of a number's values that count as high, and as low


class Missingness(NamedTuple):
    """Strength of a column's empty rows, null or a value that means nothing was measured."""

    column: str
    label: str
    score: Score
    empty: str
    share: float


def find_missingness(rows: Sampled, halves: Halves) -> list[Missingness]:
    """Return the strength of each column's nulls or most frequent value, strongest first."""
    found = []
    for name in rows.columns:
        for empty, is_empty in _empties(rows, name).items():
            share = float(is_empty[rows.train].mean()) if rows.train.any() else 0.0
            if 0 < share < 1:
                codes = is_empty.astype(np.int64)
                found += [
                    Missingness(
                        name, label.name, _one_sided(codes, label, halves, rows.group), empty, share
                    )
                    for label in rows.labels
                ]
    return sorted(found, key=lambda m: (-m.score.strength, m.column))


def _empties(rows: Sampled, name: str) -> dict[str, Flags]:
    """Return masks [N] of empty rows: null, or a frequent value (0 where nothing was paid)."""
    if name in rows.category:
        return {"null": rows.category[name] < 0}
    values = rows.numeric[name]
    found, counts = np.unique(values[rows.train & ~np.isnan(values)], return_counts=True)
    masks = {"null": np.isnan(values)}
    if len(found) >= FINE and counts.max() >= LEAST_EMPTY * rows.train.sum():
        value = float(found[counts.argmax()])
        masks[f"{value:g}"] = values == value
    return masks


def _one_sided(codes: Codes, label: Label, halves: Halves, group: Codes) -> Score:
    """Return the strength for the best predicted class, or end of a number's values."""
    targets = _extremes(label).targets
    each = [
        score_codes(
            codes, label._replace(kind="binary", targets=targets[:, k : k + 1]), halves, group
        )
        for k in range(targets.shape[1])
    ]
    return max(each, key=lambda s: s.strength)


def judge_missingness(
    found: list[Missingness], rows: Sampled, checks: ChecksConfig
) -> list[CheckResult]:
    """Fail if nulls are the label; warn if they predict much of it."""
    results: list[CheckResult] = []
    for m in found:
        sure = m.score.strength - 2 * m.score.error
        if (
            m.score.rows < FEWEST_ROWS
            or sure < checks.missingness_strength
            or m.column in {c for r in results for c in r.columns}
        ):
            continue
        results.append(
            CheckResult(
                name="label_missingness",
                verdict="fail" if sure >= checks.proxy_strength else "warn",
                summary=(
                    f"whether {m.column!r} is {m.empty} ({m.share:.1%} of train) predicts"
                    f" {m.label!r} with strength {m.score.strength:.3f} of 1"
                ),
                figures={
                    "strength": round(m.score.strength, 4),
                    "share": round(m.share, 4),
                    "threshold": checks.missingness_strength,
                },
                evidence=label_evidence(rows, (m.column,), m.label, rows.train),
                columns=(m.column,),
                remedy=REMEDY,
            )
        )
    figures = {
        "strongest": round(found[0].score.strength, 4) if found else 0.0,
        "threshold": checks.missingness_strength,
    }
    return results or [
        CheckResult(
            name="label_missingness",
            verdict="pass",
            summary="nulls do not predict the label",
            figures=figures,
        )
    ]


class PureValue(NamedTuple):
    """Value whose rows all have the same, rarer label.

    It has its rows in each split, and its probability times the number of values checked.
    """

    column: str
    label: str
    code: int
    rows: int
    chance: float


def find_pure_values(rows: Sampled, most: float) -> list[PureValue]:
    """Find values that have only one label in every split, more often than by chance.

    Null counts as a value. The label is not the common one (for numbers: only high or only low
    values). Least likely first. The values are those of categories and of numbers that repeat; a
    value of a number must be shared by many rows. Probabilities are multiplied by the number of
    values that have enough rows to be a finding at all (Tarone 1990).

    Args:
        rows: the sample.
        most: the highest probability of a finding by chance, over all values.
    """
    looked_at = []
    for name in rows.columns:
        code = _value_codes(rows, name)
        once = _first_of_group(code, rows.group)
        for label in map(_extremes, rows.labels):
            looked_at += [
                (name, label.name, *_if_pure(code, once, target)) for target in label.targets.T
            ]
    tests = _testable(
        np.concatenate([np.zeros(0), *(chance for _, _, chance, _, _ in looked_at)]), most
    )
    found = [
        PureValue(name, label, int(value), int(number[value]), float(chance[value] * tests))
        for name, label, chance, number, pure in looked_at
        for value in np.flatnonzero(pure & (chance * tests <= most))
    ]
    return sorted(found, key=lambda p: (p.chance, p.column))


def _testable(least: Floats, most: float) -> int:
    """Return the number of tests that could be significant, given their least possible p-values.

    The p-values of others cannot fall below `most` with any outcome.

    Source: Tarone 1990, A modified Bonferroni method for discrete data.
    """
    ordered = np.sort(least)
    return next(
        k for k in range(1, len(ordered) + 2) if np.searchsorted(ordered, most / k, "right") <= k
    )


def _if_pure(codes: Codes, once: Flags, target: Floats) -> tuple[Floats, Floats, Flags]:
    """Return for each value the probability that all its rows have the label.

    Also return its rows, and whether they do (and the label is not the common one). The values of a
    column differ among themselves. How much they differ is estimated on the others (beta-binomial,
    by moments), so that the end of a scale that predicts the label throughout is no surprise. Rows
    of a group share more than the value: they count once.
    """
    from scipy.special import betaln

    known, size = ~np.isnan(target), int(codes.max(initial=0)) + 1
    number = np.bincount(codes[known & once], minlength=size).astype(np.float64)
    ups = np.bincount(codes[known & once], weights=target[known & once], minlength=size).astype(
        np.float64
    )
    downs = np.bincount(codes[known], weights=1 - target[known], minlength=size)
    others, rate, spread = _of_others(number, ups)
    a, b = (np.maximum(share * (1 / spread - 1), 1e-12) for share in (rate, 1 - rate))
    possible = (number > 0) & (others > 0) & (rate > 0) & (rate <= MOST_COMMON)
    chance = np.where(possible, np.exp(betaln(a + number, b) - betaln(a, b)), 1.0)
    return chance, number, possible & (downs == 0)


def _of_others(number: Floats, ups: Floats) -> tuple[Floats, Floats, Floats]:
    """Return for each value the rows of all others, their label's share, and its spread.

    The spread is how much the share differs among them (0: not at all, 1: each is pure).

    Source: the analysis-of-variance estimator of the correlation within classes, e.g. Ridout,
        Demétrio and Firth 1999.
    """
    others = number.sum() - number
    rate = (ups.sum() - ups) / np.maximum(others, 1)
    degrees = np.maximum((number > 0).sum() - (number > 0) - 1, 0)
    own = ups**2 / np.maximum(number, 1)
    squares = (own.sum() - own - rate**2 * others) / np.maximum(rate * (1 - rate), 1e-12)
    effective = others - ((number**2).sum() - number**2) / np.maximum(others, 1)
    spread = np.where(
        degrees > 0, (squares - degrees) / np.maximum(effective - degrees, 1e-12), 0.0
    )
    return others, rate, np.clip(spread, 1e-9, 1 - 1e-9)


def _extremes(label: Label) -> Label:
    """Return a class as it is (two: both); of a number, whether it is among the extremes."""
    if label.kind != "regression":
        return (
            label._replace(
                kind="multiclass",
                targets=np.concatenate([label.targets, 1 - label.targets], axis=1),
            )
            if label.targets.shape[1] == 1
            else label
        )
    rank = label.targets[:, :1]
    known = np.where(np.isnan(rank), np.nan, 1.0)
    return label._replace(
        kind="multiclass",
        targets=np.concatenate([known * (rank > 1 - EXTREME), known * (rank < EXTREME)], axis=1),
    )


def _value_codes(rows: Sampled, name: str) -> Codes:
    if name in rows.category:
        return rows.category[name] + 1
    found, codes = np.unique(rows.numeric[name], return_inverse=True)  # NaN is one value
    # of a measurement only its nulls: rows of one value are neighbours in time or place, not
    # independent
    if len(found) >= FINE:
        return np.isnan(rows.numeric[name]).astype(np.int64)
    return np.asarray(codes, dtype=np.int64)


def _first_of_group(codes: Codes, group: Codes) -> Flags:
    pairs = group * (int(codes.max(initial=0)) + 1) + codes
    _, first = np.unique(pairs, return_index=True)
    chosen = np.zeros(len(codes), dtype=bool)
    chosen[first] = True
    return chosen


def judge_pure_values(
    found: list[PureValue], rows: Sampled, checks: ChecksConfig
) -> list[CheckResult]:
    """Warn, never fail: a value may legitimately belong to one class."""
    results: dict[str, CheckResult] = {}
    for p in found:
        if p.column in results:
            continue
        has = _value_codes(rows, p.column) == p.code
        value = rows.value(p.column, int(np.flatnonzero(has)[0]))
        results[p.column] = CheckResult(
            name="pure_values",
            verdict="warn",
            summary=(
                f"all {p.rows} sampled rows with {p.column!r} = {value!r} have the rarer or an"
                f" extreme {p.label!r} (chance {p.chance:.1g})"
            ),
            figures={
                "rows": p.rows,
                "chance": float(f"{p.chance:.3g}"),
                "threshold": checks.pure_value_chance,
            },
            evidence=label_evidence(rows, (p.column,), p.label, has),
            columns=(p.column,),
            remedy=(
                "ask when the value is written: if after the outcome, declare role ignore for the"
                " column; else allow the finding with a reason"
            ),
        )
    passed = CheckResult(
        name="pure_values",
        verdict="pass",
        summary="no value belongs to one class alone but by chance",
        figures={"threshold": checks.pure_value_chance},
    )
    return list(results.values()) or [passed]


class EqualValues(NamedTuple):
    """Rows of train whose column equals the numeric label, compared with chance.

    It holds the number of equal rows, of all rows, the number expected by chance, and its
    probability.
    """

    column: str
    label: str
    rows: int
    total: int
    expected: float
    chance: float


def find_equal_values(rows: Sampled) -> list[EqualValues]:
    """Find the rows where a numeric column and label are equal, compared with chance.

    Chance is the product of the frequencies of the values.
    """
    found = []
    for label in rows.labels:
        if label.kind != "regression":
            continue
        for name, values in rows.numeric.items():
            both = np.flatnonzero(rows.train & ~np.isnan(values) & ~np.isnan(label.values))
            equal = int((values[both] == label.values[both]).sum())
            if equal >= LEAST_EQUAL:
                expected = _expected_equal(values[both], label.values[both])
                found.append(
                    EqualValues(
                        name,
                        label.name,
                        equal,
                        len(both),
                        expected,
                        binomial_tail(equal, len(both), (expected + 1) / (len(both) + 1))
                        * len(rows.numeric),
                    )
                )
    return sorted(found, key=lambda e: (e.chance, e.column))


def _expected_equal(values: Floats, labels: Floats) -> float:
    """Return the equal pairs that remain when labels move within sorted neighbourhoods.

    This is the number that similarity alone gives. Each value gets a label from a row of similar
    value, so that a column which is merely close to the label does not count.
    """
    order = np.lexsort((labels, values))
    return float((np.roll(labels[order], max(1, len(order) // 200)) == values[order]).sum())


def judge_equal_values(
    found: list[EqualValues], rows: Sampled, checks: ChecksConfig
) -> list[CheckResult]:
    """Fail if most values are the label itself; warn if more are than chance explains."""
    results = []
    for e in found:
        if e.chance > checks.equal_values:
            continue
        label = next(item for item in rows.labels if item.name == e.label)
        results.append(
            CheckResult(
                name="equal_values",
                verdict="fail" if 2 * e.rows > e.total else "warn",
                summary=(
                    f"column {e.column!r} equals {e.label!r} in {e.rows} of {e.total} sampled train"
                    f" rows where about {e.expected:.0f} would by chance"
                ),
                figures={
                    "rows": e.rows,
                    "expected": round(e.expected, 2),
                    "chance": float(f"{e.chance:.3g}"),
                    "threshold": checks.equal_values,
                },
                evidence=label_evidence(
                    rows,
                    (e.column,),
                    e.label,
                    rows.train & (rows.numeric[e.column] == label.values),
                ),
                columns=(e.column,),
                remedy=REMEDY,
            )
        )
    return results or [
        CheckResult(
            name="equal_values",
            verdict="pass",
            summary="no column repeats the label's values",
            figures={"threshold": checks.equal_values},
        )
    ]
