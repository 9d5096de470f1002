"""Columns that give the label away, alone or together.

One column predicts it (almost) alone, or little is known without one column, or several add up to
it. Each is learned on one half of train and scored on the other. The halves are made like the
declared split.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.errors import counted
from schemas.records import CheckResult
from training.data.leakage.lone_columns import (
    LEAST_ALONE,
    MOST_COMPANY,
    OwnPast,
    holds_labels_of_other_rows,
    left_open,
)
from training.data.leakage.sampled import Codes, Flags, Floats, Label, Sampled
from training.data.leakage.scores import (
    Halves,
    Score,
    column_codes,
    first_seen,
    learned,
    score_codes,
    score_predictions,
)

EVIDENCE_ROWS = 5
FEWEST_ROWS = 50  # of each half; below it, a strength says little
FINE = 32  # least distinct values of a measurement; fewer are a setting
# strength alone, below which a column dominates nothing
LEAST_DOMINANT, LEAST_DOMINANT_COARSE = (0.4, 0.88)
# strength of a column with as few values as the label, or with too few others to compare
LEAST_ALIKE, LEAST_UNRIVALLED = (
    0.7,
    0.8,
)
# share of what a column leaves open that others explain: together they make up the label, as the
# inputs of a formula do
LEAST_SHARED = 0.5
FEWEST_OTHERS = 3  # compared with a dominant column
FEWEST_CUT = 20  # rows of each class that one cut through a measurement tells apart
# over so many groups without an error, this is the upper bound of the error's share (95 %)
RULE_OF_THREE = 3.0
RIDGE = 1e-3
REMEDY = (
    "declare role ignore for it if it is not known when the prediction is made, or allow the"
    " finding with a reason"
)


class Proxy(NamedTuple):
    """One column and one label, with strengths of the column, of all, and of all others.

    The last two are NaN if not computed, as is `rest`: the share of what the column leaves open
    that the others explain. `is_alias`: it has hardly more values than the label has classes.
    `least_alone`: strength from which it explains nearly all of the label. `cut`: full strength
    where every row of one class lies above every row of the other.
    """

    column: str
    label: str
    alone: Score
    together: float = np.nan
    others: float = np.nan
    distinct: int = 0
    is_alias: bool = False
    rest: float = np.nan
    least_alone: float = np.inf
    cut: Score | None = None

    @property
    def is_lone(self) -> bool:
        """Return True if it explains nearly all of the label and nothing else explains any."""
        return (
            self.alone.strength - 2 * self.alone.error >= self.least_alone
            and self.distinct >= FINE
            and self.others <= MOST_COMPANY
            and self.rest <= MOST_COMPANY
        )

    @property
    def ratio(self) -> float:
        """Return how many times more of the label is unexplained without the column."""
        return float((1 - self.others) / max(1 - self.together, 1e-6))


def find_proxies(rows: Sampled, halves: Halves) -> list[Proxy]:
    """Return the strength of every column for the label that it predicts best, strongest first."""
    codes = {name: column_codes(rows, name, halves.a) for name in rows.columns}
    best: dict[str, Proxy] = {}
    for label in rows.labels:
        alone = {name: score_codes(code, label, halves, rows.group) for name, code in codes.items()}
        together = combined_strength(codes, label, halves, rows.group)
        for name, score in alone.items():
            found = Proxy(name, label.name, score, distinct=_distinct(rows, name))
            found = found._replace(
                is_alias=label.kind != "regression"
                and found.distinct <= len(np.unique(label.values[~np.isnan(label.values)])) + 1
            )
            if score.strength >= LEAST_DOMINANT and len(codes) > FEWEST_OTHERS:
                company = {n: c for n, c in codes.items() if n != name}
                others = combined_strength(company, label, halves, rows.group)
                found = _with_rest(
                    found._replace(together=together, others=others), rows, label, halves, company
                )
            found = found._replace(cut=_cut(rows, name, label))
            if name not in best or found.alone.strength > best[name].alone.strength:
                best[name] = found
    return sorted(best.values(), key=lambda p: (-p.alone.strength, p.column))


def _cut(rows: Sampled, name: str, label: Label) -> Score | None:
    """Return full strength if one value of a measurement divides two classes without an error.

    Bins are too wide to see that in few rows. The error is half the bound of the rule of three
    over the groups of all sides.
    """
    if label.kind != "binary" or name not in rows.numeric:
        return None
    known = ~np.isnan(label.targets[:, 0])
    values, ups = rows.numeric[name][known], label.targets[known, 0] > 0.5
    if np.isnan(values).any() or min(ups.sum(), (~ups).sum()) < FEWEST_CUT:
        return None
    high, low = values[ups], values[~ups]
    if not (high.min() > low.max() or high.max() < low.min()) or len(np.unique(values)) < FINE:
        return None
    groups = len(np.unique(rows.group[known]))
    return Score(1.0, RULE_OF_THREE / groups / 2, len(values))


def _with_rest(
    proxy: Proxy, rows: Sampled, label: Label, halves: Halves, company: dict[str, Codes]
) -> Proxy:
    """Return the proxy with what others explain of the rest, if it is a number."""
    least, name = LEAST_ALONE.get(label.kind), proxy.column
    if name not in rows.numeric or least is None:
        return proxy
    rest = combined_strength(company, left_open(rows, name, label, halves.a), halves, rows.group)
    is_lag = holds_labels_of_other_rows(rows, name, label)
    return proxy._replace(rest=rest, least_alone=np.inf if is_lag else least)


def _distinct(rows: Sampled, name: str) -> int:
    return (
        len(np.unique(rows.numeric[name][rows.train]))
        if name in rows.numeric
        else len(np.unique(rows.category[name][rows.train]))
    )


def combined_strength(codes: dict[str, Codes], label: Label, halves: Halves, group: Codes) -> float:
    """Return the strength of all columns together.

    Target means are learned on one half of A and weighted by ridge regression on its other half.
    """
    known = ~np.isnan(label.targets[:, 0])
    a, b = np.flatnonzero(halves.a & known), halves.b & known
    if not codes or len(a) < FEWEST_ROWS or b.sum() < FEWEST_ROWS:
        return 0.0
    _, place = first_seen(group[a])
    first, second = _mask(a[place % 2 == 0], len(known)), _mask(a[place % 2 == 1], len(known))
    predicted = np.zeros(label.targets.shape)
    for k in range(label.targets.shape[1]):
        target = label.targets[:, k : k + 1]
        inputs = np.stack(
            [learned(code, target, first)[code, 0] for code in codes.values()], axis=1
        )
        predicted[:, k] = _ridge(inputs, target[:, 0], second)
    return score_predictions(predicted[b], label.targets[b], label.kind, group[b]).strength


def _ridge(inputs: Floats, target: Floats, part: Flags) -> Floats:
    """Return predictions [N] of a ridge regression that is fitted on a part."""
    centred = inputs - inputs[part].mean(axis=0)
    fitted = centred[part]
    penalty = RIDGE * len(fitted) * (fitted.var(axis=0) + 1e-9)
    wanted = target[part] - target[part].mean()
    if fitted.shape[1] <= len(fitted):
        weights = np.linalg.solve(fitted.T @ fitted + np.diag(penalty), fitted.T @ wanted)
    else:  # the same weights from a system of as many equations as there are rows
        kernel = (fitted / penalty) @ fitted.T
        kernel[np.diag_indices_from(kernel)] += 1.0
        weights = fitted.T @ np.linalg.solve(kernel, wanted) / penalty
    return np.asarray(np.clip(centred @ weights + target[part].mean(), -1, 2))


def _mask(positions: Codes, size: int) -> Flags:
    mask = np.zeros(size, dtype=bool)
    mask[positions] = True
    return mask


def judge_proxies(
    found: list[Proxy],
    rows: Sampled,
    halves: Halves,
    checks: ChecksConfig,
    past: OwnPast | None = None,
) -> list[CheckResult]:
    """Fail for a column that predicts the label as well as the label itself would.

    Fail also for one that explains nearly all of it where nothing else does. Warn for one that
    comes close or that dominates all others.

    Args:
        found: columns and their strengths.
        rows: the sample.
        halves: of train.
        checks: thresholds.
        past: tells lawful lags of the label from other columns, and how much a lag says; none
            are known without it.
    """
    found = [
        p._replace(rest=np.nan) if p.is_lone and past and past.share(p.label) > MOST_COMPANY else p
        for p in found
    ]
    results = [
        _proxy_result(p, verdict, why, rows, checks)
        for p in found
        for verdict, why in [_verdict(p, checks)]
        if verdict == "fail" or (verdict == "warn" and not (past and past.holds(p.column, p.label)))
    ]
    if results:
        return results
    top = found[0] if found else None
    small = min(int(halves.a.sum()), int(halves.b.sum()))
    text = (
        f"no column predicts the label by itself; the strongest is {top.column!r} with"
        f" {top.alone.strength:.2f} of 1"
        if top
        else "no column to look at"
    )
    if small < FEWEST_ROWS:
        text = f"not decided: a half of train has {counted(small, 'row')}, {FEWEST_ROWS} are needed"
    return [
        CheckResult(
            name="label_proxy",
            verdict="pass",
            summary=text,
            figures=_figures(top, checks) if top else {"threshold": checks.proxy_strength},
        )
    ]


def _verdict(proxy: Proxy, checks: ChecksConfig) -> tuple[str, str]:
    alone = proxy.alone
    if alone.rows < FEWEST_ROWS:
        return "pass", ""
    if alone.strength - 2 * alone.error >= checks.proxy_strength:
        return "fail", f"predicts {proxy.label!r} by itself as if it were the label"
    cut = proxy.cut
    if cut and cut.strength - 2 * cut.error >= checks.proxy_strength:
        return (
            "fail",
            f"tells the values of {proxy.label!r} apart in {counted(cut.rows, 'row')}, by one cut",
        )
    if proxy.is_lone:
        return (
            "fail",
            (
                f"explains nearly all of {proxy.label!r}, and nothing else does: all other columns"
                f" together reach {max(proxy.others, 0.0):.2f} of 1, as another measurement of the"
                " same thing would leave it"
            ),
        )
    if proxy.rest >= LEAST_SHARED:
        return "pass", ""
    if alone.strength - 2 * alone.error >= checks.proxy_warning:
        return "warn", f"almost predicts {proxy.label!r} by itself"
    if alone.strength - 2 * alone.error >= (
        LEAST_ALIKE if proxy.is_alias else LEAST_UNRIVALLED if np.isnan(proxy.together) else 1.0
    ):
        return "warn", (
            f"has as few values as {proxy.label!r} and mostly the same"
            if proxy.is_alias
            else f"predicts most of {proxy.label!r}"
        )
    least = LEAST_DOMINANT if proxy.distinct >= FINE else LEAST_DOMINANT_COARSE
    if alone.strength - 2 * alone.error >= least and proxy.ratio >= checks.dominance_ratio:
        return (
            "warn",
            (
                f"knows more of {proxy.label!r} than all other columns together: without it"
                f" {proxy.ratio:.1f} times as much stays unexplained"
            ),
        )
    return "pass", ""


def _figures(proxy: Proxy, checks: ChecksConfig) -> dict[str, float | int | str | None]:
    shown: dict[str, float | int | str | None] = {
        "strength": round(proxy.alone.strength, 4),
        "error": round(proxy.alone.error, 4),
        "rows": proxy.alone.rows,
    }
    if np.isfinite(proxy.together):
        shown |= {
            "all_columns": round(proxy.together, 4),
            "other_columns": round(proxy.others, 4),
            "ratio": round(proxy.ratio, 2),
        }
    return {**shown, "threshold": checks.proxy_strength}


def _proxy_result(
    proxy: Proxy, verdict: Any, why: str, rows: Sampled, checks: ChecksConfig
) -> CheckResult:
    strength = f"(strength {proxy.alone.strength:.3f} of 1 on train rows it was not learned on)"
    return CheckResult(
        name="label_proxy",
        verdict=verdict,
        summary=f"column {proxy.column!r} {why} {strength}",
        figures=_figures(proxy, checks),
        evidence=label_evidence(rows, (proxy.column,), proxy.label, rows.train),
        columns=(proxy.column,),
        remedy=REMEDY,
    )


def label_evidence(
    rows: Sampled, columns: tuple[str, ...], label: str, where: Flags, most: int = EVIDENCE_ROWS
) -> tuple[dict[str, Any], ...]:
    """Return the first rows of a mask: id, the columns' values and the label next to each other."""
    values = next(item.values for item in rows.labels if item.name == label)
    shown = np.flatnonzero(where & ~np.isnan(values))[:most]
    return tuple(
        {
            "id": str(rows.ids[i]),
            **{c: rows.value(c, int(i)) for c in columns},
            f"label {label}": float(values[i]),
        }
        for i in shown
    )
