"""A refit: the same training on more rows, for the steps that validation chose, on the record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.config import Declaration
from schemas.records import RunSpec, TrainReport
from schemas.refit import REFIT_SPLITS, Estimate, Refit, RefitPlan, RefitRows
from tasks.refit import refit_spec
from tests.distributed.layout_work import state_digest, stop_at
from tests.training.cases import champion_of
from tests.training.runs import SIDES, declaration_tree, keep_torch_settings, make_run, synthetic
from tests.training.test_challenge import Two
from training.data.arrays.union import join_splits
from training.data.split.unseen import trained_keys
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer, train
from training.launch.stop_signal import StopSignal
from training.registry.gate import judge
from training.registry.reproduce import made

TRAIN: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 16,
    "threads": 1,
    "refit": "train_val",
    "eval_every": 5,
    "log_every": 1,
}
SECTIONS: dict[str, Any] = {
    "train": TRAIN,
    "schedule": {"kind": "warmup_cosine", "warmup": 0.2},
    "optimizer": {"kind": "adamw", "lr": 0.02},
}
ROWS = (90, 24)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


def go(spec: RunSpec, folder: Path) -> TrainReport:
    return train(spec, folder, Parallel(), StopSignal())


def arrays_with(**changed: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Synthetic splits; of those named, other labels."""
    found = {
        side: synthetic(n, seed)
        for seed, (side, n) in enumerate(zip(SIDES, (90, 24, 20), strict=True))
    }
    for side, label in changed.items():
        found[side]["label"] = label
    return found


@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_refit_on_train_alone_makes_the_weights_of_the_best_step_again(
    tmp_path: Path, ema: float | None
) -> None:
    """So its batches, learning rates, noise and length are those of the estimate."""
    spec = make_run(tmp_path, rows=ROWS, **SECTIONS | {"train": TRAIN | {"ema": ema}})
    estimate = go(spec, tmp_path / "run")
    assert estimate.best_step > 0
    plan = refit_spec(spec, "train_val", estimate, tmp_path / "run" / "refit")
    assert plan.refit is not None and plan.refit.schedule_steps == estimate.steps == 18
    again = plan.model_copy(update={"arrays": spec.arrays})
    report = go(again, tmp_path / "run" / "refit")
    assert report.model_sha256 == estimate.model_sha256
    assert (report.steps, report.best_step, report.best_metric, report.status) == (
        estimate.best_step,
        estimate.best_step,
        None,
        "finished",
    )
    lines = (tmp_path / "run" / "refit" / "metrics.jsonl").read_text().splitlines()
    assert not [line for line in lines if json.loads(line)["kind"] == "evaluation"]


@pytest.mark.req("C2", "C5")
def test_a_refit_that_is_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    spec = make_run(tmp_path, rows=ROWS, **SECTIONS)
    plan = refit_spec(spec, "train_val", go(spec, tmp_path / "run"), tmp_path / "refit")
    assert plan.refit is not None
    whole = Trainer(plan, tmp_path / "whole", Parallel(), StopSignal())
    expected = whole.run()
    for stop in (1, 6, plan.refit.steps - 1):
        part = Trainer(plan, tmp_path / "refit", Parallel(), StopSignal())
        stop_at(part, stop)
        assert part.run().status == "interrupted"
    ended = Trainer(plan, tmp_path / "refit", Parallel(), StopSignal())
    assert ended.run().model_sha256 == expected.model_sha256
    assert state_digest(ended) == state_digest(whole)
    assert go(plan, tmp_path / "refit").model_sha256 == expected.model_sha256, "finished already"
    assert refit_spec(spec, "train_val", go(spec, tmp_path / "run"), tmp_path / "refit") == plan


def test_it_learns_from_the_rows_of_its_splits_and_of_no_other(tmp_path: Path) -> None:
    def refitted(name: str, rows: RefitRows, **changed: np.ndarray) -> str:
        folder = tmp_path / name
        spec = make_run(folder, arrays=arrays_with(**changed), **SECTIONS)
        plan = RefitPlan(rows=rows, steps=9, schedule_steps=18)
        joined = join_splits(spec.arrays, REFIT_SPLITS[rows], folder / "joined")
        return go(
            spec.model_copy(update={"arrays": joined, "refit": plan}), folder / "run"
        ).model_sha256

    val, test = 1 - synthetic(24, 1)["label"], 1 - synthetic(20, 2)["label"]
    first = refitted("1", "train_val")
    assert first == refitted("2", "train_val") == refitted("3", "train_val", test=test)
    assert first != refitted("4", "train_val", val=val)
    assert refitted("5", "all") != refitted("6", "all", test=test)


def test_rows_are_joined_in_order_with_their_ids_and_nothing_is_fitted(tmp_path: Path) -> None:
    spec = make_run(tmp_path, arrays=arrays_with())
    splits = REFIT_SPLITS["all"]
    found = join_splits(spec.arrays, splits, tmp_path / "joined")
    assert found == join_splits(spec.arrays, splits, tmp_path / "joined")
    assert found.train.rows == 134 and found.sha256 != spec.arrays.sha256
    assert (found.val, found.statistics) == (spec.arrays.val, spec.arrays.statistics)
    sides = [spec.arrays.side(name) for name in splits]
    for name, ref in found.train.arrays.items():
        parts = [np.load(side.arrays[name].path) for side in sides]
        assert np.array_equal(np.load(ref.path), np.concatenate(parts))
    ids = [pq.read_table(side.ids.path)["__id"].to_pylist() for side in sides]
    assert pq.read_table(found.train.ids.path)["__id"].to_pylist() == [
        i for part in ids for i in part
    ]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"schedule": {"kind": "plateau"}},
            "without evaluations, which schedule.kind plateau",
        ),
        (
            {"train": {"refit": "all", "nodes": 2, "ranks": 2, "rendezvous": "a:1"}},
            "a refit is trained on one machine",
        ),
        ({"ensemble": {"members": 3}}, "trains one network again, and section ensemble declares 3"),
        (
            {"evaluate": {"calibrate": "temperature"}},
            "leaves no validation rows to fit evaluate.calibrate: temperature on",
        ),
    ],
)
def test_what_a_refit_cannot_do_is_refused(sections: dict[str, Any], message: str) -> None:
    tree = declaration_tree(**{"train": TRAIN} | sections)
    with pytest.raises(ValueError, match=message):
        Declaration.model_validate(tree)
    Declaration.model_validate(tree | {"train": tree["train"] | {"refit": "none"}})


# ------------------------------------------------------------------------------------ registry


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    return Two(tmp_path_factory.mktemp("two"))


def refit_of(rows: RefitRows, program: str = "0" * 64, num_rows: int = 100) -> Refit:
    estimate = Estimate(checkpoint_sha256="c", model_sha256="m", program_sha256=program)
    return Refit(
        rows=rows,
        steps=9,
        splits=REFIT_SPLITS[rows],
        num_rows=num_rows,
        arrays_sha256="a",
        estimate=estimate,
    )


@pytest.mark.req("D10")
@pytest.mark.parametrize(("rows", "unseen"), [("train_val", 50), ("all", 0)])
def test_rows_that_a_refitted_champion_learned_from_do_not_count_as_unseen(
    two: Two, rows: RefitRows, unseen: int
) -> None:
    """It was refitted on the very rows that the challenger is tested on, or on all but them."""
    tables = [two.new.split.side(name) for name in REFIT_SPLITS[rows]]
    champion = replace(
        champion_of(two.old, two.old_model, trained_keys(tables)),
        evidence={"refit": refit_of(rows).model_dump(mode="json")},
    )
    found = two.challenge(champion=champion)
    assert (found.rows, found.excluded_rows) == (unseen, 50 - unseen)
    assert judge(two.new.declaration, two.evaluation, (), found).passed == (unseen > 0)
    assert (unseen > 0) or "0 of 50 test rows are unseen by the champion" in found.problem


@pytest.mark.req("R2")
def test_the_same_run_is_recognised_by_its_estimate_and_its_rows(two: Two) -> None:
    program = two.new_model.program.sha256
    for declared, champions, same in (
        ("train_val", "train_val", True),
        ("all", "all", True),
        ("all", "train_val", False),
        ("none", "train_val", False),
    ):
        evidence = {"refit": refit_of(champions, program).model_dump(mode="json")}
        train_section = two.new.declaration.train.model_copy(update={"refit": declared})
        declaration = two.new.declaration.model_copy(update={"train": train_section})
        found = two.challenge(
            declaration=declaration, champion=replace(two.champion, evidence=evidence)
        )
        assert found.identical == same, (declared, champions)


def test_a_reproduction_compares_the_estimate_and_the_refit() -> None:
    sides = {side: {"sha256": side} for side in SIDES}
    plain = {
        "validated_sha256": "v",
        "split": {"sides": sides},
        "statistics_sha256": "s",
        "arrays_sha256": "a",
        "model_sha256": "served",
        "program_sha256": "served program",
    }
    refitted = plain | {"refit": refit_of("all", "judged program").model_dump(mode="json")}
    assert made(plain)["weights"] == "served" and "refitted weights" not in made(plain)
    found = made(refitted)
    assert list(found.items())[-4:] == [
        ("weights", "m"),
        ("exported program", "judged program"),
        ("refitted weights", "served"),
        ("refitted program", "served program"),
    ]
