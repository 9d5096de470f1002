"""Mean and spread over folds, and a verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from schemas.config import Declaration
from schemas.fold_records import FoldResult, Spread

NOTE = (
    "The standard deviation says how much the folds differ. It is no error of the mean: folds share"
    " rows to train on, and no unbiased estimate of that error exists (Bengio and Grandvalet 2004)."
    " Rows that choices were made on, here and before, flatter every fold; the declared test rows"
    " are in none."
)


def spread_of(values: Iterable[float | None]) -> Spread:
    """Compute mean, standard deviation (n - 1) and extremes of the defined values. >>>
    spread_of([1.0, 3.0, None]) Spread(mean=2.0, std=1.4142135623730951, min=1.0, max=3.0, folds=2)
    """
    known = [v for v in values if v is not None]
    if not known:
        return Spread(mean=None, std=None, min=None, max=None, folds=0)
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return Spread(
        mean=statistics.fmean(known),
        std=deviation,
        min=min(known),
        max=max(known),
        folds=len(known),
    )


def metric_spreads(folds: Sequence[FoldResult]) -> dict[str, Spread]:
    """Compute the spread of each metric of the test rows over the folds."""
    return {
        name: spread_of(fold.metrics[name].value for fold in folds) for name in folds[0].metrics
    }


def baseline_spreads(folds: Sequence[FoldResult]) -> dict[str, dict[str, Spread]]:
    """Compute the spread of each baseline's metrics over the folds."""
    names = list(dict.fromkeys(name for fold in folds for name in fold.baselines))
    metrics = {
        name: list(dict.fromkeys(m for fold in folds for m in fold.baselines.get(name, {})))
        for name in names
    }
    return {
        name: {
            m: spread_of(fold.baselines.get(name, {}).get(m) for fold in folds)
            for m in metrics[name]
        }
        for name in names
    }


def fold_verdict(declaration: Declaration, folds: Sequence[FoldResult]) -> str:
    """Describe the declared metric over folds in one sentence.

    It counts the folds in which the model beats the baseline that is best on average.
    """
    metric, sign = declaration.metric, 1 if declaration.greater_is_better else -1
    found = metric_spreads(folds)[metric]
    if found.mean is None:
        return f"{metric} is not defined in any of {len(folds)} folds"
    words = (
        f"{metric} {found.mean:.4f}"
        + (f" ± {found.std:.4f}" if found.std is not None else "")
        + f" over {found.folds} folds ({found.min:.4f} to {found.max:.4f})"
    )
    means = {
        name: spreads[metric].mean
        for name, spreads in baseline_spreads(folds).items()
        if metric in spreads
    }
    known = {name: mean for name, mean in means.items() if mean is not None}
    if not known:
        return words
    best = max(known, key=lambda name: sign * known[name])
    pairs = [
        (fold.metrics[metric].value, fold.baselines.get(best, {}).get(metric)) for fold in folds
    ]
    wins = sum(
        sign * ours > sign * theirs
        for ours, theirs in pairs
        if ours is not None and theirs is not None
    )
    return (
        f"{words}; better than the best baseline ({best}, {known[best]:.4f}) in {wins} of"
        f" {len(folds)}"
    )
