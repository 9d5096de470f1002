"""Ladder of the gate: the champion changes, and the claimed score moves, by more than chance alone.

Of many equally good models, one is always the luckiest on the test rows. A gate that lets each
model pass that is not worse promotes that one in the end, and its score is too high: after a year
of nightly retrains by up to one standard error of a test. Here d = challenger - champion, with the
sign that more is better, is held against the noise

    noise = s × z,   z = normal quantile of 1 - LEVEL / k, at most MOST_ERRORS

with s the standard error of d (half of its interval over the interval's normal quantile) and k the
number of models that were scored on these rows (training/run/look_ledger.py). The luckiest of k
equal challengers exceeds it with a chance of about `LEVEL`. From 9 looks on z stays at
`MOST_ERRORS`: a larger one makes real gains wait, and the claim is safe without it.

- d > noise: better. It takes the champion's place, and the claim rises by d - noise.
- d >= -tolerance - 2 noise: equal. It is registered, the champion and its claim stay, unless the
  champion is stale (`register.stale_after`), or breaks a bound of `register.thresholds` on today's
  rows. With `register.replace: not_worse` it takes the place by the rule of
  training/registry/gate.py; the claim stays there, too.
- else: worse, and refused. Once the noise is for the challenger's bad luck, once for the champion's
  good luck, which made it champion.

Under `split.roll` each comparison is made on rows that came since the last one
(training/registry/fresh_rows.py), and the claim starts from the champion's score on them. With too
few of them the gate waits: the challenger is registered, and the champion stays.

Fresh rows begin again: k counts only models that saw them, and where hardly any of the rows of the
champion's claim are left (`LEAST_SHARE`), its score on today's rows is the claim to start from.

Source: Blum and Hardt 2015, The Ladder: a leaderboard answers each submission with its best score
so far unless the new one is better by more than a step, so that answers say little about the rows.
The paired standard error as a step is theirs as well (the parameter-free mechanism, section 3);
the quantile and the claim that rises by the excess alone were chosen by simulation
(docs/benchmarks-ratchet.md).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

from schemas.config import Declaration
from schemas.look_records import Claim, Window, look_at, standard_error
from schemas.records import CheckResult, EvaluationReport, Evidence, Interval, Record

LEVEL = 0.05
MOST_ERRORS = 2.5
NORMAL = NormalDist()
KEPT, WAITS = "kept", "waits"


class Comparison(Record):
    """Challenger and champion on the same rows, unseen by both; or the `problem` that prevented it.

    `difference`: challenger - champion, with the sign that more is better. `excluded_rows`: test
    rows that the champion learned from, or whose group it knows. `looks`: models that were scored
    on these rows. `claim`: of the champion; null where it rests on other rows. `stale`: why the
    champion's place is open to an equal; empty if it is not. `waits`: why the comparison has to
    wait; empty if it has not. `window`: the fresh rows of a split whose windows move on.
    """

    version: str
    identical: bool = False
    metric: str = ""
    rows: int = 0
    excluded_rows: int = 0
    champion: float | None = None
    challenger: float | None = None
    difference: Interval | None = None
    problem: str = ""
    looks: int = 1
    claim: float | None = None
    stale: str = ""
    waits: str = ""
    window: Window | None = None


class Place(NamedTuple):
    """The champion's condition, and whether the challenger takes its place."""

    condition: CheckResult
    replaces: bool = True


def noise_of(difference: Interval, confidence: float, looks: int) -> float | None:
    """Return the gain that chance alone explains among so many looks; None without an interval."""
    error = standard_error(difference, confidence)
    quantile = NORMAL.inv_cdf(1 - LEVEL / max(1, looks))
    return None if error is None else error * min(quantile, MOST_ERRORS)


def place_of(
    declaration: Declaration, comparison: Comparison | None, by_hand: bool = False
) -> Place:
    """Judge the challenger against the champion; the module docstring gives the rule.

    Args:
        declaration: its section `register` is used.
        comparison: None if there is no champion.
        by_hand: a person named the version: an equal one takes the place.
    """
    if comparison is None:
        return Place(_condition("there is no champion yet"))
    if comparison.identical:
        return Place(_condition(f"the same program as version {comparison.version}"))
    if comparison.waits:
        return Place(_condition(comparison.waits), replaces=False)
    difference = comparison.difference
    if comparison.problem or difference is None or difference.value is None:
        return Place(_incomparable(comparison))
    section = declaration.register_
    noise = noise_of(difference, declaration.evaluate.confidence, comparison.looks)
    value, high = difference.value, difference.high
    if section.replaces_equal:
        worse = value < -section.tolerance or (high is not None and high < -section.tolerance)
    else:
        worse = value < -section.tolerance - 2 * (noise or 0.0)
    better = noise is not None and value > noise
    open_to_equals = _breaks_a_bound(declaration, comparison) or comparison.stale
    replaces = better or section.replaces_equal or by_hand or bool(open_to_equals)
    words = "" if better or worse else _equal_words(comparison, noise, replaces, open_to_equals)
    return Place(_judged(declaration, comparison, noise, worse, words), worse or replaces)


def claim_of(
    declaration: Declaration,
    evaluation: EvaluationReport,
    comparison: Comparison | None,
    window: Window | None = None,
) -> Claim | None:
    """Return the score that a version claims; None if it was not compared.

    Args:
        declaration: gives the metric and its direction.
        evaluation: on test; its score is the claim of a first version.
        comparison: with the champion; None if there is none.
        window: test rows of a first version, where the windows of the split move on.
    """
    metric = declaration.register_.metric or declaration.metric
    if comparison is None:
        found = evaluation.metrics.get(metric)
        if found is None or found.value is None:
            return None
        look = look_at(evaluation.looks, metric)
        number = look.number if look else 1
        return Claim(metric=metric, value=found.value, looks=number, window=window)
    difference, base = comparison.difference, comparison.claim
    base = comparison.champion if base is None else base
    if base is None or difference is None or difference.value is None:
        return None
    noise = noise_of(difference, declaration.evaluate.confidence, comparison.looks)
    excess = 0.0 if noise is None else max(0.0, difference.value - noise)
    sign = 1 if declaration.metrics[metric] else -1
    facts = {"looks": comparison.looks, "noise": noise, "window": comparison.window}
    return Claim(metric=metric, value=base + sign * excess, **facts)


def look_tags(evidence: Evidence) -> dict[str, str]:
    """Return a version's tags on looks at its test rows, and on the score that it claims."""
    claim = evidence.gate.claim if evidence.gate else None
    return {f"bulkhead.looks.{look.metric}": str(look.number) for look in evidence.looks} | (
        {f"bulkhead.claimed.{claim.metric}": f"{claim.value:.6g}"} if claim else {}
    )


def _breaks_a_bound(declaration: Declaration, comparison: Comparison) -> str:
    """Return which bound the champion breaks on today's rows; empty if none."""
    bounds = declaration.register_.thresholds.get(comparison.metric)
    value = comparison.champion
    if bounds is None or value is None:
        return ""
    low = bounds.min is not None and value < bounds.min
    high = bounds.max is not None and value > bounds.max
    if not (low or high):
        return ""
    return f"version {comparison.version} breaks register.thresholds.{comparison.metric} today"


def _condition(summary: str) -> CheckResult:
    return CheckResult(name="champion", verdict="pass", summary=summary)


def _incomparable(comparison: Comparison) -> CheckResult:
    return CheckResult(
        name="champion",
        verdict="fail",
        summary=(
            f"cannot be compared with version {comparison.version}:"
            f" {comparison.problem or 'no difference was found'}"
        ),
        figures={"rows": comparison.rows, "excluded_rows": comparison.excluded_rows},
        remedy=(
            "keep the split (seed, cuts) of the champion so that test rows stay unseen, add new"
            " rows, or register under another name"
        ),
    )


def _equal_words(
    comparison: Comparison, noise: float | None, replaces: bool, open_to_equals: str
) -> str:
    value = comparison.difference.value if comparison.difference else None
    how = "equal within the noise"
    if noise is None:
        how = "the difference has no interval"
    elif value is not None and value < -noise:
        how = "worse, though the champion may be a lucky draw"
    if not replaces:
        return f"; {how}, so version {comparison.version} stays champion"
    return f"; {how}, and {open_to_equals}" if open_to_equals else f"; {how}"


def _judged(
    declaration: Declaration, comparison: Comparison, noise: float | None, worse: bool, words: str
) -> CheckResult:
    found, tolerance = (
        comparison.difference or Interval(value=None),
        declaration.register_.tolerance,
    )
    interval = (
        "" if found.low is None or found.high is None else f" [{found.low:+.4g}, {found.high:+.4g}]"
    )
    told = "" if noise is None else f", noise {noise:.4g} at look {comparison.looks}"
    excluded = f" ({comparison.excluded_rows} left out)" if comparison.excluded_rows else ""
    unseen = f"rows unseen by both{excluded}"
    if comparison.window is not None:
        unseen = f"rows that neither was trained, tuned or gated on{excluded},"
        unseen += f" {comparison.window.between}"
    return CheckResult(
        name="champion",
        verdict="fail" if worse else "pass",
        summary=(
            f"{comparison.metric} {comparison.challenger:.6g} against {comparison.champion:.6g} of"
            f" version {comparison.version} on {comparison.rows} {unseen}:"
            f" {found.value:+.4g}{interval}, more is better, tolerance {tolerance:g}{told}{words}"
        ),
        figures={
            "difference": found.value,
            "low": found.low,
            "high": found.high,
            "tolerance": tolerance,
            "noise": noise,
            "looks": comparison.looks,
            "rows": comparison.rows,
            "excluded_rows": comparison.excluded_rows,
        },
        remedy="keep the champion, improve the model, or raise register.tolerance" if worse else "",
    )
