"""What a layout does to a network besides spreading it: blocks, recomputation, compilation,
refusals.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from schemas.config import TrainConfig
from schemas.errors import ConfigError
from schemas.records import TrainReport
from tests.training.networks import Plain
from tests.training.runs import WIDTH, keep_torch_settings, make_run
from training.distributed.layout import Layout, blocks, require_layout
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal
from training.preflight.run import preflight

BLOCKS = {"kind": "resmlp", "width": 16, "depth": 3, "dropout": 0.3}
SHORT = {"epochs": 2, "batch_size": 16, "micro_batch_size": 5, "threads": 1}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


def trained(folder: Path, model: dict[str, Any], **options: Any) -> TrainReport:
    spec = make_run(folder, rows=(40, 20), model=model, train=SHORT | options)
    return train(spec, folder / "run", Parallel(), StopSignal())


def test_blocks_are_the_repeated_composite_parts() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    network = nn.ModuleDict(
        {
            "tables": nn.ModuleList([nn.Embedding(3, 2)]),
            "stack": nn.Sequential(block, nn.Sequential(nn.ModuleList([block]))),
        }
    )
    assert blocks(network) == list(network["stack"].children())
    assert blocks(nn.Sequential(nn.Linear(2, 2), nn.GELU())) == []


@pytest.mark.req("T14")
def test_recomputed_activations_change_no_bit(tmp_path: Path) -> None:
    """Dropout included: the second forward pass draws what the first drew."""
    plain, recomputed = (
        trained(tmp_path / "a", BLOCKS),
        trained(tmp_path / "b", BLOCKS, recompute_activations=True),
    )
    assert plain.model_sha256 == recomputed.model_sha256
    calls = []
    network = nn.Sequential(nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Tanh())]))
    network[0][0][1].register_forward_pre_hook(lambda *_: calls.append("forward"))
    Layout(network, Parallel(), TrainConfig(recompute_activations=True))
    network[0][0](torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert calls == ["forward", "forward"]


@pytest.mark.long
@pytest.mark.req("T14")
def test_a_compiled_step_trains_the_same_network_and_again_bit_identically(tmp_path: Path) -> None:
    model = {"kind": "mlp", "hidden": [8], "dropout": 0.0, "numeric_embedding": "none"}
    eager = trained(tmp_path / "eager", model)
    first, second = (trained(tmp_path / name, model, compile=True) for name in ("first", "second"))
    assert first.model_sha256 == second.model_sha256
    weights = [
        torch.load(report.best_checkpoint.path, weights_only=True) for report in (eager, first)
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_laid_out_is_refused_before_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_run(tmp_path, train={"recompute_activations": True})
    with pytest.raises(ConfigError, match="needs a model with repeated blocks"):
        preflight(spec)
    spec = make_run(tmp_path, train={"augment": {"flip": True}})
    with pytest.raises(ConfigError, match="need a tensor column of shape"):
        preflight(spec)
    with pytest.raises(ConfigError, match=r"running statistics \(0.running_mean"):
        require_layout(nn.Sequential(nn.BatchNorm1d(2)), TrainConfig(mode="elastic"))
    require_layout(
        nn.Sequential(nn.BatchNorm1d(2)), TrainConfig(mode="exact", compile=True, device="cpu")
    )
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler"):
        require_layout(Plain(WIDTH, 1), TrainConfig(compile=True, device="cpu"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logical_shards": 6}, "not a power of two"),
        ({"ranks": 3}, "ranks 3 does not divide logical_shards 4"),
        ({"parallel": "fsdp"}, "needs parallel: ddp"),
    ],
)
def test_elastic_declarations_that_cannot_be_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(mode="elastic", **options)
