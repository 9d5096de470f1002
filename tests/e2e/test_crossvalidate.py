"""Cross-validation through the command line with real torchrun, Prefect and MLflow; and what a
cancelled one leaves.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DECLARATION = """
name: folds
data: {uri: rows.parquet, columns: {id: id, who: group, y: label, "*": feature}}
task: {kind: binary}
split: {kind: group}
cv: {folds: 2, concurrency: 2}
model: {kind: linear}
train: {epochs: 2, batch_size: 64, ranks: 1, threads: 1}
evaluate: {bootstrap: 20, baselines: [constant], calibrate: temperature, threshold: {for: f1}}
"""


def declare(folder: Path) -> Path:
    draw = random.Random(0)
    x = [draw.gauss(0, 1) for _ in range(600)]
    columns = {
        "id": [f"r{i}" for i in range(600)],
        "who": [f"g{i // 5}" for i in range(600)],
        "x": x,
        "z": [draw.random() for _ in x],
        "y": [int(v + draw.gauss(0, 1) > 0) for v in x],
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    (folder / "folds.yaml").write_text(DECLARATION)
    return folder / "folds.yaml"


def variables(home: Path) -> dict[str, str]:
    environment = os.environ | {"BULKHEAD_HOME": str(home)}
    return {
        name: value
        for name, value in environment.items()
        if name not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crossvalidate") / "home"


@pytest.fixture(scope="module")
def outcome(home: Path) -> dict[str, Any]:
    file = declare(home.parent)
    command = [sys.executable, "-m", "flows.cli", "run", str(file), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables(home), cwd=ROOT, timeout=280
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return dict(json.loads(done.stdout), stderr=done.stderr)


@pytest.mark.long  # 80 seconds; tests/training/data tests the folds themselves
@pytest.mark.req("D3")
def test_the_folds_are_trained_tested_and_reported(outcome: dict[str, Any]) -> None:
    assert outcome["kind"] == "group" and len(outcome["folds"]) == 2
    values = [fold["metrics"]["auroc"]["value"] for fold in outcome["folds"]]
    assert (
        outcome["metrics"]["auroc"]["mean"] == pytest.approx(sum(values) / 2) and min(values) > 0.6
    )
    first, second = outcome["folds"]
    assert first["rows"]["test"] + second["rows"]["test"] + first["excluded"]["holdout"] == 600
    assert sum(first["rows"].values()) + sum(first["excluded"].values()) == 600
    names = {check["name"] for check in first["checks"]["results"]}
    assert {
        "row_coverage",
        "id_overlap",
        "group_overlap",
        "duplicates",
        "label_conflicts",
        "poison",
    } <= names
    assert outcome["coverage"]["results"][0]["verdict"] == "pass"
    page = Path(outcome["report"]).read_text()
    assert "cross-validation report" in page and outcome["verdict"][1:40] in page


@pytest.mark.long
@pytest.mark.req("D7")
def test_each_fold_is_fitted_on_its_own_train(outcome: dict[str, Any], home: Path) -> None:
    means = []
    for fold in outcome["folds"]:
        prepared = json.loads((Path(fold["run_dir"]) / "prepared.json").read_text())
        train = pq.read_table(prepared["split"]["train"]["file"]["path"])
        x = next(n for n in prepared["statistics"]["numeric"] if n["name"] == "x")
        assert (
            x["mean"] == pytest.approx(sum(train["x"].to_pylist()) / train.num_rows, rel=1e-6)
            and prepared["statistics"]["rows"] == train.num_rows
        )
        means.append(x["mean"])
    assert means[0] != means[1]


@pytest.mark.long
def test_each_fold_is_finished_on_its_own_validation_rows(outcome: dict[str, Any]) -> None:
    for fold in outcome["folds"]:
        final = json.loads((Path(fold["run_dir"]) / "final" / "result.json").read_text())
        report = final["report"]
        assert fold["model_sha256"] == report["model_sha256"]
        assert [c["rows"] for c in report["threshold"]] == [fold["rows"]["val"]]
        assert [c["rows"] for c in report["calibration"]] == [fold["rows"]["val"]]


@pytest.mark.long
@pytest.mark.req("P6")
def test_mlflow_holds_a_run_with_its_folds_and_no_model(
    outcome: dict[str, Any], home: Path
) -> None:
    client = client_of(home)
    parent = client.get_run(outcome["mlflow_run_id"])
    assert parent.info.status == "FINISHED" and parent.data.metrics[
        "cv/auroc/mean"
    ] == pytest.approx(outcome["metrics"]["auroc"]["mean"])
    for fold in outcome["folds"]:
        child = client.get_run(fold["mlflow_run_id"])
        assert (
            child.info.status == "FINISHED"
            and child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        )
        assert child.data.metrics["test/auroc"] == pytest.approx(fold["metrics"]["auroc"]["value"])
    assert not list(client.search_registered_models())


def client_of(home: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{home / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def at_work(word: str) -> list[int]:
    """Return the processes with the word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.long
@pytest.mark.req("P4")
def test_a_cancelled_cross_validation_leaves_no_process(
    outcome: dict[str, Any], home: Path
) -> None:
    arguments = [
        "run",
        str(home.parent / "folds.yaml"),
        "train.epochs=100000",
        "train.patience=100000",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *arguments],
        env=variables(home),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    known = set((home / "runs" / "folds").iterdir())
    deadline, run_dir = time.monotonic() + 120, None
    while time.monotonic() < deadline and process.poll() is None:
        run_dir = next(iter(set((home / "runs" / "folds").iterdir()) - known), None)
        if run_dir and all((run_dir / "folds" / n / "metrics.jsonl").exists() for n in ("1", "2")):
            break
        time.sleep(0.1)
    assert run_dir is not None and process.poll() is None
    assert len(at_work(str(run_dir / "folds"))) >= 4  # an agent and a rank of each
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    deadline = time.monotonic() + 15
    while at_work(str(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not at_work(str(run_dir))
    runs = client_of(home).search_runs(
        [client_of(home).get_experiment_by_name("folds").experiment_id]
    )
    assert sorted(r.info.status for r in runs if run_dir.name in r.info.run_name) == ["KILLED"] * 3
    assert json.loads((run_dir / "run.json").read_text())["status"] == "killed"
