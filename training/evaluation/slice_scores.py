"""Score slices of the test rows and find those that are worse than the others of their column.

A slice is compared with the mean of the other slices of its column, weighted by rows. Comparing it
with all rows would call every range of a strong feature worse: the model ranks rows of one range
less well than rows of all ranges. Errors of the comparison come from the bootstrap interval of each
slice, by group where rows are grouped. Groups with rows in several slices make it more careful, not
less, as their errors are alike.

Chances are corrected by Holm's method over all slices that were compared: one sentence names the
worst, so one wrong name in the whole list is what must be rare; a false discovery rate would allow
some. A difference that does not matter (`MATTERS`) is not called worse, however certain it is.

Source: Holm 1979, A simple sequentially rejective multiple test procedure. Where a slice is large,
its interval comes from a part of its rows and is narrowed by the root of the ratio, as in Bickel
and Sakov 2008 (m out of n bootstrap). N rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from schemas.config import Declaration
from schemas.records import Interval
from schemas.slice_records import Slices, SliceScore
from training.data.leakage.arrangements import tail
from training.evaluation.slice_cuts import Cut
from training.objectives.bootstrap import every_metric, intervals, units_of

MIN_ROWS, MIN_GROUPS, MIN_OF_CLASS = 50, 10, 10
MOST_ROWS = 2_500  # of a slice whose interval is resampled
RESAMPLES = 200
SHOWN = 40  # slices that were not declared
MATTERS = 0.02  # least difference of a score between 0 and 1
MATTERS_SHARE = 0.05  # least relative difference of an error
STREAM = 0x736C6963
# these move with the share of positives, which differs between slices for good reasons
STEADY = {"pr_auc": "auroc", "macro_pr_auc": "macro_auroc"}


class Rows(NamedTuple):
    """What is cut: predictions, targets [N], and the arguments of `bootstrap.intervals`."""

    declaration: Declaration
    predictions: np.ndarray
    target: np.ndarray
    resampling: Mapping[str, Any]

    @property
    def metric(self) -> str:
        """Metric that slices are compared in."""
        metric = self.declaration.metric
        steady = STEADY.get(metric, metric)
        return steady if steady in self.declaration.metrics else metric

    @property
    def sign(self) -> int:
        """1 if more is better, else -1."""
        return 1 if self.declaration.metrics[self.metric] else -1


class _Found(NamedTuple):
    score: SliceScore
    error: float | None  # standard error

    @property
    def is_known(self) -> bool:
        return self.score.score.value is not None and self.error is not None


def score_slices(rows: Rows, cuts: Sequence[Cut], notes: Sequence[str]) -> Slices | None:
    """Return the slices of all cuts, the worst first; None where nothing was cut.

    Args:
        rows: the scored rows.
        cuts: columns of the same rows.
        notes: what was not cut.
    """
    alone = rows._replace(resampling={**rows.resampling, "group": None})
    units = units_of(rows.resampling["group"], len(rows.target))
    found, small = list[_Found](), 0
    for cut in cuts:
        if cut.is_group:
            scored = list(_scored(alone, cut, np.arange(len(rows.target))))
        else:
            scored = list(_scored(rows, cut, units))
        small += sum(one is None for one in scored)
        found += _compared(rows, [one for one in scored if one is not None])
    if not found and not notes:
        return None
    limit = tail(rows.declaration.evaluate.confidence)
    judged = _corrected(rows, [one.score for one in found], limit)
    looked_at = sum(one.chance is not None for one in judged)
    kept = [one for one in judged if one.declared]
    others = sorted((one for one in judged if not one.declared), key=_rank)
    ordered = tuple(sorted([*kept, *others[:SHOWN]], key=_rank))
    return Slices(
        metric=rows.metric,
        scores=ordered,
        looked_at=looked_at,
        small=small,
        limit=limit,
        notes=tuple(notes),
    )


def _rank(found: SliceScore) -> tuple[bool, float, str]:
    """Sort key: worse ones first, then by chance."""
    return (not found.worse, 2.0 if found.chance is None else found.chance, found.name)


# ------------------------------------------------------------------------------------------ scores


def _scored(rows: Rows, cut: Cut, units: np.ndarray) -> Iterator[_Found | None]:
    """Yield the score of each slice of a column; None of one with too few rows."""
    order = np.argsort(cut.codes, kind="stable")
    ends = np.cumsum(np.bincount(cut.codes, minlength=len(cut.names)))
    for place, (name, kind) in enumerate(zip(cut.names, cut.kinds, strict=True)):
        mine = order[ends[place - 1] if place else 0 : ends[place]]
        if not len(mine):
            continue
        facts = _facts(rows, mine, units)
        if facts is None:
            yield None
            continue
        interval, error, metrics = _interval(rows, mine, units[mine], cut.declared)
        yield _Found(
            SliceScore(
                column=cut.column,
                value=name,
                kind=kind,
                rows=len(mine),
                score=interval,
                declared=cut.declared,
                metrics=metrics,
                **facts,
            ),
            error,
        )


def _facts(rows: Rows, mine: np.ndarray, units: np.ndarray) -> dict[str, Any] | None:
    """Return number of units and share of positives of a slice; None if they are too few."""
    if len(mine) < MIN_ROWS:
        return None
    count = len(mine) if rows.resampling["group"] is None else len(np.unique(units[mine]))
    if count < MIN_GROUPS:
        return None
    positives = None
    if rows.declaration.task.kind == "binary":
        positive = int((rows.target[mine] == 1).sum())
        if min(positive, len(mine) - positive) < MIN_OF_CLASS:
            return None
        positives = positive / len(mine)
    return {"units": count, "positives": positives}


def _interval(
    rows: Rows, mine: np.ndarray, units: np.ndarray, every: bool
) -> tuple[Interval, float | None, dict[str, float | None]]:
    """Return the metric of a slice with its interval and standard error, and all metrics."""
    part, ratio = _part(mine, units, rows.resampling["group"] is not None, rows.resampling["seed"])
    options = dict(rows.resampling)
    options |= {"resamples": min(RESAMPLES, options["resamples"])}
    options["weight"] = None if options["weight"] is None else options["weight"][mine[part]]
    options["group"] = units[part] if options["group"] is not None else None
    found = intervals(
        *(rows.declaration, rows.predictions[mine[part]], rows.target[mine[part]]),
        **options,
        only=None if every else rows.metric,
    )
    known = found[rows.metric]
    values = {name: one.value for name, one in found.items()}
    if len(part) < len(mine):
        whole = _whole(rows, mine)
        values = {name: whole[name] for name in values}
    value = values[rows.metric]
    metrics = values if every else {}
    if value is None or known.value is None or known.low is None or known.high is None:
        return Interval(value=value), None, metrics
    below, above = (ratio * (known.value - known.low), ratio * (known.high - known.value))
    z = float(norm.ppf((1 + options["confidence"]) / 2))
    bounds = Interval(value=value, low=value - below, high=value + above)
    return bounds, max(below, above) / z, metrics


def _part(
    mine: np.ndarray, units: np.ndarray, grouped: bool, seed: int
) -> tuple[np.ndarray, float]:
    """Return places of whole units with about `MOST_ROWS` rows, and the root of their share."""
    if len(mine) <= MOST_ROWS:
        return np.arange(len(mine)), 1.0
    # a row without group is its own unit, and rows of a slice differ
    different = np.unique(units) if grouped else units
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM])))
    count = max(MIN_GROUPS, int(len(different) * MOST_ROWS / len(mine)))
    if count >= len(different):
        return np.arange(len(mine)), 1.0
    drawn = generator.choice(len(different), count, replace=False)
    if not grouped:
        return np.sort(drawn), math.sqrt(count / len(different))
    return np.flatnonzero(np.isin(units, different[drawn])), math.sqrt(count / len(different))


def _whole(rows: Rows, mine: np.ndarray) -> dict[str, float | None]:
    """Return the metrics of all rows of a slice."""
    weight = rows.resampling["weight"]
    found = every_metric(
        rows.declaration,
        rows.predictions[mine],
        rows.target[mine],
        None if weight is None else weight[mine],
        rows.resampling["labels"],
        rows.resampling["threshold"],
    )
    return {name: None if math.isnan(value) else value for name, value in found.items()}


# ------------------------------------------------------------------------------------- comparisons


def _compared(rows: Rows, found: Sequence[_Found]) -> list[_Found]:
    """Compare each slice of a column with the mean of the others."""
    known = [one for one in found if one.is_known]
    return [
        _against(rows, one, [other for other in known if other is not one])
        if one.is_known and len(known) > 1
        else one
        for one in found
    ]


def _against(rows: Rows, one: _Found, others: Sequence[_Found]) -> _Found:
    sizes = np.array([other.score.rows for other in others], dtype=np.float64)
    share = sizes / sizes.sum()
    values = np.array([other.score.score.value for other in others], dtype=np.float64)
    errors = np.array([other.error for other in others], dtype=np.float64)
    mean, own = float(share @ values), one.score.score.value or 0.0
    error = math.hypot(one.error or 0.0, float(np.sqrt((share**2) @ errors**2)))
    shortfall = rows.sign * (mean - own)  # above 0: this slice is worse
    chance = float(norm.sf(shortfall / error)) if error > 0 else 1.0
    return one._replace(score=one.score.model_copy(update={"others": mean, "chance": chance}))


def _corrected(rows: Rows, found: Sequence[SliceScore], limit: float) -> list[SliceScore]:
    """Correct chances for the number of slices; mark those that are worse."""
    compared = [i for i, one in enumerate(found) if one.chance is not None]
    ordered = sorted(compared, key=lambda i: found[i].chance or 0.0)
    corrected, highest = dict[int, float](), 0.0
    for place, i in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - place) * (found[i].chance or 0.0)))
        corrected[i] = highest
    return [
        one.model_copy(
            update={
                "chance": corrected[i],
                "worse": corrected[i] <= limit and _matters(rows, one),
            }
        )
        if i in corrected
        else one
        for i, one in enumerate(found)
    ]


def _matters(rows: Rows, found: SliceScore) -> bool:
    """Return True if the difference to the other slices is large enough to act on."""
    own, others = found.score.value, found.others
    if own is None or others is None:
        return False
    least = MATTERS if rows.sign > 0 else MATTERS_SHARE * abs(others)
    return rows.sign * (others - own) >= least
