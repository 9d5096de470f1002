"""The whole chain through the command line: two ranks, real Prefect, real MLflow, a registered
champion.

The tests of this file share one run; each test checks another part of its results.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = [
    "train.epochs=6",
    "train.ranks=2",
    "model.kind=mlp",
    "evaluate.bootstrap=60",
    "checks.min_rows=20",
    "name=small",
    "register.thresholds={}",
]

# the first test of a fixture runs it, even on a busy machine
pytestmark = pytest.mark.timeout(900)


def variables(home: Path) -> dict[str, str]:
    environment = os.environ | {
        "BULKHEAD_HOME": str(home),
        "BULKHEAD_CLINIC": str(home.parent / "clinic.parquet"),
    }
    return {
        name: value
        for name, value in environment.items()
        if name not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")
    }


def bulkhead(home: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        capture_output=True,
        text=True,
        env=variables(home),
        cwd=ROOT,
        timeout=800,
    )
    assert done.returncode == code, (
        f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    )
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("e2e")
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "clinic_visits.py"),
            str(folder / "clinic.parquet"),
            "--patients",
            "1200",
        ],
        check=True,
        capture_output=True,
    )
    yield folder / "home"


@pytest.fixture(scope="module")
def first(home: Path) -> dict[str, Any]:
    done = bulkhead(home, "run", "tests/clinic_visits.yaml", *SMALL, "--json")
    return dict(json.loads(done.stdout), stderr=done.stderr)


def client(home: Path) -> Any:
    from mlflow import MlflowClient

    uri = f"sqlite:///{home / 'mlflow.db'}"
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def run_of(home: Path, run_dir: Path) -> Any:
    """Return the only MLflow run of a run directory."""
    found = client(home).search_runs(
        [client(home).get_experiment_by_name("small").experiment_id],
        filter_string=f"tags.`bulkhead.run_dir` = '{run_dir}'",
    )
    assert len(found) == 1
    return found[0]


def start_and_kill(home: Path, evaluations: int) -> Path:
    """Start the same run again and kill all its processes later; return its directory."""
    known = set((home / "runs" / "small").iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", "tests/clinic_visits.yaml", *SMALL],
        env=variables(home),
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    run_dir = None
    while process.poll() is None:
        run_dir = next(iter(set((home / "runs" / "small").iterdir()) - known), None)
        lines = (
            (run_dir / "metrics.jsonl").read_text()
            if run_dir and (run_dir / "metrics.jsonl").exists()
            else ""
        )
        if lines.count('"kind": "evaluation"') >= evaluations:
            break
        time.sleep(0.01)
    assert run_dir is not None and process.poll() is None
    process.kill()
    for stat in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run_dir).encode() in stat.read_bytes():
                os.kill(int(stat.parent.name), signal.SIGKILL)
    process.wait()
    return run_dir


@pytest.fixture(scope="module")
def second(first: dict[str, Any], home: Path) -> dict[str, Any]:
    """Start the same run again, kill it during training, and resume it."""
    run_dir = start_and_kill(home, evaluations=2)
    listed = next(
        row
        for row in json.loads(bulkhead(home, "resume", "--json").stdout)
        if row["run_id"] == run_dir.name
    )
    status = run_of(home, run_dir).info.status
    done = bulkhead(home, "resume", run_dir.name, "--json")
    return dict(
        json.loads(done.stdout), stderr=done.stderr, listed=listed, status_when_killed=status
    )


@pytest.mark.slow
@pytest.mark.req("P2")
def test_a_run_ends_with_a_registered_champion(first: dict[str, Any], home: Path) -> None:
    assert first["registered"]["registered"] and first["registered"]["alias"] == "champion"
    version = client(home).get_model_version_by_alias("small", "champion")
    assert str(version.version) == first["registered"]["version"] == "1"
    auroc = first["metrics"]["auroc"]
    assert auroc["low"] <= auroc["value"] <= auroc["high"] and auroc["value"] > 0.55
    assert Path(first["report"]).read_text().lstrip().lower().startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.req("P6")
def test_mlflow_holds_what_is_needed_to_believe_the_run(first: dict[str, Any], home: Path) -> None:
    tracking = client(home)
    run = tracking.get_run(first["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.epochs"] == "6" and run.data.params["split.kind"] == "group_time"
    tags = run.data.tags
    assert (
        tags["bulkhead.flow_run_id"] == first["flow_run_id"]
        and first["flow_run_id"] in tags["bulkhead.prefect_url"]
    )
    assert {
        "bulkhead.sha256.source",
        "bulkhead.sha256.arrays",
        "bulkhead.sha256.statistics",
    } <= set(tags)
    history = tracking.get_metric_history(run.info.run_id, "val/auroc")
    assert 1 <= len(history) <= 6 and "test/auroc" in run.data.metrics

    def files(path: str = "") -> set[str]:
        found: set[str] = set()
        for item in tracking.list_artifacts(run.info.run_id, path):
            found |= files(item.path) if item.is_dir else {item.path}
        return found

    expected = {
        "config.yaml",
        "provenance.json",
        "data/split.json",
        "data/checks.json",
        "data/statistics.json",
        "checks/preflight.json",
        "evidence.json",
        "report.html",
        "train.log",
        "metrics.jsonl",
    }
    assert expected <= files()
    assert {d.dataset.name for d in run.inputs.dataset_inputs} == {"source", "train", "val", "test"}


@pytest.mark.slow
@pytest.mark.req("P2")
def test_prefect_shows_named_tasks_and_a_link_to_mlflow(first: dict[str, Any], home: Path) -> None:
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        names = {
            row[0].rsplit("-", 1)[0]
            for row in database.execute("select name from task_run where state_type = 'COMPLETED'")
        }
        state = database.execute(
            "select state_type from flow_run where id = ?", (first["flow_run_id"],)
        ).fetchone()
        links = [
            row[0] for row in database.execute("select data from artifact where key = 'mlflow-run'")
        ]
    assert state == ("COMPLETED",)
    assert {
        "validate table",
        "split rows",
        "assert disjoint",
        "check leakage",
        "fit statistics",
        "materialise arrays",
        "preflight",
        "train model",
        "evaluate",
    } <= names
    assert any(first["mlflow_run_id"] in link for link in links)


@pytest.mark.slow
@pytest.mark.req("R1")
def test_predictions_of_the_registered_model_are_those_of_the_run(
    first: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    bulkhead(
        home, "predict", "models:/small@champion", str(home.parent / "clinic.parquet"), str(out)
    )
    scored = pd.read_parquet(out)
    own = pd.read_parquet(Path(first["run_dir"]) / "evaluation" / "test" / "predictions.parquet")
    raw_id = next(
        c
        for c in scored.columns
        if scored[c].is_unique and set(own["__id"]) <= set(scored[c].astype(str))
    )
    merged = own.merge(
        scored.assign(__id=scored[raw_id].astype(str)), on="__id", suffixes=("", "_served")
    )
    assert len(merged) == len(own) > 50
    column = next(c for c in own.columns if c.startswith("probability_"))
    difference = (merged[column] - merged[f"{column}_served"]).abs().max()
    assert difference < 1e-6


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.req("P5")
def test_a_second_run_reuses_the_data_and_an_unchanged_model_is_not_registered_again(
    first: dict[str, Any], second: dict[str, Any], home: Path
) -> None:
    assert second["cached"] and "reused" in second["stderr"]
    assert first["cached"] is False
    assert second["metrics"] == first["metrics"]
    assert not second["registered"]["registered"] and second["registered"]["verdict"].startswith(
        "unchanged"
    )
    assert str(client(home).get_model_version_by_alias("small", "champion").version) == "1"


@pytest.mark.long
@pytest.mark.req("T11")
def test_a_loss_that_is_not_finite_fails_run_flow_and_mlflow_with_the_cause(
    first: dict[str, Any], home: Path
) -> None:
    wild = ["optimizer={kind: sgd, lr: 1.0e+30}", "train.clip=none", "schedule.kind=constant"]
    stopped = bulkhead(home, "run", "tests/clinic_visits.yaml", *SMALL, *wild, code=1)
    assert (
        "PreflightError" in stopped.stderr
        and "rates: " in stopped.stderr
        and "checks.allow=[{check: rates, reason: …}]" in stopped.stderr
    )
    wild.append("checks.allow=[{check: rates, reason: to see what a run makes of it}]")
    done = bulkhead(home, "run", "tests/clinic_visits.yaml", *SMALL, *wild, code=1)
    assert (
        "NonFiniteError" in done.stderr
        and "Traceback" not in done.stderr
        and "bulkhead replay /" in done.stderr
    )
    run = client(home).search_runs(
        [client(home).get_experiment_by_name("small").experiment_id],
        order_by=["attributes.start_time DESC"],
    )[0]
    assert run.info.status == "FAILED" and "NonFiniteError" in run.data.tags["bulkhead.error"]
    run_dir = Path(run.data.tags["bulkhead.run_dir"])
    assert len(list((run_dir / "dumps").iterdir())) == 2
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        state, text = database.execute(
            "select r.state_type, s.message from flow_run r join flow_run_state s on r.state_id ="
            " s.id where r.id = ?",
            (run.data.tags["bulkhead.flow_run_id"],),
        ).fetchone()
    assert state == "FAILED" and "NonFiniteError" in text and f"bulkhead replay {run_dir}" in text


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.req("C5")
def test_a_killed_run_is_resumed_to_the_same_model_in_the_same_mlflow_run(
    first: dict[str, Any], second: dict[str, Any], home: Path
) -> None:
    run_dir = Path(second["run_dir"])
    assert (
        second["listed"]["state"] == "killed"
        and second["listed"]["checkpoint_step"] > 0
        and second["status_when_killed"] == "RUNNING"
    )
    results = [
        json.loads((d / "result.json").read_text()) for d in (run_dir, Path(first["run_dir"]))
    ]
    assert (
        results[0]["model_sha256"] == results[1]["model_sha256"]
        and results[0]["status"] != "interrupted"
    )
    run, undisturbed = run_of(home, run_dir), client(home).get_run(first["mlflow_run_id"])
    assert run.info.status == "FINISHED" and run.info.run_id == second["mlflow_run_id"]
    for key in ("val/auroc", "train/loss", "step/loss"):
        one, other = (
            [(m.step, m.value) for m in client(home).get_metric_history(r.info.run_id, key)]
            for r in (run, undisturbed)
        )
        assert one == other and len(one) >= 3
    killed, resumed = json.loads((run_dir / "run.json").read_text())["flow_run_ids"]
    assert resumed == second["flow_run_id"]
    with sqlite3.connect(home / "prefect" / "prefect.db") as database:
        states = dict(
            database.execute(
                "select id, state_type from flow_run where id in (?, ?)", (killed, resumed)
            ).fetchall()
        )
    assert states == {killed: "CRASHED", resumed: "COMPLETED"}
    again = bulkhead(home, "resume", str(run_dir))
    assert "is finished: nothing to do" in again.stderr
