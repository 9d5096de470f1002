"""A value overflows on one of two ranks: all stop at once, nothing changes, one process finds the
row.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.launch import ROOT, environment, torchrun
from tests.training.runs import make_run, synthetic
from training.checkpoint.state import model_digest
from training.engine.sampling import epoch_order

STEP, BATCH, ROWS = 6, 16, 160
TRAIN = {
    "epochs": 1,
    "batch_size": BATCH,
    "micro_batch_size": 4,
    "ranks": 2,
    "threads": 1,
    "checkpoint_every": STEP - 1,
}


def weights_before(run_dir: Path) -> str:
    return model_digest(
        torch.load(run_dir / "checkpoints" / f"step-{STEP - 1:08d}" / "model.pt", weights_only=True)
    )


@pytest.mark.req("T11")
@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_an_overflow_on_one_rank_stops_all_and_is_found_by_one_process(
    tmp_path: Path, parallel: str
) -> None:
    arrays = {"train": synthetic(ROWS, 0), "val": synthetic(40, 1)}
    sections: dict[str, Any] = {"train": TRAIN | {"parallel": parallel}}
    place = (STEP - 1) * BATCH + BATCH // 2 + 5  # sixth row of rank 1's half of the step
    row = int(epoch_order(0, 0, ROWS)[place])
    run_dir = tmp_path / "run"
    if parallel == "ddp":  # for the weights of an undisturbed run at that step
        make_run(tmp_path / "sound", arrays=arrays, **sections)
        assert (
            torchrun(2, tmp_path / "sound" / "resolved.json", tmp_path / "sound" / "run").returncode
            == 0
        )
    arrays["train"]["numeric"][row, 3] = 2e38
    make_run(tmp_path, arrays=arrays, **sections)
    done = torchrun(2, tmp_path / "resolved.json", run_dir)
    ended = time.time()
    dumps = sorted((run_dir / "dumps").glob(f"step-{STEP:08d}-rank-*/dump.pt"))
    assert (
        done.returncode != 0 and f"on rank 1 (first rows: train-{row})" in done.stderr + done.stdout
    )
    assert len(dumps) == 2 and ended - dumps[0].stat().st_mtime < 10
    if parallel == "ddp":
        assert weights_before(run_dir) == weights_before(tmp_path / "sound" / "run")
    assert (
        max(path.name for path in (run_dir / "checkpoints").glob("step-*"))
        == f"step-{STEP - 1:08d}"
    )

    shutil.copy(tmp_path / "resolved.json", run_dir)
    command = [
        sys.executable,
        "-m",
        "flows.cli",
        "replay",
        str(run_dir),
        "--step",
        str(STEP),
        "--json",
    ]
    found = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["reproduced"] and [rank["finite"] for rank in report["ranks"]] == [True, False]
    assert all(rank["same_losses"] for rank in report["ranks"])
    finding = report["ranks"][1]["finding"]
    assert (
        finding["row_ids"] == [f"train-{row}"]
        and finding["micro_batch"] == 1
        and finding["column"] == "x3"
    )
    assert finding["module"].startswith("body.") and finding["direction"] == "forward"
