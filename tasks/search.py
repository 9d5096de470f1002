"""Search: batches of trials until their number or the hours are used up; the best declaration.

All that decides is in `search.jsonl`. A search that was killed reads it, trains the trials of the
unfinished batch to their ends, and goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.errors import TrainingError, counted
from schemas.records import ArraysRef, Prepared
from schemas.search_config import SearchConfig, SearchFound
from schemas.search_records import SearchOutcome, SearchPlan, TrialRecord
from schemas.search_space import (
    plain,
    search_space,
    short_tree,
    values_by_path,
    with_values,
)
from tasks.child_runs import trial_dir, trial_runs
from tasks.context import RunContext
from tasks.live import publish
from tasks.programs import number_text, run_all
from tasks.ranks import require_gpus
from tasks.say import say
from tasks.trials import Proposal, Trial, drop_checkpoints, write_spec
from training.search.search_log import (
    LOG,
    add_seconds,
    read_log,
    seconds_so_far,
    write_log,
)
from training.search.study import optuna_version, require_optuna, winner

BEST = "best.yaml"
CORES = 2  # of a trial, unless threads are declared
PROCESS_BYTES = 1 << 30  # of a training process besides its arrays
ARRAY_COPIES = 3  # of train and validation rows in it
ALL_FAILED = 5  # as many trials that fail from the start end the search


def searching(declaration: Declaration) -> Declaration:
    """Return the declaration with a search to be made: that of the file, else the defaults.

    Raises:
        ConfigError: Optuna is missing.
    """
    require_optuna()
    search = declaration.search or SearchConfig()
    return declaration.model_copy(update={"search": search.model_copy(update={"found": None})})


def search_values(prepared: Prepared, run: RunContext) -> SearchOutcome:
    """Run the trials that are left, batch by batch, and write the best declaration.

    Raises:
        TrainingError: every trial failed.
        LaunchError: torchrun could not start.
    """
    require_optuna()
    plan, trials = read_log(run.run_dir) or (make_plan(run.declaration, prepared.arrays), [])
    write_log(run.run_dir, plan, trials)
    _introduce(plan, trials)
    hours = (run.declaration.search or SearchConfig()).hours
    while numbers := next_batch(plan, trials):
        if hours and seconds_so_far(run.run_dir) >= hours * 3600:
            say(
                "search",
                f"{hours:g} hours are used up after {counted(len(trials), 'trial')}",
                "info",
            )
            break
        _run_batch(numbers, plan, trials, prepared, run)
        _require_some_success(plan, trials)
    return conclude(plan, trials, run)


def make_plan(declaration: Declaration, arrays: ArraysRef) -> SearchPlan:
    """Return what decides every proposal, as the declaration and this machine have it."""
    search = declaration.search or SearchConfig()
    concurrency = search.concurrency or default_concurrency(declaration, arrays)
    cores = len(os.sched_getaffinity(0))
    shared = max(1, cores // (declaration.train.ranks * concurrency))
    return SearchPlan(
        trials=search.trials,
        seed=search.seed,
        concurrency=concurrency,
        threads=None if concurrency == 1 or declaration.train.threads else shared,
        metric=declaration.metric,
        greater_is_better=declaration.greater_is_better,
        pruner=search.pruner,
        space=search_space(declaration),
        optuna=optuna_version(),
    )


def default_concurrency(declaration: Declaration, arrays: ArraysRef) -> int:
    """Return how many trials train at once: by cores and free memory; one on a GPU."""
    train = declaration.train
    if require_gpus(train):
        return 1
    cores = len(os.sched_getaffinity(0)) // max(CORES, train.ranks * (train.threads or 1))
    num_bytes = sum(
        ref.num_bytes for side in (arrays.train, arrays.val) for ref in side.arrays.values()
    )
    each = train.ranks * (PROCESS_BYTES + ARRAY_COPIES * num_bytes)
    return max(1, min(cores, _free_bytes() // each))


def _free_bytes() -> int:
    """Return the memory that programs can still take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024


def next_batch(plan: SearchPlan, trials: Sequence[TrialRecord]) -> list[int]:
    """Return the trials of the first batch that is not complete, without those that have ended.

    >>> plan = SearchPlan(trials=5, seed=0, concurrency=2, threads=None, metric="auroc",
    ...     greater_is_better=True, pruner="none", space={}, optuna="5")
    >>> ended = [TrialRecord(number=n, state="complete", params={}) for n in (1, 2, 4)]
    >>> next_batch(plan, ended), next_batch(plan, ended[:2])
    ([3], [3, 4])
    """
    ended = {trial.number for trial in trials}
    for first in range(1, plan.trials + 1, plan.concurrency):
        numbers = range(first, min(first + plan.concurrency, plan.trials + 1))
        left = [number for number in numbers if number not in ended]
        if left:
            return left
    return []


def _introduce(plan: SearchPlan, trials: Sequence[TrialRecord]) -> None:
    text = (
        f"{counted(plan.trials, 'trial')} over {', '.join(plan.space)}; {plan.concurrency} at once;"
        f" scored by val {plan.metric}, the test rows are not read"
    )
    say("search", text + (f"; going on after {len(trials)}" if trials else ""), "info")
    if plan.optuna != optuna_version():
        say(
            "search",
            f"begun with Optuna {plan.optuna}, here is {optuna_version()}: it may propose other"
            " values than an undisturbed search",
            "warn",
        )


def _run_batch(
    numbers: Sequence[int],
    plan: SearchPlan,
    trials: list[TrialRecord],
    prepared: Prepared,
    run: RunContext,
) -> None:
    """Run the trials of a batch and add their records to `trials` and to the log."""
    started = time.monotonic()
    earlier = tuple(trials)
    proposals = [Proposal(plan, number, run.declaration, earlier) for number in numbers]
    declarations = [proposal.declaration or run.declaration for proposal in proposals]
    fitting = [number for number, p in enumerate(proposals) if p.declaration is not None]
    label = f"trial {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
    with trial_runs(run, numbers, declarations) as runs:
        try:
            trained = train_trials(
                label, [proposals[n] for n in fitting], [runs[n] for n in fitting], prepared
            )
        finally:
            add_seconds(run.run_dir, time.monotonic() - started)
        records = dict(zip(fitting, trained, strict=True))
        for place, (number, proposal) in enumerate(zip(numbers, proposals, strict=True)):
            record = records.get(place) or proposal.record(state="failed", cause=proposal.cause)
            trials.append(record)
            collect_trial(number, record, runs[place])
            _say_trial(plan, record, trials, run)
    write_log(run.run_dir, plan, trials)
    for number in numbers:
        drop_checkpoints(trial_dir(run.run_dir, number))


def _say_trial(
    plan: SearchPlan, trial: TrialRecord, trials: Sequence[TrialRecord], run: RunContext
) -> None:
    """Print one trial next to the best so far, and log the best to the search's MLflow run."""
    best = winner(plan, trials)
    so_far = f"  best {number_text(best.score)} (trial {best.number})" if best else ""
    ends = {
        "complete": f"val {plan.metric} {number_text(trial.score)}{so_far}",
        "pruned": f"stopped after {len(trial.values)} evaluations{so_far}",
        "failed": f"failed: {trial.cause}{so_far}",
    }
    mark = {"complete": "done", "pruned": "info", "failed": "warn"}[trial.state]
    say(f"trial {trial.number}/{plan.trials}", ends[trial.state], mark)
    run.tracker.log_metrics({"search/best": best.score if best else None}, step=trial.number)


def _require_some_success(plan: SearchPlan, trials: Sequence[TrialRecord]) -> None:
    failed = [trial for trial in trials if trial.state == "failed"]
    if len(failed) == len(trials) and len(trials) >= min(ALL_FAILED, plan.trials):
        raise TrainingError(
            f"all {counted(len(trials), 'trial')} of the search failed; the first, with the"
            " declared values:"
            f" {failed[0].cause}; correct the declaration, or narrow search.space"
        )


@task(
    name="train trials",
    description=(
        "torchrun for each trial of a batch, on train and validation rows alone; one that falls"
        " behind the median of earlier trials is stopped."
    ),
    tags=["train"],
    cache_policy=NO_CACHE,
    task_run_name="{label}",
)
def train_trials(
    label: str, proposals: Sequence[Proposal], runs: Sequence[RunContext], prepared: Prepared
) -> list[TrialRecord]:
    """Return the records of the trials of a batch, in order. A failed trial is a result.

    Args:
        label: name of the task run.
        proposals: trials whose values fit together.
        runs: the run of each.
        prepared: the shared arrays.

    Raises:
        LaunchError: torchrun could not start, or left no cause.
        TrainingError: a program was interrupted from outside.
    """
    for run in runs:
        write_spec(run, prepared)
    starts = [
        lambda proposal=proposal, run=run: Trial(proposal, run)
        for proposal, run in zip(proposals, runs, strict=True)
    ]
    return run_all(starts, len(starts), "trial")


@task(
    name="collect trial",
    description="One trial's values, score and end, in its MLflow run.",
    tags=["track"],
    cache_policy=NO_CACHE,
    task_run_name="trial {number}",
)
def collect_trial(number: int, trial: TrialRecord, run: RunContext) -> None:
    """Log how a trial ended; remove its checkpoints, as the best one is trained again."""
    run.tracker.set_tags(
        {"bulkhead.trial_state": trial.state}
        | ({"bulkhead.error": trial.cause} if trial.cause else {})
    )
    run.tracker.log_json("trial.json", trial.model_dump(mode="json"))
    run.tracker.log_metrics({"search/score": trial.score})
    for name in ("train.log", "metrics.jsonl"):
        if (run.run_dir / name).is_file():
            run.tracker.log_artifact(run.run_dir / name)
    run.ends_as = "FAILED" if trial.state == "failed" else "FINISHED"


@task(
    name="choose best trial",
    description="The trial with the best validation score, as best.yaml; all of them in MLflow.",
    tags=["track"],
    cache_policy=NO_CACHE,
)
def conclude(plan: SearchPlan, trials: Sequence[TrialRecord], run: RunContext) -> SearchOutcome:
    """Write the declaration of the best trial as `best.yaml`; log the search to MLflow.

    Raises:
        TrainingError: no trial was trained to its end.
    """
    best = winner(plan, trials)
    if best is None:
        raise TrainingError("no trial of the search was trained to its end; raise search.hours")
    path = run.run_dir / BEST
    found = SearchOutcome(
        name=run.declaration.name,
        run_id=run.run_id,
        run_dir=str(run.run_dir),
        metric=plan.metric,
        trials=tuple(trials),
        hours=round(seconds_so_far(run.run_dir) / 3600, 4),
        trial=best.number,
        best=str(path),
    )
    tree = short_tree(best_declaration(plan, found, run.declaration))
    write_atomic(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    _track(plan, found, run)
    say("best", f"trial {best.number}, val {plan.metric} {number_text(best.score)}; {path}")
    return found


def best_declaration(plan: SearchPlan, found: SearchOutcome, declared: Declaration) -> Declaration:
    """Return the declaration with the best trial's values, and where they come from."""
    best = found.winner
    threads = {} if plan.threads is None else {"train.threads": plan.threads}
    values = {} if best.number == 1 else best.params
    chosen = values_by_path(with_values(declared, values))
    first = next((trial.score for trial in found.trials if trial.number == 1), None)
    origin = SearchFound(
        run_id=found.run_id,
        trials=len(found.trials),
        pruned=found.count("pruned"),
        failed=found.count("failed"),
        hours=found.hours,
        trial=best.number,
        metric=plan.metric,
        score=best.score or 0.0,
        declared_score=first,
        params={path: plain(chosen[path]) for path in plan.space},
    )
    return with_values(declared, {**values, **threads}, found=origin.model_dump(mode="json"))


def _track(plan: SearchPlan, found: SearchOutcome, run: RunContext) -> None:
    counts = {state: found.count(state) for state in ("complete", "pruned", "failed")}
    run.tracker.log_artifact(run.run_dir / LOG)
    run.tracker.log_artifact(Path(found.best))
    run.tracker.log_metrics(
        {
            "search/trials": len(found.trials),
            "search/pruned": counts["pruned"],
            "search/failed": counts["failed"],
            "search/hours": found.hours,
            "search/score": found.winner.score,
        }
    )
    publish(
        create_table_artifact,
        key="trials",
        table=[
            {"trial": t.number, "state": t.state, plan.metric: t.score, **_texts(t)}
            for t in found.trials
        ],
        description=f"{found.name}: trials; best is {found.trial}",
    )


def _texts(trial: TrialRecord) -> dict[str, str]:
    return {path: str(value) for path, value in trial.params.items()}
