"""Training from weights that exist: frozen parts, parts that join later, rates by depth, resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from schemas.config import AdamWConfig
from schemas.digest import file_ref, write_atomic
from schemas.errors import CheckpointError
from schemas.init_records import InitialWeights
from schemas.load import declare
from schemas.records import RunSpec
from tests.distributed.launch import run_ranks
from tests.distributed.layout_work import state_digest, stop_at
from tests.training.runs import keep_torch_settings, make_run
from tests.training.toys import make_toy
from training.checkpoint.state import model_digest
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.models.build import build_model
from training.optim.groups import parameter_groups
from training.preflight.run import preflight
from training.preflight.settings import check_optimizer

RESMLP: dict[str, Any] = {"kind": "resmlp", "width": 8, "depth": 2, "dropout": 0.1}
FIRST = 5  # step at which the blocks join
TUNED = RESMLP | {
    "init": {"from": "models:/before/1", "new": ["body.head"]},
    "freeze": ["body.inputs", "body.project"],
    "unfreeze_at": {"body.blocks": FIRST, "body.norm": FIRST},
}
OPTIMIZER = {"kind": "adamw", "lr": 0.01, "layer_decay": 0.5}
TRAIN: dict[str, Any] = {"epochs": 2, "batch_size": 16, "checkpoint_every": 3, "threads": 1}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with keep_torch_settings():
        yield


def drawn(run: RunSpec, seed: int) -> dict[str, Tensor]:
    """Weights that no initialisation gives."""
    generator = torch.Generator().manual_seed(seed)
    state = build_model(declare(run.declaration), run.statistics).state_dict()
    return {n: 0.3 * torch.randn(t.shape, generator=generator) for n, t in state.items()}


def tuned_run(folder: Path, seed: int = 5, **sections: Any) -> tuple[RunSpec, dict[str, Tensor]]:
    """A run that starts from drawn weights, also as `resolved.json`; and these weights."""
    given = {"model": TUNED, "train": TRAIN, "optimizer": OPTIMIZER} | sections
    run = make_run(folder, rows=(90, 24), **given)
    tensors = drawn(run, seed)
    torch.save(tensors, folder / "weights.pt")
    weights = InitialWeights(
        given="models:/before/1",
        resolved="models:/before/1",
        file=file_ref(folder / "weights.pt"),
        sha256=model_digest(tensors),
    )
    run = run.model_copy(update={"init": weights})
    write_atomic(folder / "resolved.json", run.model_dump_json())
    return run, tensors


def trainer(spec: RunSpec, folder: Path, ahead: bool = False) -> Trainer:
    found = Trainer(spec, folder, Parallel(), StopSignal())
    found.step.ahead = ahead
    return found


def states(found: Trainer) -> set[str]:
    """Names of the parameters that the optimizer has a state for."""
    names = {p: name for name, p in found.model.named_parameters()}
    return {names[p] for p in found.optimizer.state}


def test_what_is_frozen_stays_to_the_byte_and_has_no_state(tmp_path: Path) -> None:
    frozen = ["body.inputs", "body.project", "body.blocks", "body.norm"]
    model = {k: v for k, v in TUNED.items() if k != "unfreeze_at"} | {"freeze": frozen}
    run, tensors = tuned_run(tmp_path, model=model, optimizer={"kind": "adamw", "lr": 0.01})
    found = trainer(run, tmp_path / "run")
    report = found.run()
    assert states(found) == {"body.head.weight", "body.head.bias"}
    best = found.checkpoints.load_best(report.best_step)
    moved = {name for name in tensors if not torch.equal(best[name], tensors[name])}
    assert moved == {"body.head.weight", "body.head.bias"}


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_part_joins_at_its_step_and_the_state_of_the_optimizer_begins_there(
    tmp_path: Path, kind: str
) -> None:
    optimizer = {"kind": kind, "lr": 0.01, "weight_decay": 0.1}
    run, tensors = tuned_run(tmp_path, optimizer=optimizer)
    found = trainer(run, tmp_path / "run")
    head = {"body.head.weight", "body.head.bias"}
    later = {n for n in tensors if n.startswith(("body.blocks", "body.norm"))}
    for step in range(FIRST + 2):
        now = found.model.state_dict()
        assert {n for n in later if not torch.equal(now[n], tensors[n])} == (
            later if step > FIRST else set()
        )
        found._train_one_step()
        assert states(found) == (head if step < FIRST else head | later)
    if kind == "adamw":
        updates = {float(found.optimizer.state[p]["step"]) for p in found.optimizer.state}
        assert updates == {2.0, FIRST + 2.0}
    observed = found.run().observed
    passes = observed.passes if observed else None
    assert passes is not None and passes.with_all_gradients == passes.updates > FIRST


@pytest.mark.parametrize(
    "optimizer, ahead",
    [(OPTIMIZER, False), (OPTIMIZER, True), ({"kind": "sgd"}, False)],
    ids=["adamw", "adamw-ahead", "sgd"],
)
def test_a_run_that_is_stopped_around_the_step_ends_with_the_same_bits(
    tmp_path: Path, optimizer: dict[str, Any], ahead: bool
) -> None:
    run, _ = tuned_run(tmp_path, train=TRAIN | {"ema": 0.9}, optimizer=optimizer)
    whole = trainer(run, tmp_path / "whole")
    expected = whole.run()
    for stop in (1, FIRST, FIRST + 1, 9):
        found = trainer(run, tmp_path / "parts", ahead)
        stop_at(found, stop)
        assert found.run().status == "interrupted"
    ended = trainer(run, tmp_path / "parts", ahead)
    assert ended.run().model_sha256 == expected.model_sha256
    assert state_digest(ended) == state_digest(whole)


def test_other_weights_are_another_run(tmp_path: Path) -> None:
    run, _ = tuned_run(tmp_path)
    first = trainer(run, tmp_path / "run")
    stop_at(first, 4)
    first.run()
    other, _ = tuned_run(tmp_path / "other", seed=6)
    with pytest.raises(CheckpointError, match="init"):
        trainer(other, tmp_path / "run")


def ended_with(folder: Path, ranks: int, stops: list[int]) -> Any:
    """What the run in a folder ends with on so many ranks."""
    work, output = "tests.distributed.layout_work:run_all", folder / f"ranks-{ranks}"
    return run_ranks(work, ranks, output, folder=str(folder), stops=stops)[0]["a"]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exact", "elastic"])
def test_ranks_layouts_and_stops_train_the_same_weights(tmp_path: Path, mode: str) -> None:
    train = TRAIN | {"mode": mode}
    model = TUNED | {"dropout": 0.0}
    folder = tmp_path / "one"
    tuned_run(folder / "a", model=model, train=train)
    alone = ended_with(folder, 1, [])
    found = {}
    for kind in ("ddp", "fsdp") if mode == "exact" else ("ddp",):
        many = tmp_path / kind
        tuned_run(many / "a", model=model, train=train | {"ranks": 2, "parallel": kind})
        found[kind] = ended_with(many, 2, [FIRST, FIRST + 2])
    for kind, ended in found.items():
        assert "error" not in ended, ended
        apart = max(abs(a - b) for a, b in zip(ended["weights"], alone["weights"], strict=True))
        assert apart == 0 if mode == "elastic" else apart < 1e-5, (kind, apart)


def test_each_depth_has_the_rate_of_a_table_made_by_hand() -> None:
    """A residual network of two blocks has the depths inputs, two blocks, head."""
    toy = make_toy("binary", RESMLP | {"freeze": ["body.inputs.periodic"]})
    model = build_model(toy.declaration, toy.statistics)
    rules = ({"match": "body.blocks.1.norm", "lr": 0.003},)
    config = AdamWConfig(lr=0.01, layer_decay=0.5, modules=rules)
    rates = {
        name: group["peak"]
        for group in parameter_groups(config, model)
        for name, p in model.named_parameters()
        if any(p is other for other in group["params"])
    }
    table = {
        "body.inputs.categories": 0.01 * 0.5**3,
        "body.project": 0.01 * 0.5**3,
        "body.blocks.0": 0.01 * 0.5**2,
        "body.blocks.1.norm": 0.003,
        "body.blocks.1": 0.01 * 0.5,
        "body.norm": 0.01,
        "body.head": 0.01,
    }
    expected = {
        name: next(rate for path, rate in table.items() if name.startswith(f"{path}."))
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    assert rates == pytest.approx(expected)


# ------------------------------------------------------------------------------------ preflight


@pytest.mark.long
def test_preflight_passes_a_run_that_trains_the_head_alone(tmp_path: Path) -> None:
    model = RESMLP | {"freeze": ["body.inputs", "body.project", "body.blocks", "body.norm"]}
    model |= {"init": {"from": "models:/before/1"}}
    run, _ = tuned_run(tmp_path, model=model, optimizer={"kind": "adamw", "lr": 0.01})
    report = preflight(run)
    assert not report.checks.failed, report.checks.failed
    assert report.num_trainable == 9
    found = {r.name: r for r in report.checks.results}
    assert "others are frozen" in found["gradients"].summary
    assert found["initial_loss"].verdict in ("pass", "warn")


def test_a_step_that_the_run_never_reaches_is_found() -> None:
    toy = make_toy("binary", RESMLP | {"unfreeze_at": {"body.blocks": 50}}, train={"epochs": 1})
    network = build_model(toy.declaration, toy.statistics)
    result = check_optimizer(toy.declaration, network, 49)
    assert result.verdict == "fail" and "from step 50 on, and the run has 1 steps" in result.summary
    assert check_optimizer(toy.declaration, network, 60 * 256).verdict == "pass"
