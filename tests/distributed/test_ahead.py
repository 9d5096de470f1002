"""Two gloo ranks whose updates are decided on the device and read a step later, in every layout:
the same bits as ranks that wait.
"""

from __future__ import annotations

from typing import Any

import pytest

from schemas.config import TrainConfig
from tests.distributed.launch import run_ranks
from tests.training.runs import make_run, synthetic
from training.engine.sampling import epoch_order

NOISY = {"kind": "resmlp", "width": 24, "depth": 2, "dropout": 0.2}
BASE = {
    "epochs": 1,
    "batch_size": 16,
    "micro_batch_size": 3,
    "log_every": 1,
    "clip": "norm",
    "clip_at": 0.1,
    "ema": 0.9,
    "ranks": 2,
    "threads": 1,
}
FP16 = {"precision": "fp16", "loss_scale": {"initial": 2.0**30, "growth_interval": 3}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp, fp16": FP16,
    "fsdp, fp16": {"parallel": "fsdp", **FP16},
    "elastic": {"mode": "elastic", "logical_shards": 4},
}
STOP = 5
pytestmark = pytest.mark.long
# in the fourth step, on the first rank
BAD_ROW = int(epoch_order(TrainConfig().seed, 0, 101)[3 * 16 + 2])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ahead")
    for name, train in LAYOUTS.items():
        make_run(folder / name, rows=(101, 33), model=NOISY, train=BASE | train)
    for name, train in (("ddp", {}), ("fsdp, fp16", LAYOUTS["fsdp, fp16"])):
        arrays = {"train": synthetic(101, 0), "val": synthetic(33, 1)}
        arrays["train"]["numeric"][BAD_ROW] = 3e38
        scale = {"loss_scale": {"initial": 8.0}} if "fp16" in name else {}
        make_run(folder / f"{name}, bad", arrays=arrays, model=NOISY, train=BASE | train | scale)
    return dict(
        run_ranks(
            "tests.distributed.ahead_work:both_ways",
            2,
            folder / "ranks",
            folder=str(folder),
            stop=STOP,
        )[0]
    )


@pytest.mark.req("T1", "C5", "C6")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_end_with_the_bits_of_ranks_that_wait_and_stop_at_the_same_step(
    outcomes: dict[str, Any], layout: str
) -> None:
    waits, ahead = outcomes[layout]["waits"], outcomes[layout]["ahead"]
    assert ahead["stopped"] == [STOP], "asked for by one rank"
    assert ahead["state"] == waits["state"] and ahead["steps"] == waits["steps"]


@pytest.mark.req("T11")
@pytest.mark.parametrize("layout", ["ddp", "fsdp, fp16"])
def test_a_bad_row_on_one_rank_leaves_the_state_before_it_on_all(
    outcomes: dict[str, Any], layout: str
) -> None:
    waits, ahead = (outcomes[f"{layout}, bad"][way] for way in ("waits", "ahead"))
    assert (
        f"train-{BAD_ROW}" in waits["told"]
        and " at step 4, " in waits["told"]
        and waits["told"] == ahead["told"]
    )
    assert (
        waits["state"] == ahead["state"]
        and waits["dumps"] == ahead["dumps"]
        and len(waits["dumps"]) == 2
    )
