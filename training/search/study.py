"""Propose values with Optuna's tree-structured Parzen estimator; stop trials by the median.

Both are functions of the records of earlier batches alone. The study is made again from them at
each call, in memory, and its sampler is seeded by the search's seed and the trial's number. A
search that was killed anywhere therefore proposes and stops the same trials again.

Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization; Akiba et al. 2019,
arXiv:1907.10902.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from schemas.errors import ConfigError
from schemas.search_config import Dimension, Span
from schemas.search_records import SearchPlan, TrialRecord

RANDOM_TRIALS = 8  # drawn at random before the estimator has something to go by
UNPRUNED_TRIALS = 4  # complete trials before the first may be stopped
UNPRUNED_EVALUATIONS = 3  # of each trial


def require_optuna() -> None:
    """Refuse a search without its package.

    Raises:
        ConfigError: Optuna is missing; the message names the command that installs it.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "a search needs the package optuna, which is not installed: pip install"
            " 'bulkhead[search]'"
        )


def optuna_version() -> str:
    """Return the version of Optuna, which decides proposals."""
    return version("optuna")


def batch_of(number: int, plan: SearchPlan) -> int:
    """Return the number of a trial's batch, from 0."""
    return (number - 1) // plan.concurrency


def before(trials: Sequence[TrialRecord], number: int, plan: SearchPlan) -> list[TrialRecord]:
    """Return the trials of earlier batches, in order: all that trial `number` may depend on."""
    batch = batch_of(number, plan)
    found = [trial for trial in trials if batch_of(trial.number, plan) < batch]
    return sorted(found, key=lambda trial: trial.number)


def propose(plan: SearchPlan, number: int, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return the values of a trial by dotted path; none for the first, which is as declared.

    Args:
        plan: the search.
        number: of the trial, from 1.
        trials: the trials so far; those of its own batch and of later ones are not looked at.
    """
    if number == 1:
        return {}
    space = {path: _distribution(values) for path, values in sorted(plan.space.items())}
    asked = _study(plan, before(trials, number, plan), number).ask(space)
    return {path: _value(plan.space[path], asked.params[path]) for path in space}


def stopped_after(
    plan: SearchPlan,
    number: int,
    values: Sequence[float | None],
    trials: Sequence[TrialRecord],
    looked_at: int = 0,
) -> int | None:
    """Return after how many evaluations a trial is stopped; None if it is trained to its end.

    Args:
        plan: the search.
        number: of the trial, from 1.
        values: its validation metric by evaluation so far.
        trials: the trials so far, as in `propose`.
        looked_at: evaluations after which it was not stopped, as an earlier call found.
    """
    earlier = before(trials, number, plan)
    if plan.pruner == "none" or not any(trial.state == "complete" for trial in earlier):
        return None
    from optuna.pruners import MedianPruner
    from optuna.trial import TrialState, create_trial

    study = _study(plan, earlier, number, with_params=False)
    pruner = MedianPruner(UNPRUNED_TRIALS, UNPRUNED_EVALUATIONS)
    for count in range(max(looked_at, UNPRUNED_EVALUATIONS) + 1, len(values) + 1):
        trial = create_trial(
            state=TrialState.RUNNING, intermediate_values=_by_evaluation(values[:count])
        )
        if trial.intermediate_values and pruner.prune(study, trial):
            return count
    return None


def best_score(values: Sequence[float | None], greater_is_better: bool) -> float | None:
    """Return the best of a trial's evaluations; None if the metric is defined in none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return (max if greater_is_better else min)(known, default=None)


def winner(plan: SearchPlan, trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the complete trial with the best score, the first of equals; None if there is none."""
    sign = 1.0 if plan.greater_is_better else -1.0
    scored = [
        (-sign * trial.score, trial.number, trial)
        for trial in trials
        if trial.state == "complete" and trial.score is not None
    ]
    return min(scored, key=lambda item: item[:2])[2] if scored else None


def _study(
    plan: SearchPlan, trials: Sequence[TrialRecord], number: int, with_params: bool = True
) -> Any:
    """Make the study of the trials again; the sampler depends on the seed and the trial alone.

    With params, leave out the first trial where its values are outside of the space: they are those
    of the file.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize" if plan.greater_is_better else "minimize",
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_TRIALS, multivariate=True, seed=plan.seed * 100_003 + number
        ),
    )
    for trial in trials:
        if not with_params:
            study.add_trial(_frozen(plan, trial, {}))
        elif all(_contains(plan.space[path], value) for path, value in trial.params.items()):
            study.add_trial(_frozen(plan, trial, trial.params))
    return study


def _frozen(plan: SearchPlan, trial: TrialRecord, params: dict[str, Any]) -> Any:
    """Return a trial as Optuna keeps it.

    A failed one counts as stopped before its first evaluation, which is worse than any other: its
    surroundings are avoided.
    """
    from optuna.trial import TrialState, create_trial

    is_complete = trial.state == "complete" and trial.score is not None
    return create_trial(
        state=TrialState.COMPLETE if is_complete else TrialState.PRUNED,
        value=trial.score if is_complete else None,
        params={path: _key(plan.space[path], value) for path, value in params.items()},
        distributions={path: _distribution(plan.space[path]) for path in params},
        intermediate_values={} if trial.state == "failed" else _by_evaluation(trial.values),
    )


def _by_evaluation(values: Sequence[float | None]) -> dict[int, float]:
    return {number: value for number, value in enumerate(values, start=1) if value is not None}


def _distribution(values: Dimension) -> Any:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if not isinstance(values, Span):
        return CategoricalDistribution([_text(value) for value in values])
    if values.is_whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(float(values.low), float(values.high), log=values.log)


def _text(value: Any) -> str:
    """Return a choice as text: Optuna takes no lists."""
    return json.dumps(value)


def _key(values: Dimension, value: Any) -> Any:
    return value if isinstance(values, Span) else _text(value)


def _value(values: Dimension, drawn: Any) -> Any:
    return drawn if isinstance(values, Span) else json.loads(drawn)


def _contains(values: Dimension, value: Any) -> bool:
    if not isinstance(values, Span):
        return _text(value) in [_text(choice) for choice in values]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and values.low <= value <= values.high
