"""Whole runs in one process: evaluation, early stop, best weights, resuming, refusing, result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from schemas.digest import sha256_file
from schemas.errors import CheckpointError, NonFiniteError, TrainingError
from schemas.records import RunSpec, TrainReport
from tests.distributed.launch import ROOT, environment
from tests.training.runs import keep_torch_settings, make_run, synthetic
from training.checkpoint.state import TrainerState, model_digest
from training.distributed.parallel import Parallel
from training.engine.scoring import score
from training.engine.trainer import Trainer, train
from training.launch.stop_signal import StopSignal

SCRIPTED = {"kind": "custom", "path": "tests.training.networks:Scripted"}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with keep_torch_settings():
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def go(spec: RunSpec, run_dir: Path, stop: StopSignal | None = None) -> TrainReport:
    return train(spec, run_dir, Parallel(), stop or StopSignal())


def journal(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [
        record
        for record in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        if record["kind"] == kind
    ]


def last_state(run_dir: Path) -> dict[str, Any]:
    """The state of the last checkpoint, without what the clock decides."""
    folder = max((run_dir / "checkpoints").glob("step-*"))
    loaded = {
        name: torch.load(folder / name, weights_only=True)
        for name in ("model.pt", "optimizer.pt", "trainer.pt")
    }
    for key in ("seconds", "train_seconds"):
        del loaded["trainer.pt"]["state"][key]
    return loaded


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.req("T10")
@pytest.mark.parametrize(
    ("task", "metric"), [("binary", "auroc"), ("multiclass", "macro_f1"), ("regression", "rmse")]
)
def test_a_run_learns_and_reports_the_best_weights_by_validation(
    tmp_path: Path, task: str, metric: str
) -> None:
    spec = make_run(
        tmp_path,
        rows=(300, 80),
        task=task,
        train={"epochs": 6, "batch_size": 32, "log_every": 5},
        optimizer={"kind": "adamw", "lr": 0.01},
    )
    report = go(spec, tmp_path / "run")
    assert (
        report.status == "finished"
        and report.metric == metric
        and report.steps == 60
        and report.epochs == 6
    )
    evaluations = journal(tmp_path / "run", "evaluation")
    figures = [e["values"][f"val/{metric}"] for e in evaluations]
    pick = min if metric == "rmse" else max
    assert (
        report.best_metric == pick(figures)
        and report.best_step == evaluations[figures.index(pick(figures))]["step"]
    )
    assert figures[-1] != figures[0] and pick(figures) == pick(figures[-3:]), "it learns"
    assert [e["step"] for e in evaluations] == [10, 20, 30, 40, 50, 60]
    for name in ("val/loss", "train/loss", "train_eval/loss", f"train_eval/{metric}"):
        assert all(isinstance(e["values"][name], float) for e in evaluations)
    weights = torch.load(report.best_checkpoint.path, weights_only=True)
    assert model_digest(weights) == report.model_sha256
    assert sha256_file(report.best_checkpoint.path) == report.best_checkpoint.sha256
    trainer = Trainer(spec, tmp_path / "fresh", Parallel(), StopSignal())
    trainer.model.load_state_dict(weights)
    from training.objectives import metrics

    again = metrics.compute(
        trainer.declaration,
        spec.statistics,
        score(trainer.model, spec.arrays.val, 32, Parallel()),
        np.load(spec.arrays.val.arrays["label"].path),
        np.load(spec.arrays.val.arrays["weight"].path),
    )
    assert again[metric] == report.best_metric


@pytest.mark.req("T5")
def test_steps_are_logged_every_so_often_and_by_layer(tmp_path: Path) -> None:
    spec = make_run(tmp_path, train={"epochs": 1, "batch_size": 10, "log_every": 3})
    go(spec, tmp_path / "run")
    steps = journal(tmp_path / "run", "step")
    assert [s["step"] for s in steps] == [3, 6, 9]
    assert {"train/loss", "lr", "grad_norm", "rows_per_second", "memory_mb"} <= set(
        steps[0]["values"]
    )
    layers = {
        name: value for name, value in steps[0]["values"].items() if name.startswith("grad_norm/")
    }
    assert "grad_norm/body.head" in layers
    assert np.sqrt(sum(v * v for v in layers.values())) == pytest.approx(
        steps[0]["values"]["grad_norm"], rel=1e-5
    )


@pytest.mark.req("T10")
def test_it_stops_early_and_keeps_the_best(tmp_path: Path) -> None:
    noise = {"train": synthetic(60, 0), "val": synthetic(60, 1)}
    noise["train"]["label"] = np.random.default_rng(0).integers(0, 2, 60)
    spec = make_run(
        tmp_path,
        arrays=noise,
        train={"epochs": 60, "batch_size": 60, "patience": 3, "metric": "log_loss"},
        optimizer={"kind": "adamw", "lr": 0.05},
    )
    report = go(spec, tmp_path / "run")
    evaluations = journal(tmp_path / "run", "evaluation")
    losses = [e["values"]["val/log_loss"] for e in evaluations]
    assert report.status == "stopped_early" and report.steps == report.best_step + 3 < 60
    assert report.best_metric == min(losses) and losses[-1] > min(losses)
    assert any(
        e["message"].startswith("stopped early at step") for e in journal(tmp_path / "run", "event")
    )


@pytest.mark.req("T10")
def test_patience_counts_improvements_above_min_delta_but_the_best_is_the_best() -> None:
    state = TrainerState()
    waited = []
    for step, metric in enumerate([0.5, 0.505, 0.509, 0.52, 0.4], start=1):
        state.step = step
        state.observe(metric, greater_is_better=True, min_delta=0.01)
        waited.append((state.waited, state.best_step))
    assert waited == [(0, 1), (1, 2), (2, 3), (0, 4), (1, 4)]
    assert TrainerState.from_state_dict(state.state_dict()) == state


@pytest.mark.req("T10")
def test_it_evaluates_every_n_steps_and_at_the_end(tmp_path: Path) -> None:
    spec = make_run(
        tmp_path, rows=(100, 30), train={"epochs": 2, "batch_size": 16, "eval_every": 4}
    )
    go(spec, tmp_path / "run")
    assert [e["step"] for e in journal(tmp_path / "run", "evaluation")] == [4, 8, 12, 14]


@pytest.mark.req("C5")
@pytest.mark.parametrize("device_steps", [(5,), (9, 14, 20)])
def test_a_run_stopped_by_sigterm_goes_on_bit_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device_steps: tuple[int, ...]
) -> None:
    sections = {
        "model": SCRIPTED,
        "train": {
            "epochs": 3,
            "batch_size": 16,
            "micro_batch_size": 6,
            "log_every": 2,
            "checkpoint_every": 4,
        },
        "schedule": {"kind": "plateau", "patience": 0},
    }
    spec = make_run(tmp_path, rows=(101, 40), **sections)
    whole = go(spec, tmp_path / "whole")
    position = 0
    for step in device_steps:
        # training forward passes of the process until then
        calls = sum(-(-min(16, 101 - 16 * (s % 7)) // 6) for s in range(position, step))
        monkeypatch.setenv("BULKHEAD_TEST_SIGNAL", f"TERM:0:{calls}")
        part = go(spec, tmp_path / "parts", StopSignal().install())
        assert (part.status, part.steps) == ("interrupted", step)
        position = step
    monkeypatch.delenv("BULKHEAD_TEST_SIGNAL")
    end = go(spec, tmp_path / "parts")
    assert (
        end.status == "finished"
        and end.model_sha256 == whole.model_sha256
        and end.best_metric == whole.best_metric
    )
    assert same(last_state(tmp_path / "whole"), last_state(tmp_path / "parts"))
    for kind in ("step", "evaluation"):
        one, other = (
            [
                {k: v for k, v in r["values"].items() if k not in ("rows_per_second", "memory_mb")}
                | {"step": r["step"]}
                for r in journal(tmp_path / name, kind)
            ]
            for name in ("whole", "parts")
        )
        assert one == other
    assert any(
        "interrupted by SIGTERM" in e["message"] for e in journal(tmp_path / "parts", "event")
    )


@pytest.mark.req("C5")
def test_exact_means_bit_identical_and_another_seed_is_another_run(tmp_path: Path) -> None:
    first, second = (go(make_run(tmp_path / name), tmp_path / name / "run") for name in ("a", "b"))
    other = go(
        make_run(tmp_path / "c", train={"epochs": 2, "batch_size": 16, "seed": 1}),
        tmp_path / "c" / "run",
    )
    assert first.model_sha256 == second.model_sha256 != other.model_sha256


@pytest.mark.req("T12")
def test_modes_set_what_they_promise(tmp_path: Path) -> None:
    exact = go(make_run(tmp_path / "a"), tmp_path / "a" / "run")
    assert (
        torch.are_deterministic_algorithms_enabled()
        and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        and not torch.backends.cudnn.benchmark
    )
    assert exact.promise.startswith("exact: ") and "bit-identical" in exact.promise
    fast = go(
        make_run(
            tmp_path / "b", train={"epochs": 1, "batch_size": 16, "mode": "fast", "threads": 1}
        ),
        tmp_path / "b" / "run",
    )
    assert (
        not torch.are_deterministic_algorithms_enabled()
        and torch.backends.cudnn.benchmark
        and torch.get_num_threads() == 1
    )
    assert fast.promise.startswith("fast: ") and "no promise" in fast.promise


@pytest.mark.req("C3")
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_end_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_run(tmp_path, rows=(103, 40), model=SCRIPTED, train={"epochs": 3, "batch_size": 16})
    whole = go(spec, tmp_path / "whole")
    monkeypatch.setenv("BULKHEAD_TEST_SIGNAL", "TERM:0:10")
    go(spec, tmp_path / "parts", StopSignal().install())
    monkeypatch.delenv("BULKHEAD_TEST_SIGNAL")
    victim = tmp_path / "parts" / "checkpoints" / "step-00000010" / "optimizer.pt"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    assert go(spec, tmp_path / "parts").model_sha256 == whole.model_sha256
    events = [e["message"] for e in journal(tmp_path / "parts", "event")]
    assert any(
        "step-00000010 is damaged and was renamed to step-00000010.damaged" in m for m in events
    )
    assert "resumed from step-00000007" in events


@pytest.mark.req("C1")
def test_a_finished_run_returns_at_once_unless_its_weights_are_gone(tmp_path: Path) -> None:
    spec = make_run(tmp_path)
    first = go(spec, tmp_path / "run")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()) == spec.declaration
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert go(spec, tmp_path / "run") == first
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    Path(first.best_checkpoint.path).write_bytes(b"damaged")
    again = go(spec, tmp_path / "run")
    assert again.model_sha256 == first.model_sha256, "made again from the checkpoint before it"
    assert "resumed from step-00000007" in [
        e["message"] for e in journal(tmp_path / "run", "event")
    ]


@pytest.mark.req("C2")
def test_another_declaration_in_the_same_run_directory_is_refused(tmp_path: Path) -> None:
    go(make_run(tmp_path), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    other = make_run(tmp_path / "other", train={"epochs": 2, "batch_size": 20})
    with pytest.raises(CheckpointError, match=r"train.batch_size is 20, the checkpoint has 16"):
        go(other, tmp_path / "run")


@pytest.mark.req("T10")
def test_a_metric_that_validation_cannot_have_is_an_error(tmp_path: Path) -> None:
    arrays = {"train": synthetic(60, 0), "val": synthetic(20, 1)}
    arrays["val"]["label"][:] = 1
    with pytest.raises(
        TrainingError, match=r"auroc is not defined on the 20 validation rows \(a single class"
    ):
        go(make_run(tmp_path, arrays=arrays), tmp_path / "run")


@pytest.mark.req("T11")
def test_scores_that_are_not_finite_name_their_rows(tmp_path: Path) -> None:
    arrays = {"train": synthetic(60, 0), "val": synthetic(20, 1)}
    arrays["val"]["numeric"][13] = np.inf
    with pytest.raises(
        NonFiniteError, match=r"scores of 1 of 20 rows are not finite \(first ids: val-13\)"
    ):
        go(make_run(tmp_path, arrays=arrays), tmp_path / "run")


@pytest.mark.req("T11")
def test_a_step_that_is_not_finite_changes_no_parameter(tmp_path: Path) -> None:
    arrays = {"train": synthetic(60, 0), "val": synthetic(20, 1)}
    arrays["train"]["numeric"][13] = 3e38
    trainer = Trainer(make_run(tmp_path, arrays=arrays), tmp_path / "run", Parallel(), StopSignal())
    before = []
    with pytest.raises(
        NonFiniteError,
        match=(
            rf"on rank 0 .*no parameter was changed by this step; see {tmp_path / 'run' / 'dumps'}"
        ),
    ):
        while True:
            before.append(model_digest(trainer.model.state_dict()))
            trainer._train_one_step()
    assert model_digest(trainer.model.state_dict()) == before[-1]
    assert trainer.state.step == len(before) - 1 == len(set(before)) - 1


@pytest.mark.req("T8")
def test_evaluation_restores_the_mode_of_every_module(tmp_path: Path) -> None:
    spec = make_run(tmp_path, model=SCRIPTED)
    trainer = Trainer(spec, tmp_path / "run", Parallel(), StopSignal())
    trainer.model.body.norm.eval()
    before = {name: module.training for name, module in trainer.model.named_modules()}
    score(trainer.model, spec.arrays.val, 16, Parallel())
    assert {name: module.training for name, module in trainer.model.named_modules()} == before
    assert not trainer.model.body.norm.num_batches_tracked


@pytest.mark.req("T15")
def test_the_command_writes_the_result_and_leaves_the_cause_of_a_failure(tmp_path: Path) -> None:
    make_run(tmp_path, rows=(60, 20))
    command = [
        sys.executable,
        "-O",
        "-m",
        "training.main",
        "--run-dir",
        str(tmp_path / "run"),
        "--config",
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "resolved.json")],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        TrainReport.model_validate_json((tmp_path / "run" / "result.json").read_text()).status
        == "finished"
    )
    assert "promise: exact" in done.stdout and "epoch 2/2 step 8/8" in done.stdout
    cause = tmp_path / "cause.json"
    failed = subprocess.run(
        [*command, str(tmp_path / "absent.json")],
        env=environment(TORCHELASTIC_ERROR_FILE=str(cause)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert json.loads(cause.read_text())["message"]["message"].startswith(
        f"ConfigError: {tmp_path / 'absent.json'}: expected a resolved run"
    )


@pytest.mark.req("T12")
def test_new_memory_is_filled_while_the_network_is_built_and_no_longer(tmp_path: Path) -> None:
    trainer = Trainer(make_run(tmp_path / "sound"), tmp_path / "run", Parallel(), StopSignal())
    trainer._train_one_step()
    assert (
        torch.are_deterministic_algorithms_enabled()
        and not torch.utils.deterministic.fill_uninitialized_memory
    )
    spec = make_run(
        tmp_path / "unset", model={"kind": "custom", "path": "tests.training.networks:Unset"}
    )
    with pytest.raises(NonFiniteError, match=r"loss is nan .*at step 1, "):
        go(spec, tmp_path / "unset-run")
