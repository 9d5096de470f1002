"""A step that was not finite is made again on one process, and the place where it began is
named.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from schemas.errors import CheckpointError, ConfigError, IntegrityError, NonFiniteError
from tasks.replay import lines
from tests.training.runs import keep_torch_settings, make_run, synthetic
from training.distributed.parallel import Parallel
from training.engine.sampling import epoch_order
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal
from training.replay.first_non_finite import Watch
from training.replay.replay import replay

CLIFF = {"kind": "custom", "path": "tests.training.networks:Cliff"}
ROW = int(epoch_order(0, 0, 60)[2 * 16 + 3])
TRAIN = {"epochs": 2, "batch_size": 16, "micro_batch_size": 6, "threads": 1}


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    with keep_torch_settings():
        yield


def broken_run(folder: Path, value: float = 3e38, **sections: Any) -> Path:
    """A run that stopped because a row of its third step has this value; its directory."""
    arrays = {"train": synthetic(60, 0), "val": synthetic(20, 1)}
    arrays["train"]["numeric"][ROW, 2] = value
    spec = make_run(folder, arrays=arrays, **{"train": TRAIN, **sections})
    with pytest.raises(NonFiniteError, match=rf"first rows: train-{ROW}\)" if value > 1 else None):
        train(spec, folder / "run", Parallel(), StopSignal())
    shutil.copy(folder / "resolved.json", folder / "run")
    return folder / "run"


@pytest.mark.req("T11")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "elastic", "logical_shards": 4},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"augment": {"noise": 0.1}},
    ],
    ids=["exact", "elastic", "bf16", "fp16", "augmented"],
)
def test_the_row_the_module_and_what_may_help_are_named(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    report = replay(broken_run(tmp_path, train=TRAIN | options))
    assert (
        report.step == 3
        and report.reproduced
        and [rank.same_losses for rank in report.ranks] == [True]
    )
    finding = report.ranks[0].finding
    assert (
        finding is not None
        and finding.direction == "forward"
        and finding.row_ids == (f"train-{ROW}",)
    )
    assert finding.module == "body.inputs.periodic" or finding.module.startswith("body.hidden"), (
        "the innermost module at fault"
    )
    assert finding.column == "x2" and float(finding.largest_input) == pytest.approx(3e38)
    assert "bound the column x2" in report.advice[0] and any(
        "train.precision: fp32" in way for way in report.advice
    ) == (options.get("precision") is not None)
    shown = "\n".join(lines(report))
    assert (
        f"step {report.step} is not finite again" in shown
        and f"train-{ROW}" in shown
        and "the recorded losses to the bit" in shown
    )


@pytest.mark.req("T11")
def test_a_step_with_scheduled_dropout_is_made_again_to_the_bit(tmp_path: Path) -> None:
    report = replay(broken_run(tmp_path, model={"kind": "realmlp", "dropout": 0.3}))
    assert report.reproduced and [rank.same_losses for rank in report.ranks] == [True]
    finding = report.ranks[0].finding
    assert finding is not None and finding.row_ids == (f"train-{ROW}",)


@pytest.mark.req("T11")
def test_a_gradient_without_a_finite_slope_is_found_in_the_backward_pass(tmp_path: Path) -> None:
    report = replay(broken_run(tmp_path, value=0.5, model=CLIFF))
    finding = report.ranks[0].finding
    assert report.reproduced and report.checkpoint == "the initial weights"
    assert finding is not None and (finding.direction, finding.module, finding.micro_batch) == (
        "backward",
        "body.layers.3",
        0,
    )
    assert "needs an epsilon" in report.advice[0]


@pytest.mark.req("T11")
def test_a_step_that_comes_out_finite_is_said_to(tmp_path: Path) -> None:
    run_dir = broken_run(tmp_path)
    path = next((run_dir / "dumps").glob("*/dump.pt"))
    dump = torch.load(path, weights_only=True)
    dump["window"]["batch"]["numeric"].clamp_(-3, 3)
    torch.save(dump, path)
    report = replay(run_dir)
    assert (
        not report.reproduced
        and not report.ranks[0].same_losses
        and "came out finite" in "\n".join(lines(report))
    )


@pytest.mark.req("S2")
def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    run_dir = broken_run(tmp_path)
    (dump,) = (run_dir / "dumps").iterdir()
    step = int(dump.name.split("-")[1])
    with pytest.raises(
        ConfigError, match=rf"expected the dump of step 999; steps with dumps: \[{step}\]"
    ):
        replay(run_dir, 999)
    checkpoint = run_dir / "checkpoints" / f"step-{step - 1:08d}"
    data = bytearray((checkpoint / "model.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (checkpoint / "model.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model.pt: SHA-256 is"):
        replay(run_dir)
    shutil.rmtree(checkpoint)
    with pytest.raises(
        CheckpointError, match="expected the checkpoint before the step that failed"
    ):
        replay(run_dir)
    content = torch.load(dump / "dump.pt", weights_only=True)
    torch.save(content | {"world_size": 2}, dump / "dump.pt")
    with pytest.raises(
        IntegrityError,
        match=rf"a dump of step {step} from each of 2 ranks, but none is there from \[1\]",
    ):
        replay(run_dir)
    (dump / "dump.pt").write_bytes(b"cut off")
    with pytest.raises(IntegrityError, match="cannot be read as a dump"):
        replay(run_dir)
    with pytest.raises(ConfigError, match="steps with dumps: none"):
        replay(tmp_path)


def test_watching_leaves_a_network_as_it_was_and_finds_a_parameter(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with Watch(network) as watch:
        (network(torch.full((3, 2), 1e20)).sum() * 1e38).backward()
    assert watch.forward is None and watch.backward is None and watch.largest["0"] > 1
    network[0].weight.data.fill_(1e-25)
    with Watch(network) as watch:
        (network(torch.full((3, 2), 1e20)).sum() * 1e38).backward()
    assert watch.backward is not None and (watch.backward.module, watch.backward.kind) == (
        "0.weight",
        "Parameter",
    )
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )
