"""What a score rests on: the metric again, with groups of columns shuffled over the test rows.

The rows, their number and the shuffle depend on the seed alone. They are rows that the same run has
scored already, with the same model: part of the same look. N sampled rows, G groups.

Source: permutation importance as in Breiman 2001 and Fisher, Rudin and Dominici 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm
from torch import nn

from schemas.comparison_records import Interval
from schemas.reason_records import ImportantGroup, Reasons
from schemas.records import RunSpec
from training.data.arrays.shards import load_arrays
from training.evaluation.feature_groups import Feature, association, features_of, group_features
from training.evaluation.partial_curves import partial_curves
from training.evaluation.scored_sample import Sample
from training.evaluation.slice_scores import Rows
from training.formatting import metric_name, number, plain, plural
from training.objectives.bootstrap import every_metric, paired_difference
from training.serving.reference_network import TARGETS

MOST_ROWS, LEAST_ROWS = 2_000, 100
WIDE_ROWS = 300  # of tensors and texts, which take long to score
MOST_SCORED = 40_000  # rows that are scored in all
MOST_GROUPS = 30  # shuffled apart; the others are shuffled together
RESAMPLES = 200
CARRIES, CARRIES_SURELY = 0.75, 0.5  # share of the score; that of the interval's lower end
STREAM = 0x73687566


def find_reasons(run: RunSpec, network: nn.Module, rows: Rows, constant: float | None) -> Reasons:
    """Return importance by group of columns, the largest loss first, and partial dependence.

    Args:
        run: the trained run.
        network: of `reference_network`.
        rows: all scored test rows.
        constant: the metric of the constant prediction.
    """
    features, metric = features_of(run), rows.declaration.metric
    if len(rows.target) < LEAST_ROWS:
        note = f"{plural(len(rows.target), 'test row')}: fewer than {LEAST_ROWS} show no reasons"
        return Reasons(metric=metric, rows=0, note=note)
    if len(features) < 2:
        return Reasons(metric=metric, rows=0, note="the model has one column: all rests on it")
    sample = _sample(run, network, rows, len(features))
    groups, note = _groups(sample, features)
    value = _value(sample)
    found = sorted(
        (_importance(sample, group, len(groups), value, constant) for group in groups),
        key=lambda group: -(group.loss.value or 0.0),
    )
    strongest = [group.columns[0] for group in found if group.counts]
    return Reasons(
        metric=metric,
        rows=len(sample.rows.target),
        groups=tuple(found),
        curves=partial_curves(sample, [f for n in strongest for f in features if f.name == n]),
        question=_question(sample, found, value),
        note=note,
    )


def _sample(run: RunSpec, network: nn.Module, rows: Rows, features: int) -> Sample:
    """Draw the test rows that are scored again."""
    seed = rows.declaration.train.seed
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM])))
    is_wide = bool(run.statistics.tensor or run.statistics.bags)
    most = min(MOST_ROWS, MOST_SCORED // min(features, MOST_GROUPS + 1))
    count = min(len(rows.target), WIDE_ROWS if is_wide else most)
    chosen = np.sort(generator.choice(len(rows.target), count, replace=False))
    arrays = load_arrays(run.arrays.test)
    options = dict(rows.resampling) | {"resamples": min(RESAMPLES, rows.resampling["resamples"])}
    for name in ("group", "weight"):
        options[name] = None if options[name] is None else options[name][chosen]
    own = Rows(rows.declaration, rows.predictions[chosen], rows.target[chosen], options)
    blocks = {n: np.array(a[chosen]) for n, a in arrays.items() if n not in TARGETS}
    return Sample(run, network, blocks, own, generator)


def _groups(sample: Sample, features: Sequence[Feature]) -> tuple[list[list[Feature]], str]:
    """Return what is shuffled as one; beyond `MOST_GROUPS` the rest, by a cheap screen."""
    groups = group_features(features, sample.arrays)
    if len(groups) <= MOST_GROUPS:
        return groups, ""
    strength = _screened(sample, groups)
    order = sorted(range(len(groups)), key=lambda i: -strength[i])
    kept = [groups[i] for i in sorted(order[:MOST_GROUPS])]
    rest = [f for i in sorted(order[MOST_GROUPS:]) for f in groups[i]]
    note = (
        f"Of {plural(len(groups), 'group')} of columns, the {MOST_GROUPS} that go most with the"
        f" predictions are shuffled apart; the other {plural(len(rest), 'column')} together."
    )
    return [*kept, rest], note


def _screened(sample: Sample, groups: Sequence[Sequence[Feature]]) -> list[float]:
    """Return how strongly each group goes with the predictions; labels are not read."""
    predicted = sample.rows.predictions
    outcome = predicted if predicted.ndim == 1 else predicted[:, -1]

    def strength(feature: Feature) -> float:
        name, place = feature.places[0]
        if place is None:
            return 1.0  # a tensor or text is always shuffled apart
        column = (sample.arrays[name][:, place], name == "categorical")
        return float(association([(outcome, False), column])[0, 1])

    return [max(strength(feature) for feature in group) for group in groups]


def _shuffled(sample: Sample, group: Sequence[Feature]) -> dict[str, np.ndarray]:
    """Return the arrays of a group with its rows in another order, all columns alike."""
    order = sample.generator.permutation(len(sample.rows.target))
    changed = dict[str, np.ndarray]()
    for name, place in (place for feature in group for place in feature.places):
        if place is None:
            changed[name] = sample.arrays[name][order]
            continue
        block = changed.setdefault(name, sample.arrays[name].copy())
        block[:, place] = sample.arrays[name][order, place]
    return changed


def _value(sample: Sample) -> float | None:
    """Return the metric of the sampled rows."""
    rows, options = sample.rows, sample.rows.resampling
    how = (options["weight"], options["labels"], options["threshold"])
    found = every_metric(rows.declaration, rows.predictions, rows.target, *how)
    value = found[rows.declaration.metric]
    return None if np.isnan(value) else value


def _importance(
    sample: Sample,
    group: Sequence[Feature],
    groups: int,
    value: float | None,
    constant: float | None,
) -> ImportantGroup:
    """Score the rows with a group shuffled; the interval is widened for the number of groups."""
    rows, metric = sample.rows, sample.rows.declaration.metric
    other = sample.predictions(_shuffled(sample, group))
    loss = paired_difference(
        rows.declaration, metric, rows.predictions, other, rows.target, **rows.resampling
    )
    sign = 1 if rows.declaration.greater_is_better else -1
    loss = _widened(loss, sign, rows.resampling["confidence"], groups)
    gain = None if value is None or constant is None else sign * (value - constant)
    return ImportantGroup(
        columns=tuple(feature.name for feature in group),
        loss=loss,
        share=loss.value / gain if gain and gain > 0 and loss.value is not None else None,
        counts=loss.low is not None and loss.low > 0,
    )


def _widened(loss: Interval, sign: int, confidence: float, groups: int) -> Interval:
    """Return the loss with an interval that holds for all groups at once (Bonferroni)."""
    if loss.value is None or loss.low is None or loss.high is None:
        return Interval(value=None if loss.value is None else sign * loss.value)
    one, every = norm.ppf((1 + confidence) / 2), norm.ppf(1 - (1 - confidence) / 2 / groups)
    ratio, value = float(every / one), sign * loss.value
    low, high = sorted((sign * loss.low, sign * loss.high))
    return Interval(
        value=value,
        low=value - ratio * max(value - low, 0.0),
        high=value + ratio * max(high - value, 0.0),
    )


def _question(sample: Sample, found: Sequence[ImportantGroup], value: float | None) -> str:
    """Ask about a group that carries most of the score; empty without one, or of few groups."""
    if len(found) < 3 or value is None:
        return ""
    first = found[0]
    if not first.counts or first.share is None or not first.loss.value or first.loss.low is None:
        return ""
    surely = first.share * first.loss.low / first.loss.value
    if first.share < CARRIES or surely < CARRIES_SURELY:
        return ""
    declaration = sample.rows.declaration
    sign = 1 if declaration.greater_is_better else -1
    names = " and ".join(plain(name, 40) for name in first.columns[:3])
    names += f" and {len(first.columns) - 3} more" if len(first.columns) > 3 else ""
    are, their = ("is", "its") if len(first.columns) == 1 else ("are", "their")
    return (
        f"Most of the score rests on {names}: with {their} values shuffled,"
        f" {metric_name(declaration.metric)} goes from {number(value)} to"
        f" {number(value - sign * first.loss.value)}; {are} {names} known when predicting, and what"
        " the model should go by?"
    )


def with_question(compared: Mapping[str, Any], reasons: Reasons) -> dict[str, Any]:
    """Return the fields of a report with the question after the verdict of a model with skill."""
    if not reasons.question or not compared.get("has_skill"):
        return dict(compared)
    return dict(compared) | {"verdict": f"{compared['verdict']} {reasons.question}"}
