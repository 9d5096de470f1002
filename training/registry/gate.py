"""Gate of the registry: may a model be registered and replace the champion? Pure functions.

Each condition has its own verdict:

- `threshold`: each declared test metric keeps its bounds.
- `slices`: each declared slice of the test rows keeps the bounds of `register.slices`.
- `checks`: no check of the run failed (warnings and allowed findings pass).
- `skill`: the model beats the constant baseline, if `register.require_skill` is set; too few test
  rows count as no skill.
- `baselines`: no simpler baseline is better beyond uncertainty, except those of
  `register.allow_behind`.
- `champion`: on test rows that neither model learned from, the challenger is not worse than the
  champion. d = challenger - champion, with its sign set so that more is better, has a paired
  bootstrap interval. Whether d is more than chance, and who is champion then, is decided in
  training/registry/ladder.py. With `register.replace: not_worse` it fails if d or the interval's
  upper end is below -`register.tolerance`. If only the lower end is below it, it passes: one draw
  decides nothing.

A challenger that passes and is equal within the noise is `kept`: registered, but not champion. One
that passes while too few fresh rows are there to compare (`split.roll`) `waits`, likewise. A
program with the champion's SHA-256 is `unchanged`: neither better nor worse, and not registered
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from schemas.config import Declaration, Threshold
from schemas.errors import first_few
from schemas.look_records import Window
from schemas.records import CheckResult, EvaluationReport, GateReport, Interval
from schemas.slice_records import Slices, SliceScore
from training.evaluation.next_step import CONSTANTS, NAMES, perfect_baselines
from training.formatting import metric_name, number, plural
from training.objectives.bootstrap import paired_difference
from training.objectives.measures import declared_measures
from training.objectives.metrics import compute_predictions
from training.objectives.targets import Targets, decided
from training.registry.ladder import KEPT, WAITS, Comparison, claim_of, place_of

MIN_ROWS = 30  # fewer unseen rows are too few to compare with a champion
UNCHANGED = "unchanged"
Pair = tuple[Mapping[str, float], Mapping[str, float]]
NOTHING: Pair = ({}, {})


def compare(
    declaration: Declaration,
    version: str,
    challenger: np.ndarray,
    champion: np.ndarray,
    target: np.ndarray,
    unseen: np.ndarray,
    *,
    group: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    labels: Targets = (),
    thresholds: Pair = NOTHING,
) -> Comparison:
    """Compare both models on the unseen rows, with the paired interval of their difference.

    Args:
        declaration: gives metric, number of resamples and confidence.
        version: version of the champion.
        challenger: probabilities [N, C] or values [N] in the label's units.
        champion: like `challenger`, with the same classes.
        target: class indices or values [N].
        unseen: mask [N] of rows that the champion has not learned from; the challenger has learned
            from none of them.
        group: if given, whole groups are resampled.
        weight: sample weights [N].
        labels: for several labels; predictions are then [N, K], targets [N, L].
        thresholds: label to threshold, of the challenger and of the champion.
    """
    metric = declaration.register_.metric or declaration.metric
    rows, excluded = int(unseen.sum()), int((~unseen).sum())
    facts = {"version": version, "metric": metric, "rows": rows, "excluded_rows": excluded}
    if rows < min(MIN_ROWS, len(unseen)) or rows == 0:
        return Comparison(
            **facts,
            problem=(
                f"only {rows} of {len(unseen)} test rows are unseen by the champion, {MIN_ROWS} are"
                f" needed; {excluded} were left out because it learned from them or their group"
            ),
        )
    ours, theirs, target = challenger[unseen], champion[unseen], target[unseen]
    group, weight = (None if part is None else part[unseen] for part in (group, weight))
    task, declared = declaration.task.kind, declared_measures(declaration)
    first, second = (decided(labels, own) for own in thresholds)
    values = [
        compute_predictions(task, predictions, target, weight, *rule, declared)[metric]
        for predictions, rule in ((ours, first), (theirs, second))
    ]
    if None in values:
        why = f"{metric} is not defined on the {rows} rows that the champion has not learned from"
        return Comparison(**facts, problem=why)
    settings = declaration.evaluate
    found = paired_difference(
        declaration,
        metric,
        ours,
        theirs,
        target,
        group,
        weight,
        *(settings.bootstrap, settings.confidence, declaration.train.seed),
        *first,
        second,
    )
    return Comparison(
        **facts,
        challenger=values[0],
        champion=values[1],
        difference=found if declaration.metrics[metric] else _turned(found),
    )


def _turned(interval: Interval) -> Interval:
    """Return the interval of the negated difference."""
    value, low, high = (
        None if v is None else -v for v in (interval.value, interval.high, interval.low)
    )
    return Interval(value=value, low=low, high=high)


def judge(
    declaration: Declaration,
    evaluation: EvaluationReport,
    checks: Sequence[CheckResult],
    comparison: Comparison | None,
    by_hand: bool = False,
    window: Window | None = None,
) -> GateReport:
    """Return the verdict, with one row for each condition.

    It passes only if no condition failed and the program is new.

    Args:
        declaration: its section `register` is used.
        evaluation: evaluation on test.
        checks: all checks of the run, preparation and preflight.
        comparison: with the champion; None if there is none yet.
        by_hand: a person named the version: it is promoted if it is equal.
        window: test rows of a first version, where the windows of the split move on.
    """
    place = place_of(declaration, comparison, by_hand)
    conditions = (
        *(
            keeps(metric, bounds, evaluation.metrics)
            for metric, bounds in declaration.register_.thresholds.items()
        ),
        *slices_keep(declaration.register_.slices, evaluation.slices),
        _checks_are_green(checks),
        _has_skill(declaration, evaluation),
        *_not_behind(declaration, evaluation),
        place.condition,
    )
    failed = [c for c in conditions if c.verdict == "fail"]
    identical = comparison is not None and comparison.identical
    passed = not failed and not identical
    return GateReport(
        passed=passed,
        verdict=_verdict(failed, conditions[-1], comparison, place.replaces),
        conditions=conditions,
        champion_version=comparison.version if comparison else None,
        difference=comparison.difference if comparison else None,
        compared_rows=comparison.rows if comparison else 0,
        replaces=place.replaces or not passed,
        claim=claim_of(declaration, evaluation, comparison, window) if passed else None,
    )


def _verdict(
    failed: Sequence[CheckResult],
    champion: CheckResult,
    comparison: Comparison | None,
    replaces: bool,
) -> str:
    """Return the outcome in a sentence."""
    if comparison is not None and comparison.identical:
        return (
            f"{UNCHANGED}: the program is version {comparison.version}, the champion, byte for"
            " byte; nothing is registered"
        )
    if failed:
        return f"refused: {'; '.join(c.summary for c in failed)}"
    if comparison is not None and comparison.waits:
        return f"{WAITS}: {champion.summary}"
    return f"{'passed' if replaces else KEPT}: {champion.summary}"


def keeps(metric: str, bounds: Threshold, metrics: Mapping[str, Interval]) -> CheckResult:
    """Return True if a metric keeps its declared bounds."""
    found = metrics.get(metric)
    value = found.value if found else None
    wanted = " and ".join(
        ([f"at least {bounds.min:g}"] if bounds.min is not None else [])
        + ([f"at most {bounds.max:g}"] if bounds.max is not None else [])
    )
    kept = (
        value is not None
        and (bounds.min is None or value >= bounds.min)
        and (bounds.max is None or value <= bounds.max)
    )
    shown = "not defined" if value is None else f"{value:.6g}"
    return CheckResult(
        name=f"threshold: {metric}",
        verdict="pass" if kept else "fail",
        summary=f"test {metric} is {shown}, expected {wanted}",
        figures={"value": value, "min": bounds.min, "max": bounds.max},
        remedy="" if kept else f"improve the model, or change register.thresholds.{metric}",
    )


def slices_keep(bounds: Mapping[str, Threshold], slices: Slices | None) -> tuple[CheckResult, ...]:
    """Check that each declared slice keeps the bounds of `register.slices`, one row by metric.

    A slice with too few rows to be scored is no reason to refuse; one that is scored and on which
    the metric is not defined is.
    """
    scored = slices.declared if slices is not None else ()
    return tuple(_slices_keep(metric, wanted, scored) for metric, wanted in bounds.items())


def _slices_keep(metric: str, bounds: Threshold, scored: Sequence[SliceScore]) -> CheckResult:
    judged = [
        (found, keeps(metric, bounds, {metric: Interval(value=found.metrics.get(metric))}))
        for found in scored
    ]
    broken = [
        f"{found.name} ({number(found.metrics.get(metric))})"
        for found, kept in judged
        if kept.verdict == "fail"
    ]
    expected = keeps(metric, bounds, {}).summary.rpartition("expected ")[2]
    return CheckResult(
        name=f"slices: {metric}",
        verdict="fail" if broken or not scored else "pass",
        summary=(
            f"test {metric} of slice {first_few(broken)}, expected {expected} on each"
            if broken
            else f"test {metric} is {expected} on each of {plural(len(scored), 'slice')}"
            if scored
            else f"no slice of evaluate.slices has enough test rows for {metric}"
        ),
        remedy=f"improve the model there, or change register.slices.{metric}" if broken else "",
    )


def _checks_are_green(checks: Sequence[CheckResult]) -> CheckResult:
    failed = [c.name for c in checks if c.verdict == "fail"]
    counts = {
        verdict: sum(c.verdict == verdict for c in checks)
        for verdict in ("pass", "warn", "allowed", "fail")
    }
    shown = (
        ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        or "none were run"
    )
    return CheckResult(
        name="checks",
        verdict="fail" if failed else "pass",
        summary=f"checks failed: {', '.join(failed)}" if failed else f"checks: {shown}",
        figures=dict(counts),
        remedy=(
            "fix what the checks found, or allow it with a reason in checks.allow" if failed else ""
        ),
    )


def _has_skill(declaration: Declaration, evaluation: EvaluationReport) -> CheckResult:
    needed = declaration.register_.require_skill
    verdict = "pass" if evaluation.has_skill else "fail" if needed else "allowed"
    lacking = (
        "too few test rows to say whether it has skill"
        if evaluation.too_few
        else "no skill over the constant baseline"
    )
    summary = (
        "better than the constant baseline"
        if evaluation.has_skill
        else f"{lacking}: {evaluation.too_few}"
        if evaluation.too_few
        else lacking
    )
    remedy = (
        "give more test rows (split.fractions, or more data)"
        if evaluation.too_few
        else "look at features, split and learning curves"
    )
    return CheckResult(
        name="skill",
        verdict=verdict,
        summary=summary,
        remedy="" if evaluation.has_skill else f"{remedy}; a model without skill helps nobody",
        reason="register.require_skill is false" if verdict == "allowed" else "",
    )


def _not_behind(declaration: Declaration, evaluation: EvaluationReport) -> list[CheckResult]:
    """Check that no simpler model is better; also for a first champion."""
    behind = [
        name
        for name, place in evaluation.standing.items()
        if place == "behind" and name not in CONSTANTS
    ]
    if not behind:
        return []
    metric, allowed = declaration.metric, declaration.register_.allow_behind
    values = {name: found.get(metric) for name, found in evaluation.baselines.items()}
    # what makes no error has found a rule, or the rows themselves: a finding, not a rival
    perfect = perfect_baselines(declaration, values)
    refused = [name for name in behind if name not in allowed or name in perfect]
    shown = " and ".join(
        f"{NAMES[name]} ({number(evaluation.baselines[name].get(metric))})"
        for name in refused or behind
    )
    return [
        CheckResult(
            name="baselines",
            verdict="fail" if refused else "allowed",
            summary=(
                f"{metric_name(metric)} {number(evaluation.metrics[metric].value)} is behind"
                f" {shown} on the same test rows"
                + (
                    " (without an error: see what tells the label)"
                    if {*refused} & {*perfect}
                    else ""
                )
            ),
            remedy=(
                f"use {NAMES[refused[0]]}, improve the model, or name it in register.allow_behind"
                if refused
                else ""
            ),
            reason="" if refused else f"register.allow_behind names {', '.join(behind)}",
        )
    ]
