"""The throughput benchmark compares like with like, and fails if the figures do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import encoders, ranks
from benchmarks.loops import HandWritten, OwnLoop
from benchmarks.made_up import prepare, variant
from benchmarks.made_up_kinds import prepare_kind
from benchmarks.ranks import WAYS
from benchmarks.throughput import Case, holds, measure, section
from tests.training.runs import keep_torch_settings
from training.checkpoint.state import model_digest
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.main import read_spec

TRAIN = {"epochs": 1000, "batch_size": 256, "patience": 1000, "threads": 1}


@pytest.mark.long
@pytest.mark.req("P7")
def test_loops_start_from_the_same_weights_and_every_figure_is_there(tmp_path: Path) -> None:
    spec = prepare(tmp_path, 1500)
    config = variant(spec, tmp_path / "resolved.json", model={"kind": "mlp"}, train=TRAIN)
    with keep_torch_settings():
        own = OwnLoop(Trainer(read_spec(config), tmp_path / "run", Parallel(), StopSignal()))
        hand = HandWritten(read_spec(config), Parallel(), careful=True)
        assert type(own.trainer.model) is type(hand.model)
        assert model_digest(own.trainer.model.state_dict()) == model_digest(hand.model.state_dict())
        assert [len(g["params"]) for g in own.trainer.optimizer.param_groups] == [
            len(g["params"]) for g in hand.optimizer.param_groups
        ]
    result = measure(
        Case("tiny", {"kind": "mlp"}, 0.9, steps=2, pairs=8), tmp_path, config, rounds=2
    )
    assert (
        set(result["rows_per_second"]) == {"bulkhead", "careful", "bare"}
        and min(result["rows_per_second"].values()) > 0
    )
    share = result["of_careful"]["bulkhead"]
    assert (
        0 < share["low"] <= share["median"]
        and result["of_careful"]["careful"]["median"] == 1
        and result["save_seconds"] > 0
    )
    assert f"| tiny | {share['median']:.2f} |" in section([result], 2)


@pytest.mark.parametrize(
    ("share", "saving", "least", "expected"),
    [
        (0.91, 0.01, 0.9, True),
        (0.89, 0.01, 0.9, False),
        (0.95, 0.03, 0.9, False),
        (0.1, 0.01, None, True),
        (0.1, 1.0, None, False),
    ],
)
def test_a_slow_loop_or_a_dear_checkpoint_does_not_hold(
    share: float, saving: float, least: float | None, expected: bool
) -> None:
    result: dict[str, Any] = {
        "least": least,
        "of_careful": {"bulkhead": {"median": share}},
        "saving": {"median": saving},
    }
    assert holds(result) is expected


def test_what_a_second_rank_costs_is_told_apart_turn_by_turn() -> None:
    seconds = (1.5, 1.0, 1.1, 1.3, 0.6, 0.9, 1.2)
    found = {
        way: [ranks.Turn(factor * step, 0.13 * factor) for factor in (1, 2)]
        for way, step in zip(WAYS, seconds, strict=True)
    }
    text = ranks.section(found)
    assert (
        "Two ranks: what processes take from each other adds 10 % to a step" in text
        and "waiting for each other adds 20 %" in text
    )
    assert (
        "takes 10 % of such a step" in text
        and "Four ranks: what processes take from each other adds 50 %" in text
    )
    assert (
        "| two ranks | 1950.0 | 1.30 | 195.00 |" in text
        and "| two such processes | 1650.0 | 1.10 | – |" in text
    )


@pytest.mark.long
@pytest.mark.req("P7")
@pytest.mark.parametrize("case", encoders.CASES, ids=lambda case: case.name)
def test_each_encoder_is_trained_by_both_loops_on_the_same_rows(
    tmp_path: Path, case: encoders.Case
) -> None:
    spec = prepare_kind(tmp_path, 200, case.kind, case.encoder)
    config = variant(spec, tmp_path / "resolved.json", train=TRAIN | {"batch_size": 16})
    parallel = Parallel()
    with keep_torch_settings():
        own = OwnLoop(Trainer(read_spec(config), tmp_path / "run", parallel, StopSignal()))
        hand = HandWritten(read_spec(config), parallel, careful=True)
        window = own.trainer.reader.read(0)
        for name, rows in window.batch.items():
            torch.testing.assert_close(rows, hand.inputs[name][window.rows], rtol=0, atol=0)
        found = encoders.measure(case._replace(batch=16), tmp_path / "again", 200, 2)
    assert found.own > 0 and found.careful > 0
    assert found.share["low"] <= found.share["median"] <= found.share["high"]
    assert case.name in encoders.section([found], 2)
