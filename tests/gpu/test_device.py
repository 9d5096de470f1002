"""Training on the device that BULKHEAD_TEST_DEVICE names (default: cpu): the same promises on every
device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.distributed.layout_work import stop_at
from tests.training.runs import keep_torch_settings, make_run
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal

DEVICE = os.environ.get("BULKHEAD_TEST_DEVICE", "cpu")
# dropout and running statistics
DELICATE = {"kind": "custom", "path": "tests.faults.networks:Delicate"}
TRAIN: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "micro_batch_size": 6,
    "checkpoint_every": 3,
    "log_every": 2,
    "threads": 1,
    "device": DEVICE,
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "loss_scale": {"initial": 2.0**24, "growth_interval": 3}},
    "elastic": {"mode": "elastic", "logical_shards": 2, "micro_batch_size": None},
}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    with keep_torch_settings():
        yield


def trainer(folder: Path, run: Path, **train: Any) -> Trainer:
    # elastic takes no running statistics
    model = {"kind": "mlp", "dropout": 0.2} if train.get("mode") == "elastic" else DELICATE
    spec = make_run(
        folder,
        rows=(90, 24),
        model=model,
        train={k: v for k, v in (TRAIN | train).items() if v is not None},
    )
    found = Trainer(spec, run, Parallel.open(DEVICE), StopSignal())
    found.step.ahead = True  # as on a GPU anyway
    return found


@pytest.mark.req("G2", "C6")
@pytest.mark.parametrize("kind", PRECISIONS)
def test_a_run_that_is_stopped_anywhere_ends_as_one_that_was_not(tmp_path: Path, kind: str) -> None:
    wanted = trainer(tmp_path, tmp_path / "whole", **PRECISIONS[kind]).run()
    for boundary in (1, 5, 6):
        parts = trainer(tmp_path, tmp_path / "parts", **PRECISIONS[kind])
        stop_at(parts, boundary)
        assert parts.run().status == "interrupted"
    found = trainer(tmp_path, tmp_path / "parts", **PRECISIONS[kind]).run()
    assert (found.model_sha256, found.best_metric, found.steps) == (
        wanted.model_sha256,
        wanted.best_metric,
        wanted.steps,
    )


@pytest.mark.req("T12")
@pytest.mark.parametrize("kind", PRECISIONS)
def test_a_run_ends_with_the_same_bits_twice(tmp_path: Path, kind: str) -> None:
    assert (
        len(
            {
                trainer(tmp_path, tmp_path / name, **PRECISIONS[kind]).run().model_sha256
                for name in ("a", "b")
            }
        )
        == 1
    )


@pytest.mark.req("T9")
def test_validation_scores_are_those_of_the_cpu(tmp_path: Path) -> None:
    found = trainer(tmp_path, tmp_path / "run")
    report = found.run()
    twin = Trainer(
        make_run(tmp_path, rows=(90, 24), model=DELICATE, train=TRAIN | {"device": "cpu"}),
        tmp_path / "cpu",
        Parallel(),
        StopSignal(),
    )
    twin.model.load_state_dict({k: v.cpu() for k, v in found.model.state_dict().items()})
    arrays = {"numeric": torch.from_numpy(np.load(tmp_path / "arrays" / "val" / "numeric.npy"))}
    with torch.inference_mode():
        scores = [
            t.model.eval()({k: v.to(t.parallel.device) for k, v in arrays.items()}).cpu()
            for t in (found, twin)
        ]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=1e-6)
    assert (
        report.best_step > 0
        and next(found.model.parameters()).device.type == torch.device(DEVICE).type
    )
