"""A search through the command line: its winner registered, killed and resumed, other test rows."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from flows.prepare import prepare_data
from flows.search import try_values
from schemas.load import load_declaration
from tasks.context import tracked
from tasks.ranks import with_ranks
from tasks.search import searching
from tests.e2e.test_crossvalidate import ROOT, client_of, declare, variables

pytestmark = pytest.mark.long  # minutes: four searches with real programs
DECLARATION = """
name: tries
data: {uri: rows.parquet, columns: {id: id, who: group, y: label, "*": feature}}
task: {kind: binary}
split: {kind: group}
model: {kind: mlp, hidden: [16]}
optimizer: {kind: sgd, lr: 0.02}
train: {epochs: 12, batch_size: 64, ranks: 1, threads: 1, clip: none}
evaluate: {bootstrap: 20, baselines: [constant]}
register: {require_skill: false}
search:
  trials: 3
  seed: 1 # trial 2 diverges
  concurrency: 1
  space:
    optimizer.lr: [0.05, 1.0e+30]
    model.hidden: [[4], [8]]
    optimizer.weight_decay: null
    model.dropout: null
    model.numeric_embedding: null
"""


def write(folder: Path) -> Path:
    folder.mkdir()
    declare(folder)
    (folder / "tries.yaml").write_text(DECLARATION)
    return folder / "tries.yaml"


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *arguments],
        env=variables(home),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err[-6000:]
    return dict(json.loads(out), stderr=err)


def winner(found: dict[str, Any]) -> dict[str, Any]:
    """What two equal searches share: the log, the declaration without run and time, the weights."""
    best = yaml.safe_load(Path(found["search"]["best"]).read_text())
    for name in ("run_id", "hours"):
        del best["search"]["found"][name]
    del best["data"]["uri"]
    result = json.loads((Path(found["best"]["run_dir"]) / "result.json").read_text())
    log = Path(found["search"]["run_dir"]) / "search.jsonl"
    return {"best": best, "weights": result["model_sha256"], "log": log.read_bytes()}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("search")
    file = write(folder / "a")
    return finish(start(folder / "home", "run", str(file), "--json")) | {"home": folder / "home"}


def test_the_winner_is_run_registered_and_its_search_is_told(searched: dict[str, Any]) -> None:
    trials, best = searched["search"]["trials"], searched["best"]
    assert [trial["state"] for trial in trials] == ["complete", "failed", "complete"]
    assert trials[1]["cause"].startswith("NonFiniteError") and trials[1]["score"] is None
    lines = re.findall(r"trial \d/3 +(.*)", searched["stderr"])
    assert len(lines) == 3 and re.match(r"val auroc 0\.\d{4}  best 0\.\d{4} \(trial 1\)", lines[0])
    assert best["registered"]["registered"] and best["outcome"] == "promoted"
    run_dir = Path(best["run_dir"])
    result = json.loads((run_dir / "result.json").read_text())
    score = trials[searched["search"]["trial"] - 1]["score"]
    assert result["best_metric"] == score == max(t["score"] or 0 for t in trials)
    client = client_of(searched["home"])
    logged = client.list_artifacts(best["mlflow_run_id"])
    assert "evidence.json" in {item.path for item in logged}
    path = client.download_artifacts(best["mlflow_run_id"], "evidence.json")
    evidence = json.loads(Path(path).read_text())["search"]
    assert (evidence["trials"], evidence["failed"], evidence["pruned"]) == (3, 1, 0)
    test = best["metrics"]["auroc"]["value"]
    assert evidence["test_score"] == test and evidence["gap"] == pytest.approx(score - test)
    page = (run_dir / "report.html").read_text()
    assert "the best of 3 trials" in page and "Validation better than test by" in page
    params = client.get_run(best["mlflow_run_id"]).data.params
    assert params["search.found.trials"] == "3"


def test_each_trial_is_a_child_run_that_cannot_name_test_rows(searched: dict[str, Any]) -> None:
    client, run_dir = client_of(searched["home"]), Path(searched["search"]["run_dir"])
    runs = client.search_runs([client.get_experiment_by_name("tries").experiment_id])
    parent = next(r for r in runs if r.info.run_name == searched["search"]["run_id"])
    assert parent.info.status == "FINISHED" and parent.data.metrics["search/trials"] == 3
    children = {
        r.data.tags["bulkhead.trial"]: r
        for r in runs
        if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    }
    assert {n: r.info.status for n, r in children.items()} == {
        "1": "FINISHED",
        "2": "FAILED",
        "3": "FINISHED",
    }
    for number in children:
        folder = run_dir / "trials" / f"00{number}"
        spec = json.loads((folder / "resolved.json").read_text())
        assert spec["arrays"]["test"]["arrays"] == {} and "search" not in spec["declaration"]
        assert not (folder / "checkpoints").exists()


def wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not list(path.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_stopped_and_killed_it_finds_the_same(searched: dict[str, Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = start(home, "search", str(write(tmp_path / "a")))
    wait_for(home, "runs/tries/*/trials/001/metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "bulkhead resume" in err
    run_dir = next((home / "runs" / "tries").iterdir())
    process = start(home, "resume", run_dir.name)
    wait_for(run_dir, "trials/003/metrics.jsonl", process)
    process.kill()
    process.communicate(timeout=60)
    assert json.loads((run_dir / "run.json").read_text())["status"] == "running"
    assert winner(finish(start(home, "resume", run_dir.name, "--json"))) == winner(searched)


def test_other_test_rows_change_nothing_of_it(searched: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "a")
    split = json.loads((Path(searched["search"]["run_dir"]) / "prepared.json").read_text())["split"]
    ids = pq.read_table(split["test"]["file"]["path"])["__id"]
    rows = pq.read_table(file.parent / "rows.parquet")
    held = pc.is_in(rows["id"], value_set=ids.combine_chunks())
    assert 0 < pc.sum(held).as_py() < rows.num_rows
    other = {
        "x": pc.if_else(held, pc.add(pc.multiply(rows["x"], -0.7), 0.3), rows["x"]),
        "y": pc.if_else(held, pc.subtract(1, rows["y"]), rows["y"]),
    }
    table = pa.table({name: other.get(name, rows[name]) for name in rows.column_names})
    pq.write_table(table, file.parent / "rows.parquet")
    process = start(tmp_path / "home", "search", str(file), "--json", "register.enabled=false")
    found = finish(process)
    here, there = winner(found), winner(searched)
    assert here["log"] == there["log"] and here["weights"] == there["weights"]
    assert found["best"]["metrics"] != searched["best"]["metrics"]  # they were changed indeed


def test_checks_and_trials_open_no_file_of_test_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test rows are away from the end of the preparation to the choice of the winner."""
    file = write(tmp_path / "a")
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    given = ("search.trials=2", "search.space={optimizer.lr: [0.01, 0.05]}")

    @flow(persist_result=False)
    def trials_alone() -> Any:
        declaration = searching(with_ranks(load_declaration(str(file), given)))
        with tracked(declaration, "search") as run:
            prepared = prepare_data(declaration)
            arrays, table = prepared.arrays.test, prepared.split.test
            away = [table.file, arrays.ids, *arrays.arrays.values()]
            for ref in away:
                ref.file.rename(f"{ref.path}.away")
            found = try_values(prepared, run)
            assert not any(ref.file.exists() for ref in away)
        return found

    with prefect_test_harness(server_startup_timeout=180):
        found = trials_alone()
    assert [trial.state for trial in found.trials] == ["complete", "complete"]
    assert not (tmp_path / "home" / "ledgers" / "looks.jsonl").exists()
