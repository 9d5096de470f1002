"""A run whose memory runs out: what it saved is what was reached, and it goes on from there to the
same end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.config import TrainConfig
from schemas.errors import OutOfMemoryError
from schemas.records import RunSpec, TrainReport
from tests.distributed.launch import torchrun
from tests.training.runs import keep_torch_settings, make_run
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal

HUNGRY = {"kind": "custom", "path": "tests.training.networks:Hungry"}
TRAIN = TrainConfig(epochs=2, batch_size=16, micro_batch_size=4, threads=1).model_dump()


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    with keep_torch_settings():
        yield


def hungry_run(folder: Path) -> RunSpec:
    return make_run(folder, rows=(64, 20), model=HUNGRY, train=TRAIN)


@pytest.mark.req("T14")
def test_out_of_memory_saves_the_last_boundary_and_gives_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = hungry_run(tmp_path)
    whole = train(spec, tmp_path / "whole", Parallel(), StopSignal())
    monkeypatch.setenv("BULKHEAD_TEST_HUNGRY", "0:11")  # 4 micro-batches a step: in the third step
    with pytest.raises(
        OutOfMemoryError,
        match=r"rank 0 ran out of memory after step 2; the state after step 2 is saved",
    ) as caught:
        train(spec, tmp_path / "parts", Parallel(), StopSignal())
    assert (
        "Lower train.micro_batch_size (now 4) to 2: the gradient stays that of batch_size 16"
        in str(caught.value)
    )
    assert "train.precision: bf16" in str(caught.value)
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == [
        "step-00000002"
    ]
    monkeypatch.delenv("BULKHEAD_TEST_HUNGRY")
    ended = train(spec, tmp_path / "parts", Parallel(), StopSignal())
    assert ended.model_sha256 == whole.model_sha256


@pytest.mark.long
@pytest.mark.req("T14")
def test_memory_that_runs_out_on_another_rank_loses_no_step(tmp_path: Path) -> None:
    hungry_run(tmp_path)
    # 2 micro-batches a step, and 2 rehearsed
    failed = torchrun(2, tmp_path / "resolved.json", tmp_path / "run", BULKHEAD_TEST_HUNGRY="1:9")
    assert failed.returncode != 0
    assert "rank 1 ran out of memory after step 3" in failed.stdout + failed.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == [
        "step-00000003"
    ]
    for name in ("run", "whole"):
        assert torchrun(2, tmp_path / "resolved.json", tmp_path / name).returncode == 0
    reports = [
        TrainReport.model_validate(json.loads((tmp_path / name / "result.json").read_text()))
        for name in ("run", "whole")
    ]
    assert reports[0].model_sha256 == reports[1].model_sha256
