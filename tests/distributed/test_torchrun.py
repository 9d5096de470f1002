"""The training program under a real torchrun: killed in mid-epoch, stopped by a signal, and brought to the same end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from schemas.records import TrainReport
from tests.distributed.launch import torchrun
from tests.training.runs import make_run
from tests.training.test_train import SCRIPTED, last_state, same


@pytest.mark.req("C5")
@pytest.mark.req("C6")
def test_killed_and_stopped_in_mid_epoch_it_ends_bit_identical(tmp_path: Path) -> None:
    make_run(tmp_path, rows=(101, 33), model=SCRIPTED, train={"epochs": 3, "batch_size": 16, "micro_batch_size": 5, "checkpoint_every": 2, "ranks": 2})
    config = tmp_path / "resolved.json"
    whole = torchrun(2, config, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-3000:]

    killed = torchrun(2, config, tmp_path / "parts", BULKHEAD_TEST_SIGNAL="KILL:1:23")  # in the second epoch
    assert killed.returncode != 0
    assert not (tmp_path / "parts" / "result.json").exists()
    newest = max((tmp_path / "parts" / "checkpoints").glob("step-*"))
    assert newest.name == "step-00000010", "in mid-epoch: an epoch has 7 steps"

    stopped = torchrun(2, config, tmp_path / "parts", BULKHEAD_TEST_SIGNAL="TERM:1:5")
    assert stopped.returncode == 0, stopped.stderr[-3000:]
    report = TrainReport.model_validate_json((tmp_path / "parts" / "result.json").read_text())
    assert report.status == "interrupted" and 10 < report.steps < 21

    ended = torchrun(2, config, tmp_path / "parts")
    assert ended.returncode == 0, ended.stderr[-3000:]
    reports = [TrainReport.model_validate_json((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts")]
    assert reports[0].status == reports[1].status == "finished"
    assert reports[0].model_sha256 == reports[1].model_sha256
    assert same(last_state(tmp_path / "whole"), last_state(tmp_path / "parts"))
    events = [json.loads(line).get("message", "") for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert "resumed from step-00000010" in events
    assert len(torch.load(max((tmp_path / "parts" / "checkpoints").glob("step-*")) / "trainer.pt", weights_only=True)["rng"]) == 2
