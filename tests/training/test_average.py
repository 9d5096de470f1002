"""Averaged weights (train.ema): torch's own average step by step, validated, kept and resumed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from schemas.config import TrainConfig
from schemas.errors import CheckpointError
from schemas.records import RunSpec, TrainReport
from schemas.train_config import EmaConfig
from tests.distributed.layout_work import state_digest, stop_at
from tests.training.modules import Sound
from tests.training.runs import keep_torch_settings, make_run
from tests.training.toys import make_toy
from training.distributed.average import Average, weight_of
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.models.shape import ModelShape
from training.preflight.first_steps import check_cost, make_trial
from training.preflight.resume import check_resume

DELICATE = {"kind": "custom", "path": "tests.faults.networks:Delicate"}  # with running statistics
TRAIN: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 16,
    "micro_batch_size": 6,
    "checkpoint_every": 3,
    "threads": 1,
    "ema": 0.9,
}
FP16 = {"precision": "fp16", "loss_scale": {"initial": 2.0**24, "growth_interval": 3}}
ROWS = (90, 24)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    with keep_torch_settings():
        yield


def trainer(spec: RunSpec, folder: Path, ahead: bool = False) -> Trainer:
    found = Trainer(spec, folder, Parallel(), StopSignal())
    found.step.ahead = ahead
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@given(st.floats(0.01, 0.9999), st.integers(1, 40), st.integers(0, 99))
def test_it_is_the_average_of_torch_on_the_same_weights(
    decay: float, updates: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 1))
    mine = Average(network, EmaConfig(decay=decay, warmup=False))
    torchs = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay))
    for update in range(1, updates + 1):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        mine.update(update)
        torchs.update_parameters(network)
    assert same(mine.weights, dict(torchs.module.named_parameters()))


@given(st.floats(0.01, 0.9999), st.integers(1, 10**6))
def test_a_warm_up_keeps_less_at_the_start_and_never_more(decay: float, update: int) -> None:
    warm, cold = (
        weight_of(update, EmaConfig(decay=decay, warmup=warmup)) for warmup in (True, False)
    )
    assert 0 < cold <= warm <= 1
    assert warm >= weight_of(update + 1, EmaConfig(decay=decay)) >= 1 - decay


def test_a_number_is_a_decay_and_bad_ones_are_refused() -> None:
    assert TrainConfig.model_validate({"ema": 0.9}).ema == EmaConfig(decay=0.9, warmup=True)
    assert TrainConfig().ema is None
    for wrong in (1, 0, -0.5, 1.5, True, "0.9", {"decay": 1.0}, {"rate": 0.9}):
        with pytest.raises(ValidationError, match="ema"):
            TrainConfig.model_validate({"ema": wrong})


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("ahead", [False, True], ids=["waits", "ahead"])
def test_a_run_keeps_the_average_that_torch_makes_of_its_updates(
    tmp_path: Path, half: bool, ahead: bool
) -> None:
    """Through steps that overflow, which count for neither; with the running statistics as they
    are.
    """
    train = TRAIN | (FP16 if half else {}) | {"ema": {"decay": 0.9, "warmup": False}}
    found = trainer(make_run(tmp_path, rows=ROWS, model=DELICATE, train=train), tmp_path, ahead)
    torchs = AveragedModel(found.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    count, evaluate, seen = found._count, found._evaluate, []

    def count_both(launched: Any) -> None:
        count(launched)
        if not launched.gate.overflowed:
            torchs.update_parameters(found.model)

    def evaluate_both() -> bool:
        seen.append(copy.deepcopy(found.model.state_dict()))
        running = dict(found.model.named_buffers())
        assert same(seen[-1], dict(torchs.module.named_parameters()) | running)
        return evaluate()

    found._count, found._evaluate = count_both, evaluate_both  # type: ignore[method-assign]
    report = found.run()
    assert (report.skipped_steps > 3) == half
    best = found.checkpoints.load_best(report.best_step)
    assert same(best, seen[report.best_step // found.sampler.steps_per_epoch - 1])
    newest = found.checkpoints.load(report.steps)
    assert same(newest["trainer.pt"]["average"], dict(torchs.module.named_parameters()))
    assert not same(newest["model.pt"], seen[-1]), "training continues from the raw weights"


def test_raw_weights_are_those_of_a_run_without_an_average(tmp_path: Path) -> None:
    """Batches, dropout and updates are the same; only what is evaluated and kept differs."""
    ends = []
    for name, ema in (("with", 0.9), ("without", None)):
        train = TRAIN | {"ema": ema}
        found = trainer(
            make_run(tmp_path / name, rows=ROWS, model=DELICATE, train=train),
            tmp_path / name / "run",
        )
        found.run()
        ends.append(found)
    assert same(*(e.model.state_dict() for e in ends))
    best = [e.checkpoints.load_best(e.state.best_step) for e in ends]
    assert not same(*best)
    assert "average" not in ends[1].checkpoints.load_trainer(ends[1].state.step)


@pytest.mark.req("C2", "C5")
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, half: bool
) -> None:
    spec = make_run(tmp_path, rows=ROWS, model=DELICATE, train=TRAIN | (FP16 if half else {}))
    whole = trainer(spec, tmp_path / "whole")
    expected: TrainReport = whole.run()
    for stop in (1, 4, 6, 11):  # an evaluation is due at 6
        found = trainer(spec, tmp_path / "parts", ahead=True)
        stop_at(found, stop)
        assert found.run().status == "interrupted"
    ended = trainer(spec, tmp_path / "parts", ahead=True)
    assert ended.run().model_sha256 == expected.model_sha256
    assert state_digest(ended) == state_digest(whole)


def test_another_average_is_another_run(tmp_path: Path) -> None:
    first = trainer(make_run(tmp_path, rows=ROWS, train=TRAIN), tmp_path / "run")
    stop_at(first, 4)
    first.run()
    for ema in (0.99, None):
        other = make_run(tmp_path, rows=ROWS, train=TRAIN | {"ema": ema})
        with pytest.raises(CheckpointError, match=r"train\.ema"):
            trainer(other, tmp_path / "run")


def test_an_evaluation_that_fails_leaves_the_raw_weights(tmp_path: Path) -> None:
    found = trainer(make_run(tmp_path, rows=ROWS, train=TRAIN), tmp_path / "run")
    found._train_one_step()
    found._train_one_step()
    raw = copy.deepcopy(found.model.state_dict())
    with pytest.raises(RuntimeError, match="planted"), found.average.applied():
        assert not same(found.model.state_dict(), raw)
        raise RuntimeError("planted")
    assert same(found.model.state_dict(), raw)


# ------------------------------------------------------------------------------------ preflight


class Remembering(Sound):
    """Keep the weights that the train pass scaled, and score with them in eval mode."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.scaled: Tensor | None = None

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores [B, outputs]."""
        if self.training or self.scaled is None:
            self.scaled = self.hidden.weight * 1.5
        values = torch.relu(nn.functional.linear(batch["numeric"], self.scaled, self.hidden.bias))
        return self.head(values)


@pytest.mark.req("M4")
def test_a_network_that_scores_with_other_weights_than_its_averaged_ones_is_found() -> None:
    path = f"{__name__}:Remembering"
    for model, ema, verdict in (
        ({"kind": "mlp", "hidden": [16]}, 0.9, "pass"),
        ({"kind": "resmlp", "width": 16, "depth": 1}, {"decay": 0.5, "warmup": False}, "pass"),
        ({"kind": "custom", "path": path}, None, "pass"),
        ({"kind": "custom", "path": path}, 0.9, "fail"),
    ):
        toy = make_toy("binary", model, rows=60, train={"ema": ema})
        result = check_resume(make_trial(toy.declaration, toy.statistics, toy.arrays))
        assert result.verdict == verdict, result.summary
    assert "it keeps something that it computed from the raw ones" in result.summary


def test_the_average_is_part_of_the_expected_memory() -> None:
    found = []
    for ema in (None, 0.9):
        toy = make_toy("binary", {"kind": "mlp", "hidden": [64]}, rows=60, train={"ema": ema})
        trial = make_trial(toy.declaration, toy.statistics, toy.arrays)
        found.append(float(check_cost(trial).figures["bytes_a_rank"] or 0))
    assert found[1] > found[0]
