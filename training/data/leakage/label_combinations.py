"""Columns that together give the label: a sum or product equals it, or a sum predicts a class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.label_proxies import FEWEST_ROWS, RULE_OF_THREE, label_evidence
from training.data.leakage.sampled import Codes, Flags, Floats, Label, Sampled
from training.data.leakage.scores import Halves, score_predictions

# times the squared distance of the classes that the columns would give if each had its own
# information
CANCELLED = 4.0
LEAST_COMPLETE = 0.8  # share of the rows that are looked at, of which every column has a value


class Combination(NamedTuple):
    """Numeric columns that give a label on rows they were not fitted on.

    They give a number as a weighted sum or a product of powers, or two classes by a high or
    low weighted sum (`score`). `certain`: without any error, on enough groups for that to matter.
    """

    columns: tuple[str, ...]
    label: str
    form: str
    weights: tuple[float, ...]
    unexplained: float
    certain: bool = True


def find_combinations(rows: Sampled, halves: Halves, checks: ChecksConfig) -> list[Combination]:
    """Find for each label the smallest set of columns that gives it exactly.

    They give a number as a sum or as a product, or a class by a sum.
    """
    found, most_unexplained = [], checks.combination_error
    for label in rows.labels:
        if label.kind != "regression":
            found += [
                c
                for k in range(label.targets.shape[1])
                if (c := _separating(rows, label, k, halves, checks)) is not None
            ]
            continue
        for form in ("sum", "product"):
            combination = _combination(rows, label, halves, form, most_unexplained)
            if combination is not None:
                found.append(combination)
                break
    return found


def _combination(
    rows: Sampled, label: Label, halves: Halves, form: str, most_unexplained: float
) -> Combination | None:
    known, target, columns = rows.train & ~np.isnan(label.values), label.values, rows.numeric
    if form == "product":
        known &= target > 0
        target = np.log(np.where(target > 0, target, 1.0))
        columns = {n: np.log(np.where(v > 0, v, np.nan)) for n, v in columns.items()}
    known = _complete(columns, known)
    a, b = halves.a & known, halves.b & known
    complete = {n: v for n, v in columns.items() if not np.isnan(v[known]).any() and _varies(v[a])}
    if len(complete) < 2 or min(a.sum(), b.sum()) < max(FEWEST_ROWS, 5 * len(complete)):
        return None
    names = _needed(complete, target, a, b, most_unexplained)
    if len(names) < 2:
        return None
    weights, unexplained = _fit(np.stack([complete[n] for n in names], axis=1), target, a, b)
    return Combination(tuple(names), label.name, form, tuple(weights), unexplained)


def _complete(columns: dict[str, Floats], known: Flags) -> Flags:
    """Return the known rows that have a value in as many columns as leave enough of them."""
    missing = {name: np.isnan(values) & known for name, values in columns.items()}
    kept, least = known, LEAST_COMPLETE * known.sum()
    for gaps in sorted(missing.values(), key=lambda gaps: int(gaps.sum())):
        if (kept & ~gaps).sum() >= least:
            kept = kept & ~gaps
    return kept


def _separating(
    rows: Sampled, label: Label, k: int, halves: Halves, checks: ChecksConfig
) -> Combination | None:
    """Find columns whose weighted sum nearly gives a class, while each alone says far less.

    Many good columns predict a class well together, and the best of many sets looks better than it
    is. So the set is chosen on A alone, once. It must hold on B and on the held-out rows, with
    errors by group. Its parts must cancel each other's noise; columns with their own information
    do not.
    """
    target = label.targets[:, k]
    known = ~np.isnan(target)
    a, b, held = (part & known for part in (halves.a, halves.b, ~rows.train))
    columns = {
        n: v
        for n, v in rows.numeric.items()
        if not np.isnan(v[known]).any() and np.isfinite(v[known]).all() and _varies(v[a])
    }
    if (
        len(columns) < 2
        or min(a.sum(), b.sum()) < max(FEWEST_ROWS, 5 * len(columns))
        or not 0 < target[a].mean() < 1
    ):
        return None
    # columns without information blur a sum that is fitted with them
    names = _chosen(columns, target, a, rows.group, checks.proxy_strength - 0.02)
    if len(names) < 2:
        return None
    inputs = np.stack([columns[n] for n in names], axis=1)
    weights, _ = _fit(inputs, target, a, b)
    total, unseen = (
        inputs @ weights,
        [part for part in (b, held) if part.sum() >= FEWEST_ROWS and 0 < target[part].mean() < 1],
    )
    scores = [
        score_predictions(total[part, None], target[part, None], "binary", rows.group[part])
        for part in unseen
    ]
    if not scores or min(s.strength - 2 * s.error for s in scores) < checks.proxy_strength:
        return None
    if _apart(total[b], target[b]) < CANCELLED * sum(
        _apart(columns[n][b], target[b]) for n in names
    ):
        return None
    groups = sum(len(np.unique(rows.group[part])) for part in unseen)
    certain = (
        min(s.strength for s in scores) == 1 and RULE_OF_THREE / groups <= 1 - checks.proxy_strength
    )
    return Combination(
        tuple(names), label.name, "score", tuple(weights), 1 - scores[0].strength, certain
    )


def _chosen(
    columns: dict[str, Floats], target: Floats, a: Flags, group: Codes, least: float
) -> list[str]:
    """Return the columns without which the sum fitted on A falls below `least` there.

    The result is empty if all columns together stay below it.
    """
    names = list(columns)
    if _separated(columns, names, target, a, group) < least:
        return []
    for name in sorted(names, key=lambda n: abs(_separated(columns, [n], target, a, group))):
        left = [n for n in names if n != name]
        if left and _separated(columns, left, target, a, group) >= least:
            names = left
    return names


def _separated(
    columns: dict[str, Floats], names: list[str], target: Floats, part: Flags, group: Codes
) -> float:
    """Return the strength of the weighted sum of columns on the part it is fitted on."""
    inputs = np.stack([columns[n] for n in names], axis=1)
    weights, _ = _fit(inputs, target, part, part)
    return score_predictions(
        (inputs[part] @ weights)[:, None], target[part][:, None], "binary", group[part]
    ).strength


def _apart(values: Floats, target: Floats) -> float:
    """Return the squared distance of the means of two classes, in variances within them.

    The distances of independent columns add up.
    """
    ups, downs = values[target > 0.5], values[target <= 0.5]
    within = (ups.var() * len(ups) + downs.var() * len(downs)) / len(values)
    return float((ups.mean() - downs.mean()) ** 2 / max(within, 1e-12))


def _varies(values: Floats) -> bool:
    return bool(len(values) and values.min() < values.max() and np.isfinite(values).all())


def _needed(
    columns: dict[str, Floats], target: Floats, a: Flags, b: Flags, most: float
) -> list[str]:
    """Return columns that an exact fit needs; empty if the fit is not exact.

    The weakest are tried first, so that copies are dropped.
    """
    names = list(columns)
    weights, unexplained = _fit(np.stack([columns[n] for n in names], axis=1), target, a, b)
    if unexplained > most:
        return []
    for name in sorted(names, key=lambda n: abs(weights[names.index(n)]) * columns[n][a].std()):
        left = [n for n in names if n != name]
        if left and _fit(np.stack([columns[n] for n in left], axis=1), target, a, b)[1] <= most:
            names = left
    return names


def _fit(inputs: Floats, target: Floats, a: Flags, b: Flags) -> tuple[Floats, float]:
    """Return weights of a least-squares fit on A, and the share of variance on B left unexplained.

    The weights are in the columns' own units.
    """
    mean, spread = inputs[a].mean(axis=0), inputs[a].std(axis=0) + 1e-300
    fitted = np.concatenate([(inputs[a] - mean) / spread, np.ones((int(a.sum()), 1))], axis=1)
    weights, *_ = np.linalg.lstsq(fitted, target[a], rcond=1e-10)
    predicted = (inputs[b] - mean) / spread @ weights[:-1] + weights[-1]
    total = ((target[b] - target[b].mean()) ** 2).sum()
    return weights[:-1] / spread, (
        float(((target[b] - predicted) ** 2).sum() / total) if total else 1.0
    )


def judge_combinations(
    found: list[Combination], rows: Sampled, checks: ChecksConfig
) -> list[CheckResult]:
    """Fail for every combination that gives the label, and name its columns.

    Warn if a sum predicts a class with some error, or on few groups.
    """
    figures = {"threshold": checks.combination_error}
    if not found:
        return [
            CheckResult(
                name="label_combination",
                verdict="pass",
                summary="no columns add up or multiply to the label",
                figures=figures,
            )
        ]
    results = []
    for c in found:
        sign = " × " if c.form == "product" else " + "
        terms = sign.join(
            f"{n}^{w:.3g}" if c.form == "product" else f"{w:.4g} × {n}"
            for n, w in zip(c.columns, c.weights, strict=True)
        )
        results.append(
            CheckResult(
                name="label_combination",
                verdict="fail" if c.certain else "warn",
                summary=(
                    f"columns {', '.join(map(repr, c.columns))} give {c.label!r}"
                    f" {'by the size of' if c.form == 'score' else 'exactly:'} {terms}"
                ),
                figures={**figures, "unexplained": float(f"{c.unexplained:.3g}")},
                evidence=label_evidence(rows, c.columns, c.label, rows.train),
                columns=c.columns,
                remedy=(
                    "declare role ignore for at least one of them: the label is computed from them,"
                    " so they are not known before it"
                ),
            )
        )
    return results
