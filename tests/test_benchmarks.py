"""The throughput benchmark compares like with like, and fails where the figures do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.loops import HandWritten, OwnLoop
from benchmarks.table import prepare, variant
from benchmarks.throughput import Case, holds, measure
from tests.training.runs import keep_torch_settings
from training.guard import StopSignal
from training.loop import Trainer
from training.main import read_spec
from training.parallel import Parallel
from training.state import model_digest

TRAIN = {"epochs": 1000, "batch_size": 256, "patience": 1000, "threads": 1}


@pytest.mark.req("P7")
def test_loops_start_from_the_same_weights_and_every_figure_is_there(tmp_path: Path) -> None:
    spec = prepare(tmp_path, 1500)
    config = variant(spec, tmp_path / "resolved.json", model={"kind": "mlp"}, train=TRAIN)
    with keep_torch_settings():
        own = OwnLoop(Trainer(read_spec(config), tmp_path / "run", Parallel(), StopSignal()))
        hand = HandWritten(read_spec(config), Parallel(), careful=True)
        assert type(own.trainer.model) is type(hand.model)
        assert model_digest(own.trainer.model.state_dict()) == model_digest(hand.model.state_dict())
        assert [len(g["params"]) for g in own.trainer.optimizer.param_groups] == [len(g["params"]) for g in hand.optimizer.param_groups]
    result = measure(Case("tiny", 1, {"kind": "mlp"}, True), tmp_path, config, rounds=2, steps=2)
    assert set(result["rows_per_second"]) == {"bulkhead", "careful", "bare"} and min(result["rows_per_second"].values()) > 0
    assert 0 < result["of_careful"]["low"] <= result["of_careful"]["median"] and result["save_seconds"] > 0


@pytest.mark.parametrize(
    ("share", "saving", "required", "expected"), [(0.91, 0.01, True, True), (0.89, 0.01, True, False), (0.95, 0.03, True, False), (0.1, 1.0, False, True)]
)
def test_a_slow_loop_or_a_dear_checkpoint_does_not_hold(share: float, saving: float, required: bool, expected: bool) -> None:
    result: dict[str, Any] = {"required": required, "of_careful": {"median": share}, "saving": {"median": saving}}
    assert holds(result) is expected
