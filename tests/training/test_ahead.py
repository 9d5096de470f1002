"""Steps whose update is decided on the device and whose gate is read a step later, as on CUDA:
nothing else may change, and nothing may wait.

On the CPU `Step.ahead` is off, as reading costs nothing there; it is put on here, and both ways are
held against each other.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.waits import Waits
from schemas.errors import NonFiniteError, OutOfMemoryError
from schemas.records import RunSpec, TrainReport
from tests.distributed.layout_work import state_digest, stop_at, tree_digest
from tests.training.runs import keep_torch_settings, make_run, synthetic
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal

# dropout and running statistics
DELICATE = {"kind": "custom", "path": "tests.faults.networks:Delicate"}
TRAIN: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "micro_batch_size": 6,
    "log_every": 1,
    "checkpoint_every": 3,
    "threads": 1,
}
FP16 = {"precision": "fp16", "loss_scale": {"initial": 2.0**24, "growth_interval": 3}}
ROWS = (90, 24)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    with keep_torch_settings():
        yield


def trainer(spec: RunSpec, folder: Path, ahead: bool) -> Trainer:
    found = Trainer(spec, folder, Parallel(), StopSignal())
    found.step.ahead = ahead
    return found


def journal(folder: Path) -> list[dict[str, Any]]:
    """Lines without what the clock decides."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["values"] = {
            k: v
            for k, v in line.get("values", {}).items()
            if k not in ("rows_per_second", "memory_mb")
        }
        line["message"] = line.get("message", "").replace(str(folder), "")
    return [{k: v for k, v in line.items() if k != "time"} for line in lines]


def result(found: Trainer, report: TrainReport) -> dict[str, Any]:
    kept = report.model_dump(
        include={
            "status",
            "steps",
            "best_step",
            "best_metric",
            "model_sha256",
            "skipped_steps",
            "instabilities",
        }
    )
    assert report.observed is not None and report.observed.passes is not None
    passes = report.observed.passes
    assert passes.largest_norm is not None and 0 < passes.largest_norm <= 1.001, (
        "as clipped, and without what overflowed"
    )
    # looked at by calls of the optimizer, also those left out
    counts = passes.model_dump(exclude={"train", "measured", "largest_norm", "largest_value"})
    return {
        **kept,
        "counts": counts,
        "state": state_digest(found),
        "journal": journal(found.run_dir),
    }


OPTIMIZERS = {
    "adamw": {"kind": "adamw", "amsgrad": True},
    "sgd": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
    "plain sgd": {"kind": "sgd", "lr": 0.05, "momentum": 0.0},
}


@pytest.mark.req("T11", "T4")
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_optimizer_schedule_and_journal_are_those_of_a_run_that_waits(
    tmp_path: Path, optimizer: str, half: bool
) -> None:
    """In fp16 through overflows in the first step, in the midst, and just before a checkpoint."""
    spec = make_run(
        tmp_path,
        rows=ROWS,
        model=DELICATE,
        optimizer=OPTIMIZERS[optimizer],
        train=TRAIN | (FP16 if half else {}),
    )
    results = []
    for ahead in (False, True):
        found = trainer(spec, tmp_path / f"ahead-{ahead}", ahead)
        results.append(result(found, found.run()))
    assert results[0] == results[1]
    assert (results[0]["skipped_steps"] > 3) == half


@pytest.mark.req("C5", "C6")
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
def test_a_stop_is_kept_at_the_step_in_which_it_was_agreed_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, half: bool
) -> None:
    spec = make_run(tmp_path, rows=ROWS, model=DELICATE, train=TRAIN | (FP16 if half else {}))
    whole = trainer(spec, tmp_path / "whole", False)
    expected = result(whole, whole.run())
    for stop in (1, 4, 6, 11):  # 6: an evaluation is due there
        found = trainer(spec, tmp_path / "parts", True)
        stop_at(found, stop)
        report = found.run()
        assert (report.status, report.steps, found.checkpoints.newest()) == (
            "interrupted",
            stop,
            stop,
        )
    ended = trainer(spec, tmp_path / "parts", True)
    assert result(ended, ended.run())["state"] == expected["state"]
    lines = [line for line in journal(tmp_path / "parts") if line["kind"] != "event"]
    assert lines == [line for line in expected["journal"] if line["kind"] != "event"]


@pytest.mark.req("T11", "C2")
@pytest.mark.parametrize(("half", "log_every"), [(False, 1), (True, 2)], ids=["fp32", "fp16"])
def test_a_window_that_is_not_finite_leaves_the_state_before_it_and_the_same_dump(
    tmp_path: Path, half: bool, log_every: int
) -> None:
    arrays = {"train": synthetic(90, 0), "val": synthetic(24, 1)}
    arrays["train"]["numeric"][40] = 3e38
    options = (
        TRAIN | {"log_every": log_every} | (FP16 | {"loss_scale": {"initial": 8.0}} if half else {})
    )
    spec = make_run(tmp_path, arrays=arrays, model=DELICATE, train=options)
    told, dumps, states = [], [], []
    for ahead in (False, True):
        found = trainer(spec, tmp_path / f"ahead-{ahead}", ahead)
        with pytest.raises(NonFiniteError, match="no parameter was changed by this step") as caught:
            found.run()
        told.append((str(caught.value).replace(str(found.run_dir), ""), journal(found.run_dir)))
        (dump,) = (found.run_dir / "dumps").glob("*/dump.pt")
        dumps.append(torch.load(dump, weights_only=True))
        assert found.checkpoints.newest() == found.state.step == dumps[-1]["step"] - 1 > 0
        states.append(state_digest(found))
    assert told[0] == told[1] and states[0] == states[1]
    assert dumps[0].keys() == dumps[1].keys()
    assert [
        name for name in dumps[0] if tree_digest(dumps[0][name]) != tree_digest(dumps[1][name])
    ] == []
    assert dumps[1]["tensors"] and "train-40" in dumps[1]["wrong_row_ids"]


@pytest.mark.req("T14")
def test_memory_that_runs_out_with_a_step_on_its_way_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_run(
        tmp_path,
        rows=(64, 20),
        model={"kind": "custom", "path": "tests.training.networks:Hungry"},
        train=TRAIN | {"micro_batch_size": 4},
    )
    whole = trainer(spec, tmp_path / "whole", False)
    expected = whole.run()
    monkeypatch.setenv("BULKHEAD_TEST_HUNGRY", "0:11")  # 4 micro-batches a step: in the third step
    with pytest.raises(
        OutOfMemoryError,
        match="rank 0 ran out of memory after step 2; the state after step 2 is saved",
    ):
        trainer(spec, tmp_path / "parts", True).run()
    monkeypatch.delenv("BULKHEAD_TEST_HUNGRY")
    assert trainer(spec, tmp_path / "parts", True).run().model_sha256 == expected.model_sha256


# -------------------------------------------------------------------------------------------
# waiting

NETWORKS: dict[str, Any] = {
    "mlp": {"kind": "mlp"},
    "custom": DELICATE,
    "ft_transformer": {"kind": "ft_transformer", "width": 16, "heads": 2, "depth": 2},
}
LONG: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 16,
    "micro_batch_size": 8,
    "log_every": 2,
    "threads": 1,
    "clip": "norm",
    "ema": 0.9,
}


def waits_of(
    folder: Path, change: Callable[[Trainer], None] = lambda trainer: None, **sections: Any
) -> Waits:
    """What waits in ten steps in the middle of an epoch; in `order` also each backward pass, gate
    and update.
    """
    found, waits = (
        trainer(make_run(folder, rows=(400, 20), **sections), folder / "run", ahead=True),
        Waits(),
    )
    gate = found.step.gate
    found.step.gate = lambda window, norm: (waits.order.append("gate"), gate(window, norm))[1]  # type: ignore[method-assign]
    change(found)
    for _ in range(2):  # the first update is decided on the host
        found._train_one_step()
    waits.order.clear()
    found.optimizer.register_step_pre_hook(lambda *_: waits.order.append("update"))
    first = next(iter(found.model.parameters()))
    first.register_post_accumulate_grad_hook(lambda _: waits.order.append("backward"))
    with waits:
        for _ in range(10):
            found._train_one_step()
    return waits


@pytest.mark.req("T13")
@pytest.mark.parametrize(
    ("model", "half", "clip"),
    [
        ("mlp", False, "norm"),
        ("mlp", True, "value"),
        ("custom", True, "norm"),
        ("ft_transformer", False, "none"),
    ],
)
def test_no_step_waits_for_the_device(tmp_path: Path, model: str, half: bool, clip: str) -> None:
    train = (
        LONG
        | {"clip": clip}
        | ({"precision": "fp16", "loss_scale": {"initial": 256.0}} if half else {})
    )
    waits = waits_of(tmp_path, model=NETWORKS[model], train=train)
    assert waits.found == {"Tensor.tolist": 10}, "each gate once"
    assert waits.order == ["backward", "backward", "tolist", "gate", "update"] * 10, (
        "the gate of a step is read when the next one's backward pass is on its way"
    )


@pytest.mark.req("T13")
def test_waits_that_are_planted_are_found(tmp_path: Path) -> None:
    """In the forward pass, in the clipping, in the loss."""

    def plant(found: Trainer) -> None:
        found.model.register_forward_hook(
            lambda module, args, output: output * float(output.detach().sum() < torch.inf)
        )
        clip, per_row = found.step.clip, found.step.loss.per_row
        found.step.clip = lambda: clip() * torch.tensor(1.0)  # type: ignore[method-assign]
        found.step.loss.per_row = lambda scores, label: (
            per_row(scores, label) + scores[label > 0].sum() * 0
        )  # type: ignore[method-assign]

    waits = waits_of(tmp_path, plant, model=NETWORKS["mlp"], train=LONG)
    assert (
        waits.found["_local_scalar_dense"] >= 20
        and waits.found["lift_fresh"] == 10
        and waits.found["index with a mask"] == 20
    )


@pytest.mark.req("T13")
def test_a_gate_that_is_read_in_its_own_step_is_told_from_one_that_is_read_a_step_later(
    tmp_path: Path,
) -> None:
    def plant(found: Trainer) -> None:
        gate = found.step.gate
        found.step.gate = lambda window, norm: (read := gate(window, norm), read.loss)[0]  # type: ignore[method-assign]

    assert (
        waits_of(tmp_path, plant, model=NETWORKS["mlp"], train=LONG).order
        == ["backward", "backward", "gate", "tolist", "update"] * 10
    )


@pytest.mark.req("T13")
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device here: torch tells of waits on one only"
)
@pytest.mark.parametrize("half", ["fp32", "bf16", "fp16"])
def test_no_step_waits_on_a_gpu(tmp_path: Path, half: str) -> None:
    train = LONG | {"precision": half, "device": "cuda", "threads": None}
    found = Trainer(
        make_run(tmp_path, rows=(400, 20), model=NETWORKS["mlp"], train=train),
        tmp_path / "run",
        Parallel.open("cuda"),
        StopSignal(),
    )
    assert found.step.ahead
    for _ in range(2):
        found._train_one_step()
    try:
        with warnings.catch_warnings():  # torch tells that this mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(10):
            found._train_one_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
