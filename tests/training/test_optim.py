"""Each optimizer is torch's own, to the bit, also when it was saved and loaded in the middle."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from schemas.config import AdamConfig, AdamWConfig, Optimizer, SgdConfig
from schemas.errors import TrainingError
from training.optim.optimizer import describe_rates, make_optimizer

STEPS = 200
ADAM = {"lr": 0.01, "weight_decay": 0.2, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6}
OPTIMIZERS: list[tuple[Optimizer, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (AdamWConfig(), torch.optim.AdamW, {"lr": 1e-3}),
    (AdamWConfig(**ADAM), torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6}),
    (
        AdamWConfig(**ADAM, amsgrad=True),
        torch.optim.AdamW,
        {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "amsgrad": True},
    ),
    (AdamConfig(), torch.optim.Adam, {"lr": 1e-3}),
    (AdamConfig(**ADAM), torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6}),
    (
        AdamConfig(**ADAM, amsgrad=True),
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "amsgrad": True},
    ),
    (SgdConfig(momentum=0.0), torch.optim.SGD, {"lr": 0.1}),
    (SgdConfig(lr=0.05, weight_decay=0.1), torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    (
        SgdConfig(lr=0.05, momentum=0.7, nesterov=True),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.7, "nesterov": True},
    ),
    (
        SgdConfig(lr=0.05, momentum=0.7, dampening=0.4),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.7, "dampening": 0.4},
    ),
]


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(17, 9), nn.GELU(), nn.Linear(9, 3)).to(dtype)


def theirs(
    model: nn.Module,
    kind: type[torch.optim.Optimizer],
    weight_decay: float,
    fused: bool,
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """The plain torch optimizer with hand-made groups."""
    weights, biases = (
        [p for name, p in model.named_parameters() if name.endswith(end)]
        for end in ("weight", "bias")
    )
    return kind(
        [
            {"params": weights, "weight_decay": weight_decay},
            {"params": biases, "weight_decay": 0.0},
        ],
        fused=fused,
        **options,
    )  # type: ignore[call-arg]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, index: int) -> None:
    x = torch.randn(8, 17, generator=torch.Generator().manual_seed(index)).to(
        next(model.parameters()).dtype
    )
    optimizer.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.req("T6")
@pytest.mark.parametrize(
    ("config", "kind", "options"),
    OPTIMIZERS,
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_each_step_is_torchs_fused_one_to_the_bit_and_the_plain_ones_value(
    config: Optimizer, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    models = network(), network()
    ours, fused = (
        make_optimizer(config, models[0]),
        theirs(models[1], kind, config.weight_decay, True, options),
    )
    exact = network(torch.float64), network(torch.float64)
    exactly, plain = (
        make_optimizer(config, exact[0]),
        theirs(exact[1], kind, config.weight_decay, False, options),
    )
    assert all(group["fused"] for group in (*ours.param_groups, *exactly.param_groups))
    for index in range(STEPS):
        for model, optimizer in (
            (models[0], ours),
            (models[1], fused),
            (exact[0], exactly),
            (exact[1], plain),
        ):
            step(model, optimizer, index)
        assert all(
            torch.equal(p, q)
            for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True)
        ), f"step {index}"
        for p, q in zip(exact[0].parameters(), exact[1].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


@pytest.mark.req("T6")
@pytest.mark.req("C2")
@pytest.mark.parametrize(
    ("config", "kind", "options"),
    OPTIMIZERS,
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_saved_and_loaded_in_the_middle_it_ends_with_the_same_bits(
    config: Optimizer, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    model = network()
    optimizer, stream = make_optimizer(config, model), io.BytesIO()
    for index in range(STEPS):
        if index == 87:
            torch.save((model.state_dict(), optimizer.state_dict()), stream)
        step(model, optimizer, index)
    resumed = network()
    again = make_optimizer(config, resumed)
    stream.seek(0)
    for part, state in zip((resumed, again), torch.load(stream, weights_only=True), strict=True):
        part.load_state_dict(state)
    for index in range(87, STEPS):
        step(resumed, again, index)
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), resumed.parameters(), strict=True)
    )


@pytest.mark.req("T6")
def test_half_precision_weights_use_the_plain_kernel_which_moves_them_all() -> None:
    model = network(torch.bfloat16)
    before = [p.clone() for p in model.parameters()]
    optimizer = make_optimizer(SgdConfig(lr=1.0, momentum=0.0), model)
    assert not any(group["fused"] for group in optimizer.param_groups)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all((p != q).all() for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.req("T7")
@pytest.mark.parametrize(("scaling", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_rates_are_scaled_by_the_global_batch_size(scaling: str, factor: float) -> None:
    config = AdamWConfig(
        lr=0.01,
        lr_scaling=scaling,
        reference_batch_size=64,
        modules=({"match": "2", "lr": 0.5}, {"match": "0", "weight_decay": 0.0}),
    )
    with pytest.raises(TrainingError, match="expected resolved rates"):
        make_optimizer(config, network())
    resolved = config.scaled(256)
    assert (resolved.lr, resolved.modules[0].lr, resolved.modules[1].lr) == (
        0.01 * factor,
        0.5 * factor,
        None,
    )
    assert resolved.scaled(512) == resolved
    assert config.scaled(64).lr == 0.01
    assert AdamWConfig(lr=0.01).scaled(4096) == AdamWConfig(lr=0.01)
    optimizer = make_optimizer(resolved, network())
    assert (
        describe_rates(optimizer)
        == f"AdamW, peak learning rates {0.01 * factor:.4g} to {0.5 * factor:.4g} in 4 groups,"
        " weight decay on 1 of 4 parameters"
    )


@pytest.mark.req("T6")
def test_one_rate_and_no_decay_are_said_as_such() -> None:
    assert (
        describe_rates(make_optimizer(SgdConfig(), network()))
        == "SGD, peak learning rate 0.1, no weight decay"
    )
