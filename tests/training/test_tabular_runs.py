"""Whole runs of realmlp and tabm: stopped and resumed, they end in the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.layout_work import run_one
from tests.training.runs import keep_torch_settings, make_run
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.optim.curves import flat_cos
from training.preflight.run import preflight, require_passed

REALMLP: dict[str, Any] = {
    "model": {"kind": "realmlp", "hidden": [16, 16]},
    "optimizer": {
        "kind": "adamw",
        "lr": 0.04,
        "beta2": 0.95,
        "weight_decay": 0.02,
        "weight_decay_schedule": "flat_cos",
    },
    "schedule": {"kind": "coslog4"},
}
TABM: dict[str, Any] = {
    "model": {"kind": "tabm", "width": 16, "members": 4},
    "optimizer": {"kind": "adamw", "lr": 0.01, "weight_decay": 3e-4},
}
KINDS = {"realmlp": REALMLP, "tabm": TABM}
TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 4, "threads": 1}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


@pytest.mark.req("C5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_run_stopped_and_resumed_ends_in_the_same_bits(
    tmp_path: Path, kind: str, task: str
) -> None:
    make_run(tmp_path, rows=(101, 40), task=task, train=TRAIN, **KINDS[kind])
    config, parallel = tmp_path / "resolved.json", Parallel()
    whole = run_one(parallel, config, tmp_path / "whole", [None])
    parts = run_one(parallel, config, tmp_path / "parts", [3, 12, 17, None])
    assert parts["report"]["steps"] == 21 and parts["report"]["status"] == "finished"
    assert parts["state"] == whole["state"]
    assert parts["report"]["model_sha256"] == whole["report"]["model_sha256"]


@pytest.mark.req("T7")
def test_progress_and_decay_follow_the_step_and_the_update(tmp_path: Path) -> None:
    spec = make_run(tmp_path, rows=(64, 20), train=TRAIN | {"epochs": 4}, **REALMLP)
    trainer = Trainer(spec, tmp_path / "run", Parallel(), StopSignal())
    assert trainer.total_steps == 16 and len(trainer.step.progress) == 2
    for step in range(16):
        decays = {
            g["weight_decay"] / g["peak_decay"]
            for g in trainer.optimizer.param_groups
            if g["peak_decay"]
        }
        assert list(decays) == pytest.approx([flat_cos(step / 16)] * len(decays))
        trainer._train_one_step()
        assert [float(p) for p in trainer.step.progress] == [step / 16] * 2
    groups = {g.name: g.weight_decay for g in trainer.witness.observed().groups}
    assert groups["decay"] == 0.02, "the record has the declared decay"


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("realmlp", "regression"),
        ("tabm", "multiclass"),
        pytest.param("realmlp", "binary", marks=pytest.mark.long),
        pytest.param("realmlp", "multiclass", marks=pytest.mark.long),
        pytest.param("tabm", "binary", marks=pytest.mark.long),
        pytest.param("tabm", "regression", marks=pytest.mark.long),
    ],
)
def test_the_whole_preflight_passes_with_the_recipes(tmp_path: Path, kind: str, task: str) -> None:
    sections = KINDS[kind] | {"model": {"kind": kind}, "train": TRAIN | {"clip": "none"}}
    if kind == "realmlp" and task == "regression":
        sections["optimizer"] = REALMLP["optimizer"] | {"lr": 0.2}
    report = preflight(make_run(tmp_path, rows=(300, 40), task=task, **sections))
    require_passed(report)
    assert not [r.summary for r in report.checks.results if r.verdict != "pass"]


@pytest.mark.long
@pytest.mark.req("T14")
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_run_gives_the_same_bits_again(tmp_path: Path, kind: str) -> None:
    make_run(tmp_path, rows=(101, 40), train=TRAIN | {"compile": True}, **KINDS[kind])
    one, other = (
        run_one(Parallel(), tmp_path / "resolved.json", tmp_path / name, stops)
        for name, stops in (("whole", [None]), ("parts", [9, None]))
    )
    assert one["state"] == other["state"]
