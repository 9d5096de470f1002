"""Two columns that are equal in the rows of some classes alone.

Such are the price of what was chosen and the price of one of the choices, or an amount paid and an
amount due.

Shapes: N rows, C columns.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.label_proxies import (
    FEWEST_CUT,
    FINE,
    RULE_OF_THREE,
    label_evidence,
)
from training.data.leakage.sampled import Flags, Floats, Label, Sampled

FIRST_ROWS = 200  # in which the pairs that may be equal at times are found
MOST_COLUMNS = 1_000  # that are compared with each other; further ones are not looked at
SELDOM = 0.02  # share of equal rows among them: fewer are no class


class EqualColumns(NamedTuple):
    """Two columns, the label of which some classes have them equal, and these classes' rows [N]."""

    columns: tuple[str, str]
    label: str
    rows: Flags


def find_equal_columns(rows: Sampled, checks: ChecksConfig) -> list[EqualColumns]:
    """Find pairs of measurements that are equal in the rows of some classes and in no others.

    Settings with few values are left out: two of them may be equal by rule (exclusive or).
    """
    labels = [label for label in rows.labels if label.kind != "regression"]
    if not labels:
        return []
    fine = {n: v for n, v in rows.numeric.items() if len(np.unique(v[~np.isnan(v)])) >= FINE}
    return [
        EqualColumns(pair, label.name, where)
        for pair in _equal_at_times(fine)
        for label in labels
        for where in _rows_of_classes(fine[pair[0]] == fine[pair[1]], rows, label, checks)
    ]


def _equal_at_times(columns: dict[str, Floats]) -> list[tuple[str, str]]:
    """Return the pairs of columns that are equal in some of the first rows, but not in all."""
    if len(columns) < 2:
        return []
    names = list(columns)[:MOST_COLUMNS]
    first = np.stack([columns[name][:FIRST_ROWS] for name in names])
    shares = np.array([(first == row).mean(axis=1) for row in first])
    return [
        (names[i], names[j])
        for i, j in combinations(range(len(names)), 2)
        if SELDOM <= shares[i, j] <= 1 - SELDOM
    ]


def _rows_of_classes(
    equal: Flags, rows: Sampled, label: Label, checks: ChecksConfig
) -> list[Flags]:
    """Return the rows of the classes in which alone a pair is equal; none on too few groups."""
    targets = label.targets
    if targets.shape[1] == 1:
        targets = np.concatenate([targets, 1 - targets], axis=1)
    known = ~np.isnan(targets).any(axis=1)
    if RULE_OF_THREE / max(1, len(np.unique(rows.group[known]))) > 1 - checks.proxy_strength:
        return []
    inside: Flags = np.zeros_like(known)
    for target in targets.T:
        of_class = known & (target > 0.5)
        if not of_class.any():
            continue
        share = equal[of_class].mean()
        if 1 - checks.proxy_strength < share < checks.proxy_strength:
            return []
        inside |= of_class & (share >= checks.proxy_strength)
    outside = known & ~inside
    return [inside] if min(inside.sum(), outside.sum()) >= FEWEST_CUT else []


def judge_equal_columns(found: list[EqualColumns], rows: Sampled) -> list[CheckResult]:
    """Fail for each label whose classes pairs of columns tell by being equal.

    A column that is in several pairs is the one that holds the answer.
    """
    results = []
    for label in dict.fromkeys(pair.label for pair in found):
        pairs = [pair for pair in found if pair.label == label]
        often = Counter(name for pair in pairs for name in pair.columns).most_common(2)
        several = often[0][1] > 1 and often[0][1] > often[1][1]
        columns = (often[0][0],) if several else pairs[0].columns
        chosen = [pair for pair in pairs if columns[0] in pair.columns]
        others = [name for pair in chosen for name in pair.columns if name != columns[0]]
        each = ", each" if len(others) > 1 else ""
        results.append(
            CheckResult(
                name="label_combination",
                verdict="fail",
                summary=(
                    f"column {columns[0]!r} equals {', '.join(map(repr, others[:5]))}{each} in the"
                    f" rows of some values of {label!r} alone"
                ),
                figures={"pairs": len(pairs), "rows": int(chosen[0].rows.sum())},
                evidence=label_evidence(rows, (columns[0], others[0]), label, chosen[0].rows),
                columns=columns,
                remedy=(
                    f"declare role ignore for {columns[0]!r} if it is written together with the"
                    " label, so that it is not known before it"
                ),
            )
        )
    return results
