"""fp16 with a scaled loss: step by step what torch's own loop with GradScaler does, through
overflows that were forced.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from schemas.config import AdamWConfig, SgdConfig, TrainConfig
from schemas.errors import NonFiniteError
from tests.training.networks import Plain
from tests.training.runs import WIDTH, keep_torch_settings, make_run, synthetic
from training.distributed.layout import Layout
from training.distributed.parallel import Parallel
from training.engine.batches import WindowReader, as_tensors
from training.engine.sampling import Sampler
from training.engine.step import Step
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.objectives.losses import BinaryCrossEntropy
from training.optim.optimizer import make_optimizer

STEPS = 60
TRAIN = TrainConfig.model_validate(
    {
        "batch_size": 32,
        "precision": "fp16",
        "loss_scale": {"initial": 2.0**24, "growth_interval": 4},
        "clip_at": 0.05,
    }
)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


@pytest.mark.req("T4")
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_every_step_is_that_of_a_plain_loop_with_grad_scaler(kind: str) -> None:
    """torch's own SGD is not fused here: handed the overflow of its first step, its fused kernel
    would go on with uninitialised momentum.
    """
    torch.manual_seed(0)
    model = Plain(WIDTH, 1)
    twin, parallel, loss = copy.deepcopy(model), Parallel(), BinaryCrossEntropy()
    mine = make_optimizer(
        AdamWConfig(lr=0.01, weight_decay=0.0) if kind == "adamw" else SgdConfig(lr=0.01), model
    )
    torchs = (
        torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.0, fused=True)
        if kind == "adamw"
        else torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    )
    reader = WindowReader(as_tensors(synthetic(64, 0)), Sampler(64, 32, seed=0), loss, parallel)
    step = Step(Layout(model, parallel, TRAIN), loss, mine, TRAIN)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    skipped = 0
    for number in range(STEPS):
        window = reader.read(number)
        step.gradients(window)
        gate = step.gate(window, step.clip())
        step.update(gate)
        skipped += gate.overflowed

        torchs.zero_grad()
        with torch.autocast("cpu", torch.float16):
            scores = twin(window.batch)
        scaler.scale(
            (loss.per_row(scores.float(), window.label) * window.coefficient).sum()
        ).backward()
        scaler.unscale_(torchs)
        nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        scaler.step(torchs)
        scaler.update()

        assert step.scaler.state_dict() == scaler.state_dict()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)
    assert 5 < skipped < STEPS / 2, "overflows at the start, and after each growth too far"


@pytest.mark.req("T2")
def test_the_schedule_moves_only_with_updates_that_were_made(tmp_path: Path) -> None:
    options = TRAIN.model_dump() | {"epochs": 6, "log_every": 1, "threads": 1}
    spec = make_run(
        tmp_path, rows=(160, 30), train=options, schedule={"kind": "warmup_cosine", "warmup": 0.5}
    )
    trainer = Trainer(spec, tmp_path / "run", Parallel(), StopSignal())
    rates, updates = [], []
    one_step = trainer._train_one_step

    def noted() -> bool:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        updates.append(trainer.state.updates)
        return one_step()

    trainer._train_one_step = noted  # type: ignore[method-assign]
    report = trainer.run()
    assert report.steps == 30
    assert report.skipped_steps == report.steps - trainer.state.updates > 3
    assert rates == [trainer.schedule.rate(number) for number in updates]
    counts = {int(state["step"]) for state in trainer.optimizer.state_dict()["state"].values()}
    assert counts == {trainer.state.updates}, "the optimizer's own count of its steps"


@pytest.mark.req("T11")
def test_a_gradient_that_no_scale_cures_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    options = TRAIN.model_dump() | {"epochs": 9, "threads": 1, "loss_scale": {"initial": 4.0}}
    spec = make_run(
        tmp_path,
        rows=(64, 20),
        model={"kind": "custom", "path": "tests.training.networks:Cliff"},
        train=options,
    )
    trainer = Trainer(spec, tmp_path / "run", Parallel(), StopSignal())
    with pytest.raises(NonFiniteError, match=r"gradient is not finite in .* at step 3, "):
        trainer.run()
    assert trainer.state.updates == 0 and trainer.step.scaler.get_scale() == 1.0
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir(), (
        "the state before the step, for a replay"
    )
