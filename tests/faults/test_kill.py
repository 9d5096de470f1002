"""Runs killed with SIGKILL end as the undisturbed one; `python -m tests.faults.kill` in short."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.faults import kill
from tests.faults.final_state import digest
from tests.faults.kill import aims, setup_of, summary
from tests.faults.launches import Kill
from tests.faults.trials import Reference, Trial, compare, make_reference, plan, points_of, run

EXACT = {
    "a peer dies after the forward pass": Kill("point", "step.backward:9:1"),
    "a commit is cut off": Kill("point", "checkpoint.manifest_written:4"),
}
ELASTIC = {
    "two ranks, or one": Kill("point", "checkpoint.renamed:3"),
    "one rank, or two": Kill("all", step=8, seconds=0.05),
}


def carry_out(
    folder: Path, setup: str, worlds: tuple[int, ...], kills: list[Kill], reference: Reference
) -> list[Trial]:
    trials = [Trial(number, setup, worlds, [kill]) for number, kill in enumerate(kills)]
    with ThreadPoolExecutor(2) as pool:
        return list(
            pool.map(
                lambda trial: run(trial, folder, reference, random.Random(trial.number)), trials
            )
        )


@pytest.mark.long
@pytest.mark.req("C5")
def test_a_killed_run_ends_with_the_bits_of_the_undisturbed_one(
    tmp_path: Path, undisturbed: Reference
) -> None:
    done = carry_out(tmp_path, "exact", (2,), list(EXACT.values()), undisturbed)
    assert [trial.failure for trial in done] == [""] * len(EXACT)
    assert all(trial.launches == 2 for trial in done)
    assert [trial.hits for trial in done] == [["step.backward"], ["checkpoint.manifest_written"]]


@pytest.mark.long
@pytest.mark.req("C5")
def test_so_does_a_run_of_which_a_worker_died_at_a_moment(
    tmp_path: Path, undisturbed: Reference
) -> None:
    (done,) = carry_out(
        tmp_path, "exact", (2,), [Kill("worker", step=12, seconds=0.05)], undisturbed
    )
    assert (done.failure, done.launches, done.hits) == ("", 2, [])


@pytest.mark.long
@pytest.mark.req("C5")
def test_in_elastic_mode_the_number_of_ranks_may_change_as_well(tmp_path: Path) -> None:
    reference = make_reference(tmp_path, "elastic", (1,))
    done = carry_out(tmp_path, "elastic", (1, 2), list(ELASTIC.values()), reference)
    assert [trial.failure for trial in done] == [""] * len(ELASTIC)
    assert all(trial.killed and trial.launches == 2 for trial in done)


@pytest.mark.req("C5")
def test_a_run_that_ends_otherwise_is_told(undisturbed: Reference) -> None:
    assert compare(undisturbed.folder, undisturbed) == ""
    other = Reference(
        undisturbed.folder, {**undisturbed.state, "scaler": "0", "best": "1"}, 1.0, 1.0
    )
    failed = Trial(0, "exact", (2,), failure=compare(undisturbed.folder, other))
    assert failed.failure == "other scaler, best than the undisturbed run"
    found = summary([failed, Trial(1, "exact", (2,))], 1.0)
    assert (found["trials"], found["same"], found["failures"][0]["failure"]) == (
        2,
        1,
        failed.failure,
    )


@pytest.mark.long
def test_a_trial_in_which_nothing_was_killed_is_drawn_again_and_then_told(
    tmp_path: Path, undisturbed: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill, "DRAWS", 2)
    never, once = Kill("worker", step=10**6), Kill("point", "step.backward:9:1")
    for drawn, killed, failure in (
        ([never, once], 1, ""),
        ([never, never], 0, "nothing was killed in 2 draws"),
    ):
        kills = iter(drawn)
        monkeypatch.setattr(
            kill,
            "plan",
            lambda number, setup, *_, kills=kills: Trial(number, setup, (2,), [next(kills)]),
        )
        done = kill._trial(tmp_path, 0, "exact", 0, "", {"exact": undisturbed})
        assert (len(done.killed), done.failure.split(":")[0]) == (killed, failure)


def test_the_long_form_aims_at_every_crash_point_of_every_setup() -> None:
    for mode, trials in (("exact", 200), ("elastic", 100)):
        aimed = list(enumerate(aims(trials, mode)))
        for setup in {setup_of(number, mode) for number, _ in aimed}:
            assert {aim for number, aim in aimed if setup_of(number, mode) == setup and aim} == set(
                points_of(setup)
            )
        reference = Reference(Path(), {}, 4.0, 2.0)
        plans = [
            plan(number, setup_of(number, mode), aim, random.Random(number), reference)
            for number, aim in aimed
        ]
        assert {len(trial.kills) for trial in plans} == {1, 2, 3}


def test_the_digest_sees_a_single_bit_and_not_the_order_of_keys() -> None:
    one = {"w": torch.tensor([1.0, 2.0]), "groups": [{"lr": 0.1, "params": [0]}]}
    assert digest(one) == digest(
        {"groups": [{"params": [0], "lr": 0.1}], "w": torch.tensor([1.0, 2.0])}
    )
    others = [
        {**one, "w": torch.tensor([1.0, 2.0000002])},
        {**one, "w": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {**one, "groups": [{"lr": 0.1000000000000001, "params": [0]}]},
        {**one, "groups": [{"lr": 0.1, "params": [1]}]},
    ]
    assert len({digest(other) for other in (one, *others)}) == 5
