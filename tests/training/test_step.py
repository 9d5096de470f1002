"""One optimizer step: its order, its clipping, its precision, and what reaches the gate."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from schemas.config import TrainConfig, WarmupCosineSchedule
from schemas.errors import TrainingError
from tests.training.networks import Plain
from tests.training.runs import WIDTH, keep_torch_settings, synthetic
from training.distributed.layout import Layout
from training.distributed.parallel import Parallel
from training.engine.batches import WindowReader, as_tensors
from training.engine.sampling import Sampler
from training.engine.step import Step
from training.objectives.losses import BinaryCrossEntropy
from training.optim.optimizer import make_optimizer
from training.optim.schedule import Schedule


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


def parts(
    train: TrainConfig, model: nn.Module | None = None, rows: int = 64
) -> tuple[Step, WindowReader]:
    torch.manual_seed(0)
    model = model or Plain(WIDTH, 1)
    loss, parallel = BinaryCrossEntropy(), Parallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reader = WindowReader(
        as_tensors(synthetic(rows, 0)), Sampler(rows, train.batch_size, seed=0), loss, parallel
    )
    return Step(Layout(model, parallel, train), loss, optimizer, train), reader


@pytest.mark.req("T2")
def test_the_order_of_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Recorded in the trainer itself, through hooks of torch and around the parts that it calls."""
    from schemas.config import TrainConfig
    from tests.training.runs import make_run
    from training.engine.trainer import Trainer
    from training.launch.stop_signal import StopSignal

    spec = make_run(
        tmp_path,
        rows=(32, 16),
        train=TrainConfig(epochs=1, batch_size=16, micro_batch_size=8).model_dump(),
    )
    trainer, order = Trainer(spec, tmp_path / "run", Parallel(), StopSignal()), []

    def noted(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (order.append(name), real(*a, **k))[1])

    for owner, name in [
        (trainer.optimizer, "zero_grad"),
        (trainer.optimizer, "step"),
        (trainer.step, "clip"),
        (trainer.step, "gate"),
        (trainer.schedule, "apply"),
    ]:
        noted(owner, name)
    trainer.model.register_forward_hook(lambda *_: order.append("forward"))
    last = next(iter(trainer.model.parameters()))
    last.register_post_accumulate_grad_hook(lambda _: order.append("backward"))
    trainer._train_one_step()
    assert order == [
        "zero_grad",
        "forward",
        "backward",
        "forward",
        "backward",
        "clip",
        "gate",
        "step",
        "apply",
    ]
    assert trainer.optimizer.param_groups[0]["lr"] == trainer.schedule.rate(1), (
        "the rate of the next step, after the update"
    )


@pytest.mark.req("T5")
@pytest.mark.parametrize(
    ("clip", "at"), [("norm", 0.01), ("norm", 1e6), ("value", 0.003), ("none", 1.0)]
)
def test_clipping_is_torchs_and_the_norm_is_that_before_it(clip: Any, at: float) -> None:
    step, reader = parts(TrainConfig(batch_size=32, clip=clip, clip_at=at))
    step.gradients(reader.read(0))
    twin = copy.deepcopy(step.model)
    for p, q in zip(twin.parameters(), step.model.parameters(), strict=True):
        p.grad = q.grad.clone()  # type: ignore[union-attr]
    expected = torch.nn.utils.get_total_norm(
        [p.grad for p in twin.parameters() if p.grad is not None]
    )
    if clip == "norm":
        torch.nn.utils.clip_grad_norm_(twin.parameters(), at)
    elif clip == "value":
        torch.nn.utils.clip_grad_value_(twin.parameters(), at)
    torch.testing.assert_close(step.clip(), expected)
    for p, q in zip(twin.parameters(), step.model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


@pytest.mark.req("T11")
def test_a_gradient_that_is_not_finite_is_stopped_at_the_gate_and_left_for_the_dump() -> None:
    step, reader = parts(TrainConfig(batch_size=32, clip="norm"))
    window = reader.read(0)
    step.gradients(window)
    next(iter(step.trace.gradients.values()))[0, 0] = float("nan")
    step.trace.norms = torch.stack(torch._foreach_norm(list(step.trace.gradients.values())))
    gate = step.gate(window, step.clip())
    assert not gate.finite and np.isfinite(gate.loss)
    assert sum(int((~torch.isfinite(g)).sum()) for g in step.trace.gradients.values()) == 1, (
        "clipping must not spread it"
    )


@pytest.mark.req("T3")
@pytest.mark.parametrize("micro", [None, 1, 5, 32])
def test_the_reported_loss_is_the_weighted_mean_of_the_window(micro: int | None) -> None:
    step, reader = parts(TrainConfig(batch_size=24, micro_batch_size=micro))
    for number in range(3):  # the last window is ragged
        window = reader.read(number)
        step.gradients(window, lambda number=number: number == 2)
        gate = step.gate(window, step.clip())
        tensors = {name: tensor[window.rows] for name, tensor in reader.tensors.items()}
        with torch.no_grad():
            expected = BinaryCrossEntropy()(
                step.model({"numeric": tensors["numeric"]}), tensors["label"], tensors["weight"]
            )
        assert gate.loss == pytest.approx(float(expected), rel=1e-5)
        assert gate.weight_sum == pytest.approx(float(tensors["weight"].sum()), rel=1e-6)
        assert gate.stop == (number == 2)


@pytest.mark.req("T3")
def test_a_window_without_weight_changes_nothing() -> None:
    step, reader = parts(TrainConfig(batch_size=32))
    reader.tensors["weight"] = torch.zeros(64)
    window = reader.read(0)
    step.gradients(window)
    gate = step.gate(window, step.clip())
    assert gate.finite and gate.loss == 0 and gate.weight_sum == 0
    assert all(float(g.abs().max()) == 0 for g in step.trace.gradients.values())


@pytest.mark.req("T4")
def test_bf16_keeps_weights_and_loss_in_full_precision() -> None:
    seen: list[torch.dtype] = []

    class Watching(BinaryCrossEntropy):
        def per_row(self, scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            seen.append(scores.dtype)
            return super().per_row(scores, label)

    inside: list[torch.dtype] = []
    step, reader = parts(TrainConfig(batch_size=32, precision="bf16"))
    step.loss = Watching()
    step.model.layers[0].register_forward_hook(
        lambda module, args, output: inside.append(output.dtype)
    )
    step.gradients(reader.read(0))
    assert inside == [torch.bfloat16] and seen == [torch.float32]
    assert {g.dtype for g in step.trace.gradients.values()} == {torch.float32}


@pytest.mark.req("T13")
def test_a_window_read_ahead_is_the_window_read_later() -> None:
    _, ahead = parts(TrainConfig(batch_size=24))
    _, plain = parts(TrainConfig(batch_size=24))
    for number in range(7):
        window = ahead.read(number)
        before = {name: tensor.clone() for name, tensor in window.batch.items()}
        ahead.prefetch(number + 1)
        assert all(torch.equal(window.batch[name], value) for name, value in before.items()), (
            "reading ahead must not overwrite the current window"
        )
        other = plain.read(number)
        assert (
            torch.equal(window.rows, other.rows)
            and torch.equal(window.batch["numeric"], other.batch["numeric"])
            and torch.equal(window.coefficient, other.coefficient)
        )


@pytest.mark.req("T6")
def test_a_parameter_without_gradient_is_named() -> None:
    model = Plain(WIDTH, 1)
    model.forgotten = nn.Linear(2, 2)
    step, reader = parts(TrainConfig(batch_size=32), model)
    with pytest.raises(
        TrainingError, match=r"2 of 8 trainable parameters got no gradient.*forgotten.weight"
    ):
        step.gradients(reader.read(0))


@pytest.mark.req("T7")
def test_rates_reach_every_group() -> None:
    from schemas.config import AdamWConfig

    optimizer = make_optimizer(AdamWConfig(lr=0.5), Plain(WIDTH, 1))
    Schedule(WarmupCosineSchedule(), 0.5, 100, True).apply(optimizer, 0)
    assert {g["lr"] for g in optimizer.param_groups} == {0.5 / 5}
