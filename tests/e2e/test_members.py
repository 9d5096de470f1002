"""Ensembles and portfolios through the command line: trained, killed and resumed, registered,
verified, made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DECLARATION = """
name: members
data: {uri: rows.parquet, columns: {row: id, who: group, y: label, "*": numeric}}
task: {kind: binary}
split: {kind: group}
model: {kind: linear}
train: {epochs: 3, batch_size: 32, ranks: 1, threads: 1}
evaluate: {bootstrap: 20, baselines: [constant]}
checks: {min_rows: 20}
register: {require_skill: false}
"""
TWO = ["ensemble.members=2"]
FINISHED = [*TWO, "evaluate.calibrate=temperature", "evaluate.threshold={for: f1}"]
AUTO = ["model={kind: auto, minutes: 100, candidates: [linear, {kind: mlp, hidden: [8]}]}"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    # of MLflow, when it loads the shipped model
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("members")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    frame = pd.DataFrame(x, columns=list("abc")).assign(
        row=[f"r{i}" for i in range(500)],
        who=[f"g{g}" for g in rng.integers(0, 100, 500)],
        y=x[:, 0] + np.abs(x[:, 1]) + rng.normal(size=500) > 0.8,
    )
    frame.to_parquet(folder / "rows.parquet")
    (folder / "members.yaml").write_text(DECLARATION)
    return folder


def variables(place: Path) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_"))}
    return kept | {"BULKHEAD_HOME": str(place / "home")}


def bulkhead(place: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        env=variables(place),
        cwd=ROOT,
        timeout=900,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout)


def start_and_kill(place: Path, name: str, *overrides: str) -> Path:
    """Start a run and kill all its processes when its second member trains."""
    yaml = str(place / "members.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "train", yaml, f"name={name}", *overrides],
        env=variables(place),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    runs = place / "home" / "runs" / name
    while process.poll() is None and not list(runs.glob("*/members/02/metrics.jsonl")):
        time.sleep(0.01)
    assert process.poll() is None
    process.kill()
    run_dir = next(runs.iterdir())
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run_dir).encode() in stat.read_bytes():
                os.kill(int(stat.parent.name), signal.SIGKILL)
    process.wait()
    return run_dir


@pytest.mark.parametrize("how", [TWO, AUTO], ids=["ensemble", "auto"])
def test_a_killed_run_goes_on_with_the_member_that_was_interrupted(
    place: Path, how: list[str], request: pytest.FixtureRequest
) -> None:
    name = f"killed-{request.node.callspec.id}"
    run_dir = start_and_kill(place, name, *how)
    first = run_dir / "members" / "01" / "result.json"
    before = first.stat().st_mtime_ns
    assert not (run_dir / "result.json").exists()
    resumed = bulkhead(place, "resume", run_dir.name)
    assert first.stat().st_mtime_ns == before, "a finished member is not trained again"
    yaml = str(place / "members.yaml")
    whole = bulkhead(place, "train", yaml, f"name={name}-whole", *how)
    for field in ("model_sha256", "best_metric", "steps", "best_step"):
        assert resumed[field] == whole[field], field
    assert resumed["best_checkpoint"]["sha256"] == whole["best_checkpoint"]["sha256"]
    from mlflow import MlflowClient

    client = MlflowClient(*[f"sqlite:///{place / 'home' / 'mlflow.db'}"] * 2)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(children) == 2 and {run.info.status for run in runs} == {"FINISHED"}
    assert all(client.get_metric_history(run.info.run_id, "val/auroc") for run in children)


@pytest.mark.parametrize(
    "how",
    [TWO, AUTO, [*TWO, "ensemble.over=folds"], FINISHED],
    ids=["ensemble", "auto", "folds", "finished"],
)
def test_a_registered_version_predicts_verifies_and_is_made_again(
    place: Path, how: list[str], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    summary = bulkhead(place, "run", str(place / "members.yaml"), f"name={name}", *how)
    assert summary["registered"]["registered"]
    run_dir = Path(summary["run_dir"])
    evaluated = pd.read_parquet(run_dir / "evaluation" / "test" / "predictions.parquet")
    assert evaluated["uncertainty"].between(0, 1).all()
    evidence = json.loads((run_dir / "evidence.json").read_text())
    assert len(evidence["members"]) == 2
    assert sum(m["weight"] for m in evidence["members"]) == pytest.approx(1)
    report = (run_dir / "report.html").read_text()
    assert 'id="members"' in report
    # nothing of the run is missing; the words of normalize.indicators are about a value
    assert "is missing" not in report.replace("a value is missing", "")
    checklist = json.loads((run_dir / "checklist.json").read_text())
    assert [i["id"] for i in checklist["items"] if i["standing"] == "contradicted"] == []
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{place / 'home' / 'mlflow.db'}")
    rows = pd.read_parquet(place / "rows.parquet").set_index("row").loc[evaluated["__id"]]
    served = mlflow.pyfunc.load_model(f"models:/{name}/1").predict(rows[list("abc")].reset_index())
    np.testing.assert_allclose(
        served["probability_True"], evaluated["probability_True"], rtol=0, atol=1e-9
    )
    assert served["prediction"].tolist() == evaluated["prediction"].tolist()
    verified = bulkhead(place, "verify", f"models:/{name}/1")
    assert [r["name"] for r in verified["results"] if r["verdict"] == "fail"] == []
    found = bulkhead(place, "reproduce", f"models:/{name}/1", "--apply-diff")
    assert found["identical"], found


def test_time_decides_how_many_candidates_run_and_a_reproduction_takes_as_many(
    place: Path,
) -> None:
    """So little time that only the first network runs, which always does."""
    how = ["model={kind: auto, minutes: 0.0001, candidates: [mlp, linear]}"]
    bulkhead(place, "run", str(place / "members.yaml"), "name=brief", *how)
    run_dir = next((place / "home" / "runs" / "brief").iterdir())
    evidence = json.loads((run_dir / "evidence.json").read_text())
    assert [(m["kind"], m["weight"]) for m in evidence["members"]] == [("mlp", 1.0)]
    assert not (run_dir / "members" / "02").exists()
    assert bulkhead(place, "reproduce", "models:/brief/1", "--apply-diff")["identical"]
