"""The same run whole, replicated, sharded and by logical shards, in real gloo processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.launch import run_ranks
from tests.training.runs import make_run

BLOCKS = {"kind": "resmlp", "width": 24, "depth": 2, "dropout": 0.0}
NOISY = {"kind": "resmlp", "width": 24, "depth": 2, "dropout": 0.2}
REALMLP: dict[str, Any] = {
    "model": {"kind": "realmlp", "hidden": [24, 24], "dropout": 0.0},
    "optimizer": {
        "kind": "adamw",
        "lr": 0.01,
        "weight_decay": 0.02,
        "weight_decay_schedule": "flat_cos",
    },
    "schedule": {"kind": "coslog4"},
}
TABM: dict[str, Any] = {"model": {"kind": "tabm", "width": 24, "members": 4, "dropout": 0.0}}
BASE = {
    "epochs": 2,
    "batch_size": 16,
    "micro_batch_size": 3,
    "log_every": 1,
    "clip": "norm",
    "clip_at": 0.1,
}
ELASTIC = {**BASE, "mode": "elastic", "logical_shards": 4, "augment": {"noise": 0.1}, "threads": 1}
FP16 = {"precision": "fp16", "loss_scale": {"initial": 2.0**30, "growth_interval": 3}}
ROWS = (101, 33)


def dropping(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run with dropout."""
    return run | {"model": run["model"] | {"dropout": 0.2}}


def outcome(
    folder: Path,
    ranks: int,
    stops: tuple[int, ...] = (),
    finish: bool = True,
    **runs: dict[str, Any],
) -> dict[str, Any]:
    """Return the results of the runs on this number of ranks; by default, of those below the
    folder.
    """
    for name, sections in runs.items():
        make_run(folder / name, rows=ROWS, **sections)
    return dict(
        run_ranks(
            "tests.distributed.layout_work:run_all",
            ranks,
            folder / f"ranks-{ranks}",
            folder=str(folder),
            stops=list(stops),
            finish=finish,
        )[0]
    )


# cases with the largest difference of a weight
QUICK = {"full": 1e-5, "fp16": 5e-3, "realmlp": 1e-4}
OTHERS = {"bf16": 2e-2, "ema": 1e-5, "tabm": 1e-5}


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return by layout weights without noise; declarations differ in `parallel` only."""
    return _laid_out(tmp_path_factory, QUICK)


@pytest.fixture(scope="module")
def others_laid_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the same of precisions and kinds that are left to the long tests."""
    return _laid_out(tmp_path_factory, OTHERS)


def _laid_out(tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, float]) -> dict[str, Any]:
    plain = {"model": BLOCKS, "train": BASE}
    found = {}
    for name, ranks, parallel in (("one", 1, "ddp"), ("ddp", 2, "ddp"), ("fsdp", 2, "fsdp")):
        train = {"parallel": parallel, "ranks": ranks}
        runs = {
            "full": {**plain, "train": BASE | train},
            "bf16": {**plain, "train": BASE | train | {"precision": "bf16"}},
            "fp16": {**plain, "train": BASE | train | FP16},
            "ema": {**plain, "train": BASE | train | {"ema": 0.9}},
            "realmlp": {**REALMLP, "train": BASE | train},
            "tabm": {**TABM, "train": BASE | train},
        }
        runs = {case: runs[case] for case in wanted}
        found[name] = outcome(tmp_path_factory.mktemp(name), ranks, **runs)
    return found


@pytest.mark.req("T1")
@pytest.mark.parametrize(("case", "tolerance"), QUICK.items())
def test_one_process_ddp_and_fsdp2_train_the_same_network(
    laid_out: dict[str, Any], case: str, tolerance: float
) -> None:
    compare(laid_out, case, tolerance)


@pytest.mark.long
@pytest.mark.req("T1")
@pytest.mark.parametrize(("case", "tolerance"), OTHERS.items())
def test_they_do_so_with_other_precisions_and_kinds(
    others_laid_out: dict[str, Any], case: str, tolerance: float
) -> None:
    compare(others_laid_out, case, tolerance)


def compare(laid_out: dict[str, Any], precision: str, tolerance: float) -> None:
    one, ddp, fsdp = (laid_out[name][precision] for name in ("one", "ddp", "fsdp"))
    for other in (ddp, fsdp):
        for kind in ("weights", "best"):  # raw, and of the best evaluation: with ema, the average
            np.testing.assert_allclose(other[kind], one[kind], rtol=0, atol=tolerance)
        assert other["report"]["skipped_steps"] == one["report"]["skipped_steps"]
    assert (one["report"]["skipped_steps"] > 0) == (precision == "fp16"), "the forced overflows"


@pytest.mark.long
@pytest.mark.req("C2")
def test_a_sharded_run_stopped_and_resumed_ends_bit_identical(tmp_path: Path) -> None:
    fsdp = BASE | {"parallel": "fsdp", "ranks": 2}
    runs = {
        "run": {"model": NOISY, "train": fsdp | FP16 | {"augment": {"noise": 0.1}, "ema": 0.9}},
        "realmlp": {**dropping(REALMLP), "train": fsdp},
        "tabm": {**dropping(TABM), "train": fsdp},
    }
    whole = outcome(tmp_path / "whole", 2, **runs)
    parts = outcome(tmp_path / "parts", 2, (3, 10), **runs)
    for name in runs:
        assert parts[name]["state"] == whole[name]["state"]
        assert parts[name]["report"]["model_sha256"] == whole[name]["report"]["model_sha256"]


@pytest.mark.req("T1")
@pytest.mark.long
def test_a_sharded_state_is_cut_anew_for_another_number_of_ranks_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    """In mode fast the run ends as on one process; exact refuses, since its sums would round
    differently.
    """
    run = {"model": BLOCKS, "train": BASE | {"parallel": "fsdp", "mode": "fast", "ema": 0.9}}
    runs = {"fast": run, "exact": run | {"train": run["train"] | {"mode": "exact"}}}
    one = outcome(tmp_path / "one", 1, run=run)
    begun = outcome(tmp_path / "many", 3, (5,), finish=False, **runs)
    assert {name: begun[name]["report"]["status"] for name in runs} == dict.fromkeys(
        runs, "interrupted"
    )
    ended = outcome(tmp_path / "many", 2)
    for kind in ("weights", "best"):
        np.testing.assert_allclose(ended["fast"][kind], one["run"][kind], rtol=0, atol=1e-5)
    assert ended["exact"]["error"] == "CheckpointError"
    assert "world_size" in ended["exact"]["message"]


@pytest.mark.long
@pytest.mark.req("C5")
def test_an_elastic_run_is_bit_identical_when_its_number_of_ranks_changes(tmp_path: Path) -> None:
    runs = {
        "run": {
            "model": NOISY,
            "train": ELASTIC | FP16 | {"ema": 0.9},
            "schedule": {"kind": "plateau", "patience": 0},
        },
        "realmlp": {**dropping(REALMLP), "train": ELASTIC},
        "tabm": {**dropping(TABM), "train": ELASTIC},
    }
    one = outcome(tmp_path / "one", 1, **runs)
    outcome(tmp_path / "changing", 4, (3,), finish=False, **runs)
    outcome(tmp_path / "changing", 1, (9,), finish=False)
    changing = outcome(tmp_path / "changing", 2)
    for name in runs:
        assert changing[name]["state"] == one[name]["state"]
        assert changing[name]["report"]["model_sha256"] == one[name]["report"]["model_sha256"]
    assert one["run"]["report"]["skipped_steps"] > 0
