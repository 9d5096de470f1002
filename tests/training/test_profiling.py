"""A declared trace holds the declared steps and changes nothing; an undeclared one leaves no trace
of itself.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.config import ProfileConfig
from schemas.errors import ConfigError
from tests.training.runs import keep_torch_settings, make_run
from training.distributed.parallel import Parallel
from training.engine.profiling import FOLDER, StepProfiler
from training.engine.trainer import Trainer, train
from training.launch.stop_signal import StopSignal

TRAIN = {"epochs": 2, "batch_size": 16, "micro_batch_size": 8, "threads": 1}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


def run(folder: Path, **options: Any) -> str:
    return train(
        make_run(folder, train=TRAIN | options), folder / "run", Parallel(), StopSignal()
    ).model_sha256


@pytest.mark.req("T14")
@pytest.mark.parametrize("start", [0, 4])
def test_the_declared_steps_are_traced_and_the_weights_are_the_same(
    tmp_path: Path, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "training")
    assert run(tmp_path / "traced", profile={"start": start, "steps": 3}) == run(tmp_path / "plain")
    assert not (tmp_path / "plain" / "run" / FOLDER).exists()
    name = f"steps-{start + 1:08d}-{start + 3:08d}"
    assert {path.name for path in (tmp_path / "traced" / "run" / FOLDER).iterdir()} == {
        f"{name}.json.gz",
        f"{name}.txt",
    }
    with gzip.open(tmp_path / "traced" / "run" / FOLDER / f"{name}.json.gz") as file:
        events = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert sum(str(event).startswith("Optimizer.step") for event in events) == 3, (
        "one for each step"
    )
    assert "aten::addmm" in (tmp_path / "traced" / "run" / FOLDER / f"{name}.txt").read_text()
    assert any(
        f"profile of {name}" in message and "aten::addmm" in message for message in caplog.messages
    )


@pytest.mark.req("T14")
def test_steps_that_never_come_are_refused_and_only_rank_0_traces(tmp_path: Path) -> None:
    spec = make_run(tmp_path, train=TRAIN | {"profile": {"start": 12, "steps": 3}})
    with pytest.raises(ConfigError, match="steps 13 to 15 are declared, but the run has 14"):
        Trainer(spec, tmp_path / "run", Parallel(), StopSignal())
    config = ProfileConfig(start=2, steps=3)
    # another rank; a process that resumes in the middle of the declared steps
    for rank, position in ((1, 0), (0, 3)):
        profiler = StepProfiler(
            config, tmp_path / "none", Parallel(rank=rank, world_size=1), position, 14, lambda: None
        )
        for made in range(position + 1, 15):
            profiler.step(made)
    assert not (tmp_path / "none").exists()
