"""A refit through the command line: registered, recognised, verified, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.test_pipeline import ROOT, bulkhead, client, variables

SMALL = [
    "train.epochs=4",
    "train.ranks=1",
    "train.threads=1",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "model.kind=linear",
    "optimizer.lr=0.02",
    "evaluate.bootstrap=60",
    "evaluate.baselines=[constant]",
    "checks.min_rows=20",
    "name=small",
    "register.thresholds={}",
]
RUN = ("run", "tests/clinic_visits.yaml", *SMALL)
pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refit")
    subprocess.run(
        [
            sys.executable,
            "examples/clinic_visits.py",
            str(folder / "clinic.parquet"),
            "--patients",
            "1200",
        ],
        check=True,
        cwd=ROOT,
        env=variables(folder / "home"),
    )
    return folder / "home"


def evidence(summary: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(summary["run_dir"]) / "evidence.json").read_bytes())
    return found


def kill_in_refit(home: Path, *options: str) -> Path:
    """Start a run and kill all its processes in the midst of the refit; return its directory."""
    known = set((home / "runs" / "small").iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *RUN, *options],
        env=variables(home),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while process.poll() is None:
        for run_dir in set((home / "runs" / "small").iterdir()) - known:
            if any((run_dir / "refit" / "checkpoints").glob("step-*")):
                process.kill()
                for stat in Path("/proc").glob("[0-9]*/cmdline"):
                    if stat.exists() and str(run_dir).encode() in stat.read_bytes():
                        os.kill(int(stat.parent.name), signal.SIGKILL)
                process.wait()
                return run_dir
        time.sleep(0.005)
    raise AssertionError("it ended before it could be killed")


def test_a_refit_is_registered_with_whose_score_it_has(home: Path) -> None:
    first = json.loads(bulkhead(home, *RUN, "train.refit=train_val", "--json").stdout)
    assert first["registered"]["registered"]
    assert "the test score belongs to the estimate" in first["registered"]["note"]
    assert first["registered"]["note"] in Path(first["report"]).read_text()
    found = evidence(first)
    refit, sides = found["refit"], found["split"]["sides"]
    assert refit["num_rows"] == sides["train"]["rows"] + sides["val"]["rows"]
    assert refit["estimate"]["model_sha256"] != found["model_sha256"]
    result = json.loads((Path(first["run_dir"]) / "result.json").read_bytes())
    assert refit["estimate"]["model_sha256"] == result["model_sha256"]
    assert refit["steps"] == result["best_step"]

    again = json.loads(bulkhead(home, *RUN, "train.refit=train_val", "--json").stdout)
    assert not again["registered"]["registered"] and "unchanged" in again["registered"]["verdict"]

    told = bulkhead(home, "verify", "models:/small@champion").stdout
    assert "✓ refit" in told and "✗" not in told

    run_dir = kill_in_refit(home, "train.refit=all")
    done = json.loads(bulkhead(home, "resume", run_dir.name, "--json").stdout)
    assert done["registered"]["version"] == "2" and evidence(done)["refit"]["rows"] == "all"
    assert "✗" not in bulkhead(home, "verify", "models:/small/2").stdout
    version = client(home).get_model_version("small", "2")
    keys = client(home).get_model_version_download_uri("small", version.version)
    learned = [np.load(p) for p in Path(keys.removeprefix("file://")).rglob("trained_on.npy")]
    assert all(len(found) >= evidence(done)["refit"]["num_rows"] for found in learned)

    same = json.loads(bulkhead(home, *RUN, "train.refit=all", "--json").stdout)
    assert "unchanged" in same["registered"]["verdict"]
    assert "refit" not in evidence(same), "what is not registered is not trained again"

    refused = bulkhead(home, *RUN, "train.refit=all", "train.seed=5", "--json", code=1)
    assert "test rows are unseen by the champion" in refused.stdout
