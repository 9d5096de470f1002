"""Adapters of low rank: what they compute, what is trained, stops and ranks, and the export."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from schemas.errors import ConfigError
from schemas.init_config import LoraConfig
from schemas.load import declare
from tests.distributed.layout_work import state_digest, stop_at
from tests.training.kind_cases import exported, prepared
from tests.training.runs import keep_torch_settings
from tests.training.test_fine_tuning import TRAIN, drawn, ended_with, states, trainer, tuned_run
from tests.training.test_molecules import columns, rows
from training.models.build import build_model
from training.models.initial import initial_network
from training.models.lora import (
    LoraLinear,
    adapter_names,
    merge_adapters,
    merged_tensors,
    merged_weight,
)
from training.preflight.run import preflight
from training.registry.init_weights import program_tensors
from training.serving.reference_network import reference_network

LORA: dict[str, Any] = {"rank": 2, "alpha": 3, "on": ["body.blocks", "body.project"]}
MODEL: dict[str, Any] = {
    "kind": "resmlp",
    "width": 8,
    "depth": 2,
    "dropout": 0.1,
    "init": {"from": "models:/before/1", "new": ["body.head"]},
    "lora": LORA,
}
FT: dict[str, Any] = {
    "kind": "ft_transformer",
    "width": 8,
    "depth": 2,
    "heads": 2,
    "init": MODEL["init"],
    "lora": {"rank": 2, "on": ["body.blocks.*.attention"]},
}
ADAM: dict[str, Any] = {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


def lora_run(folder: Path, model: dict[str, Any], **sections: Any) -> Any:
    """A run with adapters, and the weights of the network without them that it starts from."""
    bare = {key: value for key, value in model.items() if key != "lora"}
    run, tensors = tuned_run(folder, model=bare, optimizer=ADAM, **sections)
    tree = {
        **run.declaration,
        "model": declare(run.declaration | {"model": model}).model.model_dump(
            mode="json", by_alias=True
        ),
    }
    run = run.model_copy(update={"declaration": tree})
    (folder / "resolved.json").write_text(run.model_dump_json())
    return run, tensors


def of_run(run: Any, tensors: dict[str, Tensor]) -> tuple[nn.Module, nn.Module, Any]:
    """The network with adapters, that without them, and a batch."""
    from tests.training.toys import make_toy

    declaration = declare(run.declaration)
    network = initial_network(declaration, run.statistics, run.init)
    bare = copy.deepcopy(run.declaration)
    bare["model"].pop("lora")
    base = initial_network(declare(bare), run.statistics, run.init)
    toy = make_toy(declaration.task.kind, bare["model"])
    batch = {k: v for k, v in toy.batch(5)[0].items() if k in network.shape.keys}
    return network, base, batch


def shaken(network: nn.Module) -> nn.Module:
    """The network with adapters that do something."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in adapter_names(network):
                parameter.normal_()
    return network


def test_an_adapter_adds_b_a_by_hand() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 4).double()
    adapted = LoraLinear(layer, LoraConfig(rank=2, alpha=3, on=("x",))).double()
    x = torch.randn(7, 5, dtype=torch.float64)
    assert torch.equal(adapted(x), layer(x))
    with torch.no_grad():
        adapted.lora_b.normal_()
    by_hand = torch.empty(7, 4, dtype=torch.float64)
    for i in range(7):
        for o in range(4):
            low = [sum(adapted.lora_a[r, k] * x[i, k] for k in range(5)) for r in range(2)]
            by_hand[i, o] = layer(x)[i, o] + 1.5 * sum(
                adapted.lora_b[o, r] * low[r] for r in range(2)
            )
    torch.testing.assert_close(adapted(x), by_hand)
    torch.testing.assert_close(x @ adapted.merged().T + layer.bias, by_hand)
    assert torch.linalg.matrix_rank(adapted.merged() - layer.weight) == 2
    assert merged_weight(layer) is layer.weight


@pytest.mark.parametrize("model", [MODEL, FT], ids=["resmlp", "ft_transformer"])
def test_it_starts_as_the_base_and_merged_it_gives_the_same(
    model: dict[str, Any], tmp_path: Path
) -> None:
    run, tensors = lora_run(tmp_path, model)
    network, base, batch = of_run(run, tensors)
    network.eval(), base.eval()
    assert adapter_names(network) and torch.equal(network(batch), base(batch))
    same = set(base.state_dict())
    assert set(network.state_dict()) - same == adapter_names(network)
    shaken(network.double())
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    expected, state = network(batch), network.state_dict()
    assert not torch.allclose(expected, base.double()(batch), atol=1e-3)
    merged = merge_adapters(copy.deepcopy(network))
    torch.testing.assert_close(merged(batch), expected, rtol=1e-12, atol=1e-12)
    assert set(merged.state_dict()) == same
    assert not any(isinstance(part, LoraLinear) for part in merged.modules())
    base.load_state_dict(merged_tensors(state, declare(run.declaration).model))
    torch.testing.assert_close(base(batch), expected, rtol=1e-12, atol=1e-12)


def test_adapters_and_what_is_new_are_trained_and_have_a_state(tmp_path: Path) -> None:
    run, tensors = lora_run(tmp_path, MODEL)
    found = trainer(run, tmp_path / "run")
    names = adapter_names(found.model)
    report = found.run()
    learned = names | {"body.head.weight", "body.head.bias"}
    assert states(found) == learned
    best = found.checkpoints.load_best(report.best_step)
    moved = {n for n, t in best.items() if n not in tensors or not torch.equal(t, tensors[n])}
    assert moved == learned
    assert any(best[name].abs().max() > 0 for name in names if name.endswith("lora_b"))


def test_a_run_that_is_stopped_ends_with_the_same_bits(tmp_path: Path) -> None:
    run, _ = lora_run(tmp_path, MODEL, train=TRAIN | {"ema": 0.9})
    whole = trainer(run, tmp_path / "whole")
    expected = whole.run()
    for stop in (1, 5, 9):
        found = trainer(run, tmp_path / "parts")
        stop_at(found, stop)
        assert found.run().status == "interrupted"
    ended = trainer(run, tmp_path / "parts")
    assert ended.run().model_sha256 == expected.model_sha256
    assert state_digest(ended) == state_digest(whole)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exact", "elastic"])
def test_ranks_layouts_and_stops_train_the_same_adapters(tmp_path: Path, mode: str) -> None:
    train, model = TRAIN | {"mode": mode}, MODEL | {"dropout": 0.0}
    lora_run(tmp_path / "one" / "a", model, train=train)
    alone = ended_with(tmp_path / "one", 1, [])
    for kind in ("ddp", "fsdp") if mode == "exact" else ("ddp",):
        many = tmp_path / kind
        lora_run(many / "a", model, train=train | {"ranks": 2, "parallel": kind})
        ended = ended_with(many, 2, [3, 7])
        assert "error" not in ended, ended
        apart = max(abs(a - b) for a, b in zip(ended["weights"], alone["weights"], strict=True))
        assert apart == 0 if mode == "elastic" else apart < 1e-5, (kind, apart)


@pytest.mark.long
def test_the_exported_program_holds_them_merged(tmp_path: Path) -> None:
    encoder = "encoders.parts.0.blocks"
    model = {
        "kind": "mlp",
        "hidden": [8],
        "init": {"from": "models:/before/1", "new": ["body"]},
        "lora": {"rank": 2, "on": [f"{encoder}.*.attention", f"{encoder}.*.inner"]},
    }
    case = prepared(tmp_path, rows(), columns("transformer"), model=model)
    model_file, weights = exported(case, tmp_path / "exported")
    assert model_file.parity < 1e-6
    network = build_model(case.declaration, case.run.statistics)
    assert len(adapter_names(network)) == 6
    state = shaken(network).state_dict()
    torch.save(state, weights)
    again = reference_network(case.run, weights)
    found = merged_tensors(state, case.declaration.model)
    assert {n: t.shape for n, t in again.state_dict().items()} == {
        n: t.shape for n, t in found.items()
    }
    for name, tensor in again.state_dict().items():
        torch.testing.assert_close(tensor.float(), found[name], rtol=1e-6, atol=1e-6)
    names = set(program_tensors(Path(model_file.program.path)))
    assert not any("lora" in name for name in names) and names <= set(found)


@pytest.mark.long
def test_preflight_passes_a_run_with_adapters(tmp_path: Path) -> None:
    run, _ = lora_run(tmp_path, MODEL | {"dropout": 0.0})
    report = preflight(run)
    assert not [r.summary for r in report.checks.results if r.verdict == "fail"]
    whole = sum(
        p.numel() for p in build_model(declare(run.declaration), run.statistics).parameters()
    )
    assert report.num_parameters == whole and report.num_trainable < whole / 2


@pytest.mark.parametrize(
    "lora, words",
    [
        ({"on": ["body.floors"]}, r"model.lora.on: 'body.floors' fits none"),
        ({"on": ["body.norm"]}, r"model.lora.on: 'body.norm' fits none"),
        ({"on": ["body.blocks"], "rank": 8}, r"rank 8: body.blocks.*lower the rank"),
    ],
)
def test_a_pattern_or_rank_that_does_not_fit_is_refused(
    lora: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run, _ = lora_run(tmp_path, MODEL)
    tree = copy.deepcopy(run.declaration)
    tree["model"]["lora"] = {"rank": 2} | lora
    with pytest.raises(ConfigError, match=words):
        build_model(declare(tree), run.statistics)
    drawn(run, 1)  # the declared one is built
    tree["model"]["init"]["new"], tree["model"]["lora"] = ["body.head", "body.project"], LORA
    with pytest.raises(ConfigError, match=r"names body.project, which model.init.new lists"):
        build_model(declare(tree), run.statistics)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"init": None}, "give init, or remove lora"),
        ({"freeze": ["body.norm"]}, "remove freeze"),
        ({"unfreeze_at": {"body.norm": 3}}, "remove unfreeze_at"),
        ({"kind": "boosting"}, "does not fit model.kind 'boosting'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run, _ = lora_run(tmp_path, MODEL)
    with pytest.raises((ConfigError, ValidationError), match=words):
        declare(run.declaration | {"model": MODEL | changes})
