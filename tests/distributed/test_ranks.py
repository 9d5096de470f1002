"""Several real gloo processes: gradients, scoring, training, failure. Processes start once for each
number of ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas.records import RunSpec, TrainReport
from tests.distributed.launch import run_ranks, torchrun
from tests.distributed.rank_work import everything
from tests.training.runs import keep_torch_settings, make_run, synthetic
from tests.training.test_train import SCRIPTED, last_state, same
from training.distributed.parallel import Parallel

STEADY = {
    "model": {"kind": "mlp", "hidden": [64, 64], "dropout": 0.2},
    "train": {"epochs": 2, "batch_size": 16, "micro_batch_size": 3, "log_every": 1},
}
PLAIN = {
    "model": {"kind": "mlp", "hidden": [16], "dropout": 0.0},
    "train": {
        "epochs": 3,
        "batch_size": 16,
        "micro_batch_size": 5,
        "clip": "value",
        "clip_at": 0.05,
    },
}
BAD_ROW = 63


def prepare(folder: Path, size: int) -> None:
    make_run(folder / "steady", rows=(101, 33), **STEADY)
    make_run(folder / "plain", rows=(101, 33), **PLAIN)
    if size == 2:
        make_run(
            folder / "noisy",
            rows=(101, 33),
            model=SCRIPTED,
            train={"epochs": 3, "batch_size": 16, "micro_batch_size": 6, "checkpoint_every": 2},
        )
    make_run(folder / "few", rows=(1, 33))
    make_run(
        folder / "unused", model={"kind": "custom", "path": "tests.training.networks:HalfUsed"}
    )
    bad = {"train": synthetic(101, 0), "val": synthetic(33, 1)}
    bad["train"]["numeric"][BAD_ROW] = 3e38
    make_run(folder / "bad", arrays=bad, **STEADY)


class Worlds(dict[int, list[dict[str, Any]]]):
    """Results of each rank of a world; a world starts when a test first asks for it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self.factory = factory

    def __missing__(self, size: int) -> list[dict[str, Any]]:
        folder = self.factory.mktemp(f"world{size}")
        prepare(folder, size)
        if size == 1:
            with pytest.MonkeyPatch.context() as patch, keep_torch_settings():
                patch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
                self[size] = [json.loads(json.dumps(everything(Parallel(), str(folder))))]
        else:
            self[size] = run_ranks(
                "tests.distributed.rank_work:everything", size, folder / "ranks", folder=str(folder)
            )
        for rank in self[size]:
            rank["folder"] = str(folder)
        return self[size]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory)


each_world = pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.long)])


@pytest.mark.req("T3")
@each_world
def test_window_gradient_is_that_of_one_big_weighted_batch(
    worlds: dict[int, Any], size: int
) -> None:
    for rank in worlds[size]:
        assert len(rank["gradients"]) == 5
        assert max(rank["gradients"]) < 1e-12


@pytest.mark.req("M3")
@pytest.mark.req("T3")
@each_world
def test_window_gradient_is_that_of_one_batch_however_unevenly_labels_are_missing(
    worlds: dict[int, Any], size: int
) -> None:
    for rank in worlds[size]:
        assert len(rank["label_gradients"]) == 8
        assert max(rank["label_gradients"]) < 1e-12


@pytest.mark.req("T9")
@each_world
def test_every_row_is_scored_once_and_metrics_are_those_of_the_whole(
    worlds: dict[int, Any], size: int
) -> None:
    for rank in worlds[size]:
        found = rank["scoring"]
        assert found["misplaced"] == []
        assert found["metric_error"] < 1e-9
        assert found["score_error"] < 1e-5
        assert found["in_place"]
    rows = np.sum([rank["scoring"]["rows_here"] for rank in worlds[size]], axis=0)
    assert rows.tolist() == list(range(1, 65)), "unpadded: no row is computed twice"


@pytest.mark.req("T9")
@each_world
def test_training_in_more_ranks_gives_the_same_weights_to_rounding(
    worlds: dict[int, Any], size: int
) -> None:
    more = best_weights(worlds[size][0]["trained"]["plain"]["report"])
    for name, single in best_weights(worlds[1][0]["trained"]["plain"]["report"]).items():
        torch.testing.assert_close(more[name], single, rtol=1e-4, atol=1e-5)


def best_weights(report: dict[str, Any]) -> dict[str, torch.Tensor]:
    return torch.load(report["best_checkpoint"]["path"], weights_only=True)


@pytest.mark.req("C2")
@each_world
def test_a_stopped_and_resumed_run_ends_bit_identical(worlds: dict[int, Any], size: int) -> None:
    digests = [digest for rank in worlds[size] for digest in rank["trained"]["resumed_in_process"]]
    assert len(set(digests)) == 1


@pytest.mark.req("T11")
@each_world
def test_a_bad_row_on_one_rank_stops_every_rank_before_the_update_with_a_dump(
    worlds: dict[int, Any], size: int
) -> None:
    folder = Path(worlds[size][0]["folder"]) / "bad"
    outcomes = [rank["trained"]["bad"] for rank in worlds[size]]
    assert {o["error"] for o in outcomes} == {"NonFiniteError"}
    assert all(o["seconds"] < 10 for o in outcomes)
    dumps = [
        torch.load(path, weights_only=True)
        for path in sorted((folder / f"run-{size}" / "dumps").glob("*/dump.pt"))
    ]
    assert [dump["rank"] for dump in dumps] == list(range(size))
    culprit = next(dump for dump in dumps if BAD_ROW in dump["rows"].tolist())
    for outcome in outcomes:
        assert f"on rank {culprit['rank']} " in outcome["message"]
        assert "loss is nan" in outcome["message"] or "loss is inf" in outcome["message"]
        assert "no parameter was changed" in outcome["message"]
    assert f"train-{BAD_ROW}" in culprit["row_ids"]
    assert (
        len({row for dump in dumps for row in dump["row_ids"]})
        == sum(len(dump["rows"]) for dump in dumps)
        == 16
    )
    assert (
        culprit["lr"] > 0 and culprit["epoch"] == 1 and culprit["rng"]["torch"].dtype == torch.uint8
    )
    assert bool((culprit["window"]["batch"]["numeric"] > 1e38).any()) and any(
        name.endswith("/row_losses") for name in culprit["tensors"]
    )
    assert set(culprit["grad_norms"]) and any(
        not np.isfinite(v) for v in culprit["grad_norms"].values()
    )
    events = [
        json.loads(line)
        for line in (folder / f"run-{size}" / "metrics.jsonl").read_text().splitlines()
    ]
    assert any(e["kind"] == "event" and e["message"].startswith("stopped: loss is") for e in events)
    assert not any(e["kind"] == "step" and e["step"] >= culprit["step"] for e in events)


@pytest.mark.req("T1")
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_more_ranks_than_train_rows_is_refused(worlds: dict[int, Any], size: int) -> None:
    for rank in worlds[size]:
        assert rank["trained"]["few"]["error"] == "DataError"
        assert f"{size} ranks but only 1 train rows" in rank["trained"]["few"]["message"]


@pytest.mark.req("T1")
@each_world
def test_a_parameter_without_gradient_is_named_and_not_hung_on(
    worlds: dict[int, Any], size: int
) -> None:
    for rank in worlds[size]:
        assert rank["trained"]["unused"]["error"] == "TrainingError"
        assert "2 of 4 trainable parameters got no gradient" in rank["trained"]["unused"]["message"]
        assert "forgotten.weight" in rank["trained"]["unused"]["message"]


@pytest.mark.req("T15")
@each_world
def test_what_rank_zero_finds_or_raises_reaches_every_rank(
    worlds: dict[int, Any], size: int
) -> None:
    for rank in worlds[size]:
        assert rank["on_main"] == [{"rank": 0}, "CheckpointError", "planted"]
        assert rank["first"] == 5 and rank["any"] == [True, False]
        assert rank["gathered"] == [str(r) * r for r in range(size)]


@pytest.mark.req("T12")
@each_world
def test_the_run_records_its_promise(worlds: dict[int, Any], size: int) -> None:
    report = worlds[size][0]["trained"]["steady"]["report"]
    assert report["promise"].startswith("exact: ")
    assert f"{size} rank" in report["promise"]
    assert report["world_size"] == size
    spec = RunSpec.model_validate_json(
        (Path(worlds[size][0]["folder"]) / "steady" / "resolved.json").read_text()
    )
    assert report["run_id"] == spec.run_id


@pytest.mark.long
@pytest.mark.req("C5")
@pytest.mark.req("C6")
def test_under_torchrun_killed_and_stopped_in_mid_epoch_it_ends_bit_identical(
    worlds: dict[int, Any],
) -> None:
    folder = Path(worlds[2][0]["folder"]) / "noisy"
    whole = worlds[2][0]["trained"]["noisy"]["report"]
    killed = torchrun(
        2, folder / "resolved.json", folder / "parts", BULKHEAD_TEST_SIGNAL="KILL:1:23"
    )  # in the second epoch
    assert killed.returncode != 0
    assert not (folder / "parts" / "result.json").exists()
    newest = max((folder / "parts" / "checkpoints").glob("step-*"))
    assert newest.name == "step-00000010", "in mid-epoch: an epoch has 7 steps"

    stopped = torchrun(
        2, folder / "resolved.json", folder / "parts", BULKHEAD_TEST_SIGNAL="TERM:1:5"
    )
    assert stopped.returncode == 0, stopped.stderr[-3000:]
    report = TrainReport.model_validate_json((folder / "parts" / "result.json").read_text())
    assert report.status == "interrupted" and 10 < report.steps < 21

    ended = torchrun(2, folder / "resolved.json", folder / "parts")
    assert ended.returncode == 0, ended.stderr[-3000:]
    report = TrainReport.model_validate_json((folder / "parts" / "result.json").read_text())
    assert report.status == "finished"
    assert report.model_sha256 == whole["model_sha256"]
    assert same(last_state(folder / "run-2"), last_state(folder / "parts"))
    events = [
        json.loads(line).get("message", "")
        for line in (folder / "parts" / "metrics.jsonl").read_text().splitlines()
    ]
    assert "resumed from step-00000010" in events
