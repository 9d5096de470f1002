"""A run with yardsticks through the command line: compared, logged, never decisive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_crossvalidate import ROOT, client_of, declare, variables

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # a minute: two runs
DECLARATION = """
name: yard
data: {uri: rows.parquet, columns: {id: id, who: group, y: label, "*": feature}}
task: {kind: binary}
split: {kind: group}
model: {kind: linear}
train: {epochs: 2, batch_size: 64, ranks: 1, threads: 1}
evaluate:
  bootstrap: 20
  baselines: [constant]
  against:
    - sklearn.linear_model:LogisticRegression
    - {path: "tests.training.odd_estimators:Fails"}
"""


def bulkhead(folder: Path, allowed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", str(folder / "yard.yaml"), *arguments, "--json"],
        capture_output=True,
        text=True,
        env=variables(folder / "home") | {"BULKHEAD_ALLOW_IMPORTS": allowed},
        cwd=ROOT,
        timeout=280,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("yardsticks")
    declare(folder)
    (folder / "yard.yaml").write_text(DECLARATION)
    return folder


@pytest.fixture(scope="module")
def outcome(place: Path) -> dict[str, Any]:
    done = bulkhead(place, "sklearn,tests")
    assert done.returncode == 0, done.stderr[-6000:]
    return dict(json.loads(done.stdout), stderr=done.stderr)


def test_they_are_in_terminal_report_evidence_and_mlflow(
    outcome: dict[str, Any], place: Path
) -> None:
    run_dir = Path(outcome["run_dir"])
    evidence = json.loads((run_dir / "evidence.json").read_text())
    fitted, failed = evidence["against"]
    assert (fitted["name"], failed["problem"]) == (
        "LogisticRegression",
        "RuntimeError: no licence at https://***@host",
    )
    assert 0.5 < fitted["metrics"]["auroc"] <= 1
    assert "LogisticRegression is" in outcome["stderr"]
    assert "Fails has no figures: RuntimeError" in outcome["stderr"]
    page = (run_dir / "report.html").read_text()
    assert "Next to yardsticks" in page and "LogisticRegression" in page and "secret" not in page
    data = client_of(place / "home").get_run(outcome["mlflow_run_id"]).data
    logged = {n: v for n, v in data.metrics.items() if n.startswith("against/")}
    assert logged["against/LogisticRegression/auroc"] == fitted["metrics"]["auroc"]
    assert "against/LogisticRegression/fit_seconds" in logged
    assert not any("Fails" in name for name in logged)
    assert {c["name"] for c in evidence["gate"]["conditions"]}.isdisjoint(logged)


def test_what_is_not_allowed_is_refused_before_anything_runs(place: Path) -> None:
    done = bulkhead(place, "sklearn", "name=refused")
    assert done.returncode != 0 and not (place / "home" / "runs" / "refused").exists()
    assert "package 'tests' is not allowed (allowed: sklearn)" in done.stdout + done.stderr
