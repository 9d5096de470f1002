"""Trials of a search with real training programs: stopped early, failed, and without test rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.load import declare
from schemas.records import Prepared, RunSpec, ValidatedTable
from schemas.search_config import Span
from schemas.search_records import SearchPlan, TrialRecord
from schemas.search_space import with_values
from tasks.child_runs import trial_dir
from tasks.context import RunContext
from tasks.programs import run_all
from tasks.search import default_concurrency, make_plan
from tasks.trials import Proposal, Trial, write_spec
from tests.training.mlflow_home import blank_database, uri
from tests.training.runs import make_run
from training.search.study import UNPRUNED_EVALUATIONS
from training.tracking.mlflow import start_run

__all__ = ["blank_database", "uri"]
SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.0}


def prepared(spec: RunSpec) -> Prepared:
    """What a trial reads of a preparation; the files of the test rows are removed."""
    for ref in (*spec.arrays.test.arrays.values(), spec.arrays.test.ids):
        ref.file.unlink()
    return Prepared.model_construct(
        validated=ValidatedTable.model_construct(spec=spec.spec),
        statistics=spec.statistics,
        arrays=spec.arrays,
    )


def plan(**fields: Any) -> SearchPlan:
    given = {
        "trials": 9,
        "seed": 0,
        "concurrency": 1,
        "threads": None,
        "metric": "auroc",
        "greater_is_better": True,
        "pruner": "median",
        "space": {"optimizer.lr": Span(low=1e-3, high=0.1, log=True)},
        "optuna": "5",
    }
    return SearchPlan.model_validate(given | fields)


def earlier(score: float) -> list[TrialRecord]:
    return [
        TrialRecord(
            number=n,
            state="complete",
            params={"optimizer.lr": 0.01 * n},
            values=(score,) * 8,
            score=score,
        )
        for n in range(1, 6)
    ]


Started = list[tuple[Proposal, RunContext]]


@pytest.fixture
def trials(tmp_path: Path, uri: str) -> Started:
    """A trial that nothing disturbs, one far behind the earlier ones, and one that diverges."""
    train = {"epochs": 8, "batch_size": 16, "threads": 1, "ranks": 1, "log_every": 1000}
    spec = make_run(tmp_path / "data", optimizer=SGD, train=train)
    data, declared = prepared(spec), declare(spec.declaration)
    steep = with_values(declared, {"optimizer.lr": 1e30, "train.clip": "none"})
    proposals = [
        Proposal(plan(), 1, declared, []),
        Proposal(plan(), 6, declared, earlier(2.0)),  # an AUROC that nothing reaches
        Proposal(plan(), 1, steep, []),
    ]
    found = []
    for place, proposal in enumerate(proposals, start=1):
        folder = trial_dir(tmp_path, place)
        folder.mkdir(parents=True)
        assert proposal.declaration is not None
        tracker = start_run(proposal.declaration, uri=uri, name=str(place))
        run = RunContext(proposal.declaration, f"run-{place}", folder, tracker, None)
        write_spec(run, data)
        written = json.loads((folder / "resolved.json").read_text())["arrays"]["test"]
        assert written["arrays"] == {} and written["ids"]["path"] == "" and not written["rows"]
        found.append((proposal, run))
    return found


def train_all(trials: Started) -> list[TrialRecord]:
    starts = [lambda p=proposal, r=run: Trial(p, r) for proposal, run in trials]
    return run_all(starts, 2, "trial")


def require_ends(stopped: TrialRecord, failed: TrialRecord, folder: Path) -> None:
    assert stopped.state == "pruned" and len(stopped.values) == UNPRUNED_EVALUATIONS + 1
    assert failed.state == "failed" and failed.cause.startswith("NonFiniteError: ")
    assert str(folder) not in failed.cause and failed.score is None


@pytest.mark.long
def test_trials_are_stopped_or_fail_without_an_error(trials: Started, tmp_path: Path) -> None:
    require_ends(*train_all(trials[1:]), tmp_path)


@pytest.mark.long
def test_a_trial_started_again_before_the_log_was_written_ends_the_same(
    trials: Started, tmp_path: Path
) -> None:
    complete, *others = first = train_all(trials)
    require_ends(*others, tmp_path)
    assert complete.state == "complete" and len(complete.values) == 8
    assert complete.score == max(v for v in complete.values if v is not None)
    assert complete.params == {"optimizer.lr": 0.05}
    assert train_all(trials) == first


def test_values_that_do_not_fit_together_are_a_failed_trial() -> None:
    tree = {
        "name": "tiny",
        "data": {"uri": "no.parquet", "columns": {"y": "label", "*": "feature"}},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
        "model": {"kind": "ft_transformer", "width": 64, "heads": 8},
    }
    made = plan(space={"model.width": (60, 68), "model.depth": Span(low=1, high=2)})
    found = Proposal(made, 2, declare(tree), [])
    assert found.declaration is None and "is not a multiple of heads 8" in found.cause
    assert found.record(state="failed", cause=found.cause).params["model.width"] in (60, 68)


@pytest.mark.parametrize("threads", [None, 1])
def test_trials_at_once_follow_cores_and_memory(tmp_path: Path, threads: int | None) -> None:
    train = {"ranks": 1, "device": "cpu", "threads": threads}
    spec = make_run(tmp_path, train=train)
    declared = declare(spec.declaration)
    assert default_concurrency(declared, spec.arrays) >= 1
    huge = {
        name: ref.model_copy(update={"num_bytes": 1 << 50})
        for name, ref in spec.arrays.train.arrays.items()
    }
    side = spec.arrays.train.model_copy(update={"arrays": huge})
    assert default_concurrency(declared, spec.arrays.model_copy(update={"train": side})) == 1
    wanted = declare(spec.declaration | {"search": {"concurrency": 2}})
    made = make_plan(wanted, spec.arrays)
    assert made.concurrency == 2 and (made.threads is None) == (threads is not None)
    assert (
        make_plan(declare(spec.declaration | {"search": {"concurrency": 1}}), spec.arrays).threads
        is None
    )
