"""Proposals and early stops of a search: functions of earlier batches, the same after any kill."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError, IntegrityError
from schemas.search_config import Span
from schemas.search_records import SearchPlan, TrialRecord
from tasks.search import next_batch
from training.search.search_log import (
    LOG,
    add_seconds,
    evaluations,
    read_log,
    seconds_so_far,
    write_log,
)
from training.search.study import (
    UNPRUNED_EVALUATIONS,
    UNPRUNED_TRIALS,
    best_score,
    propose,
    require_optuna,
    stopped_after,
    winner,
)

SPACE = {
    "model.hidden": ([8], [16, 8]),
    "model.numeric_embedding": ("none", "periodic"),
    "optimizer.lr": Span(low=1e-4, high=1.0, log=True),
    "train.batch_size": Span(low=16, high=64),
}


def plan(**fields: object) -> SearchPlan:
    given = {
        "trials": 16,
        "seed": 0,
        "concurrency": 2,
        "threads": None,
        "metric": "auroc",
        "greater_is_better": True,
        "pruner": "median",
        "space": SPACE,
        "optuna": "5",
    }
    return SearchPlan.model_validate(given | fields)


DECLARED = {
    "model.hidden": [16, 8],
    "model.numeric_embedding": "none",
    "optimizer.lr": 1e-3,
    "train.batch_size": 32,
}


def train(made: SearchPlan, number: int, trials: list[TrialRecord]) -> TrialRecord:
    """A made-up training: good near lr 0.01, a rate above 0.5 diverges, ten evaluations."""
    params = propose(made, number, trials) or DECLARED
    goal = -abs(math.log10(params["optimizer.lr"]) + 2) / 4 + 0.1 * len(params["model.hidden"])
    noise = random.Random(str(params))
    sign = 1.0 if made.greater_is_better else -1.0
    values = [sign * (goal - 0.5 / n + noise.gauss(0, 0.01)) for n in range(1, 11)]
    if params["optimizer.lr"] > 0.5:
        return TrialRecord(number=number, state="failed", params=params, cause="NonFiniteError: …")
    at = stopped_after(made, number, values, trials)
    return TrialRecord(
        number=number,
        state="pruned" if at else "complete",
        params=params,
        values=tuple(values[:at]),
        score=best_score(values[:at], made.greater_is_better),
    )


def search(made: SearchPlan, folder: Path, kill_after: int = 10**6, backwards: bool = False) -> int:
    """Go on with a search until its end or a kill; return the trials made."""
    _, trials = read_log(folder) or (made, [])
    done = 0
    while numbers := next_batch(made, trials):
        known = list(trials)
        for number in reversed(numbers) if backwards else numbers:
            if done == kill_after:
                return done
            # also those of its own batch are there, in any order
            trials.append(train(made, number, known if done % 2 else trials))
            write_log(folder, made, trials)
            done += 1
    return done


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("search")
    assert search(plan(), folder) == 16
    return (folder / LOG).read_bytes()


@settings(max_examples=4)
@given(kills=st.lists(st.integers(0, 6), max_size=4), backwards=st.booleans())
def test_a_search_that_is_killed_anywhere_is_the_same_byte_for_byte(
    undisturbed: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    kills: list[int],
    backwards: bool,
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    for kill_after in kills:
        search(plan(), folder, kill_after, backwards)
    search(plan(), folder, backwards=backwards)
    assert (folder / LOG).read_bytes() == undisturbed


def test_the_search_has_every_end_and_finds_better_values(undisturbed: bytes) -> None:
    trials = [TrialRecord.model_validate_json(line) for line in undisturbed.splitlines()[1:]]
    assert [trial.number for trial in trials] == list(range(1, 17))
    assert {trial.state for trial in trials} == {"complete", "pruned", "failed"}
    best = winner(plan(), trials)
    assert (
        best is not None
        and best.number > 1
        and best.score
        == max(
            trial.score for trial in trials if trial.state == "complete" and trial.score is not None
        )
    )
    stopped = [trial for trial in trials if trial.state == "pruned"]
    assert all(UNPRUNED_EVALUATIONS < len(trial.values) <= 10 for trial in stopped)
    complete = [trial.number for trial in trials if trial.state == "complete"]
    assert min(trial.number for trial in stopped) > complete[UNPRUNED_TRIALS - 1]


def test_a_proposal_depends_on_complete_batches_the_seed_and_the_number_alone() -> None:
    made, trials = plan(concurrency=3), list[TrialRecord]()
    for number in range(1, 13):
        trials.append(train(made, number, trials))
    for number in range(1, 13):
        earlier = [t for t in trials if t.number <= (number - 1) // 3 * 3]
        assert propose(made, number, trials[::-1]) == propose(made, number, earlier)
        assert stopped_after(made, number, [0.0] * 10, trials) == stopped_after(
            made, number, [0.0] * 10, earlier
        )
    assert propose(made, 2, []) != propose(made, 3, []) != propose(plan(seed=1), 3, [])
    # the planted fault: what depends on its own batch is found
    changed = [
        t.model_copy(update={"params": DECLARED, "score": 9.0, "state": "complete"})
        if t.number in (7, 8, 9)
        else t
        for t in trials
    ]
    assert propose(made, 9, changed) == propose(made, 9, trials)
    assert propose(made, 12, changed) != propose(made, 12, trials)


@pytest.mark.parametrize("greater", [True, False])
def test_proposals_lie_in_the_space_and_the_first_is_as_declared(greater: bool) -> None:
    made, trials = plan(greater_is_better=greater), list[TrialRecord]()
    assert propose(made, 1, []) == {}
    for number in range(1, 17):
        trials.append(train(made, number, trials))
        params = trials[-1].params
        assert params["model.hidden"] in ([8], [16, 8])
        assert params["model.numeric_embedding"] in ("none", "periodic")
        assert 1e-4 <= params["optimizer.lr"] <= 1.0
        assert (
            isinstance(params["train.batch_size"], int) and 16 <= params["train.batch_size"] <= 64
        )
    outside = trials[0].model_copy(update={"params": DECLARED | {"optimizer.lr": None}})
    assert set(propose(made, 9, [outside, *trials[1:]])) == set(SPACE)


def earlier_trials(scores: list[float]) -> list[TrialRecord]:
    return [
        TrialRecord(number=n, state="complete", params=DECLARED, values=(score,) * 10, score=score)
        for n, score in enumerate(scores, start=1)
    ]


def test_a_trial_is_stopped_by_the_median_at_the_same_evaluation() -> None:
    made = plan(concurrency=1)
    earlier = earlier_trials([0.1, 0.2, 0.3, 0.4, 0.5])
    assert stopped_after(made, 6, [0.25] * 10, earlier) == UNPRUNED_EVALUATIONS + 1
    assert stopped_after(made, 6, [0.35] * 10, earlier) is None
    assert stopped_after(made, 6, [0.2] * 5 + [0.9], earlier) == UNPRUNED_EVALUATIONS + 1
    # its best so far counts, and looking again later changes nothing
    assert stopped_after(made, 6, [0.9] + [0.1] * 9, earlier) is None
    assert stopped_after(made, 6, [None] * 10, earlier) is None
    for seen in range(10):
        first = stopped_after(made, 6, [0.25] * seen, earlier)
        assert first == (UNPRUNED_EVALUATIONS + 1 if seen > UNPRUNED_EVALUATIONS else None)
    assert stopped_after(made, 4, [0.0] * 10, earlier) is None  # too few before it
    assert stopped_after(plan(concurrency=1, pruner="none"), 6, [0.0] * 10, earlier) is None
    smaller = plan(concurrency=1, greater_is_better=False)
    assert stopped_after(smaller, 6, [0.35] * 10, earlier) == UNPRUNED_EVALUATIONS + 1


def test_the_winner_is_complete_and_the_first_of_equals() -> None:
    trials = earlier_trials([0.1, 0.4, 0.4])
    pruned = trials[0].model_copy(update={"number": 4, "state": "pruned", "score": 0.9})
    found = winner(plan(), [*trials, pruned][::-1])
    assert found is not None and found.number == 2
    smaller = winner(plan(greater_is_better=False), [*trials, pruned])
    assert smaller is not None and smaller.number == 1
    assert winner(plan(), [pruned]) is None


def test_a_changed_log_is_refused(tmp_path: Path) -> None:
    assert read_log(tmp_path) is None and seconds_so_far(tmp_path) == 0
    write_log(tmp_path, plan(), earlier_trials([0.1, 0.2]))
    found = read_log(tmp_path)
    assert found is not None and found[0] == plan() and found[1] == earlier_trials([0.1, 0.2])
    assert add_seconds(tmp_path, 2.0) == 2.0 and add_seconds(tmp_path, 1.5) == 3.5
    text = (tmp_path / LOG).read_text()
    (tmp_path / LOG).write_text(text.replace("0.2", "0.9"))
    with pytest.raises(IntegrityError, match=r"search.jsonl does not match its digest: .*search"):
        read_log(tmp_path)
    (tmp_path / LOG).unlink()
    with pytest.raises(IntegrityError, match="found no file"):
        read_log(tmp_path)


def test_evaluations_are_read_once_each_without_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert evaluations(path, "auroc") == ()
    lines = [
        '{"kind": "step", "step": 4, "values": {"val/auroc": 9}}',
        '{"kind": "evaluation", "step": 10, "values": {"val/auroc": 0.5}}',
        '{"kind": "evaluation", "step": 20, "values": {"val/auroc": null}}',
        '{"kind": "evaluation", "step": 10, "values": {"val/auroc": 0.6}}',
        '{"kind": "evaluation", "step": 30, "values": {"val/au',
    ]
    path.write_text("\n".join(lines))
    assert evaluations(path, "auroc") == (0.6, None)
    assert best_score((None, math.nan, 0.2), True) == 0.2 and best_score((None,), True) is None


def test_without_optuna_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package optuna.*'bulkhead\[search\]'"):
        require_optuna()
