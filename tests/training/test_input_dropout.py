"""Inputs that are taken as missing in training: which rows, what they become, and exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from schemas.errors import ConfigError
from schemas.load import declare
from tests.distributed.launch import run_ranks
from tests.training.kind_cases import Prepared, exported, mixed_rows, prepared
from tests.training.kind_runs import require_exact_resume, require_preflight
from tests.training.test_encoders import ENCODER, rows
from tests.training.test_molecules import ENCODERS, molecules
from tests.training.toys import make_toy
from training.data.arrays.shards import load_arrays
from training.models.build import build_model
from training.models.input_dropout import InputDropout
from training.preflight.subject import without_dropout

MODEL: dict[str, Any] = {"kind": "mlp", "hidden": [8]}
COLUMNS: dict[str, Any] = {
    "row": "id",
    "y": "label",
    "note": {"kind": "text", "bag": {"size": 4}},
    "reply": {"kind": "text", "encoder": ENCODERS["transformer"]},
    "tags": {"kind": "set", "bag": {"size": 3}},
    "drug": {"kind": "smiles", "smiles": {"descriptors": False}, "encoder": ENCODERS["graph"]},
    "scan": {"kind": "tensor", "shape": [10, 9], "encoder": ENCODER},
    "x": "numeric",
    "*": "ignore",
}
TRAIN = {"epochs": 3, "batch_size": 16, "micro_batch_size": 8, "checkpoint_every": 4, "threads": 1}


def table() -> pd.DataFrame:
    frame = mixed_rows()
    frame["drug"], frame["scan"] = molecules(len(frame)), rows(len(frame))["scan"]
    return frame


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(
        tmp_path_factory.mktemp("inputs"),
        table(),
        COLUMNS,
        model=MODEL | {"input_dropout": 0.4},
        train=TRAIN,
    )


def network_of(case: Prepared, **model: Any) -> nn.Module:
    tree = case.declaration.model_dump(mode="json", by_alias=True)
    tree["model"] = MODEL | model
    return build_model(declare(tree), case.run.statistics)


def batch_of(case: Prepared) -> dict[str, Tensor]:
    stored = load_arrays(case.run.arrays.train)
    return {k: torch.from_numpy(v[:24].copy()) for k, v in stored.items() if k != "label"}


def test_without_it_the_network_and_its_keys_are_as_before(case: Prepared) -> None:
    plain = network_of(case)
    assert not any(isinstance(part, InputDropout) for part in plain.modules())
    assert (
        "input_dropout"
        not in declare(
            case.declaration.model_dump(mode="json", by_alias=True) | {"model": MODEL}
        ).model.model_dump()
    )
    other = network_of(case, input_dropout=0.4)
    extra = [n for n, t in other.state_dict().items() if t.shape != plain.state_dict()[n].shape]
    # a picture that is never missing in train gets a learned vector of none
    assert extra == ["encoders.parts.1.out.weight"] or extra == ["encoders.parts.0.out.weight"]


def test_a_dropped_input_is_what_a_missing_one_is(case: Prepared) -> None:
    network, batch = network_of(case, input_dropout=0.4), batch_of(case)
    without_dropout(network)
    drawn = dict[str, Tensor]()
    for key, values in batch.items():
        if key.startswith(("bag_", "tensor_")):
            drawn[key] = torch.rand(len(values)) < 0.5
    for part in (network.bags, network.encoders):
        queue = [drawn[key] for key in part.keys]
        part.dropout.draw = lambda _, queue=queue: queue.pop(0)
    found = network(batch)
    missing = dict(batch)
    for key, gone in drawn.items():
        null = torch.zeros_like(batch[key])
        if key.startswith("bag_"):
            null[:, 0] = 1
        keep = gone.view(-1, *[1] * (null.ndim - 1))
        missing[key] = torch.where(keep, null, batch[key])
    network.eval()
    network.bags.dropout, network.encoders.dropout.draw = None, lambda _: None
    network.encoders.nullable = ("tensor_scan",)
    torch.testing.assert_close(found, network(missing), rtol=1e-5, atol=1e-6)
    assert all(0 < mask.sum() < len(mask) for mask in drawn.values())


def test_the_share_is_that_declared_and_eval_drops_none() -> None:
    part = InputDropout(0.3)
    torch.manual_seed(0)
    found = part.draw(torch.zeros(20_000, 3))
    assert found is not None and abs(found.float().mean() - 0.3) < 0.02
    assert part.eval().draw(torch.zeros(9, 3)) is None


def test_the_learned_vectors_get_a_gradient(case: Prepared) -> None:
    network = network_of(case, input_dropout=0.4).train()
    torch.manual_seed(0)
    network(batch_of(case)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    part = next(p for p in network.encoders.parts if hasattr(p, "missing"))
    assert part.missing.weight.grad[0].abs().sum() > 0


@pytest.mark.long
def test_a_run_that_is_stopped_ends_with_the_same_bits(case: Prepared, tmp_path: Path) -> None:
    (tmp_path / "resolved.json").write_text(case.run.model_dump_json())
    require_exact_resume(tmp_path)


@pytest.mark.long
def test_preflight_and_export_pass(case: Prepared, tmp_path: Path) -> None:
    require_preflight(case.run)
    assert exported(case, tmp_path)[0].parity < 1e-6


@pytest.mark.long
def test_ranks_drop_the_same_rows(case: Prepared, tmp_path: Path) -> None:
    ended = {}
    for ranks, stops in ((1, []), (2, [3, 7])):
        tree = case.declaration.model_dump(mode="json", by_alias=True)
        tree["train"] |= {"mode": "elastic", "ranks": ranks, "parallel": "ddp"}
        run = case.run.model_copy(
            update={"declaration": declare(tree).model_dump(mode="json", by_alias=True)}
        )
        folder = tmp_path / str(ranks)
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "resolved.json").write_text(run.model_dump_json())
        work = "tests.distributed.layout_work:run_all"
        found = run_ranks(work, ranks, folder / "out", folder=str(folder), stops=stops)
        ended[ranks] = found[0]["a"]
        assert "error" not in ended[ranks], ended[ranks]
    assert ended[1]["weights"] == ended[2]["weights"]


def test_a_table_without_such_an_input_is_refused() -> None:
    toy = make_toy("binary", {"kind": "mlp", "hidden": [8]})
    tree = toy.declaration.model_dump(mode="json", by_alias=True)
    tree["model"]["input_dropout"] = 0.2
    with pytest.raises(ConfigError, match="input_dropout needs a text"):
        build_model(declare(tree), toy.statistics)
    with pytest.raises(ConfigError, match="input_dropout"):
        declare(tree | {"model": {"kind": "boosting", "input_dropout": 0.2}})
