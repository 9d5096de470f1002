"""Registered versions reproduced bit by bit from their commit, and the reason if a byte was
changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from tests.e2e.growing import Growing

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = [
    "train.epochs=3",
    "evaluate.bootstrap=50",
    "register.thresholds={}",
    "register.require_skill=false",
    # three epochs are often behind the linear model, and this test needs a version
    "register.allow_behind=[linear, boosting]",
]
EXAMPLES = ("clinic_visits", "titanic", "wisdm_v11")
MODELS: dict[str, dict[str, Any]] = {  # of kinds with settings of their own
    "realmlp": {"kind": "realmlp", "hidden": [16]},
    "boosting": {"kind": "boosting", "max_iter": 20},
}


def bulkhead(home: Path, *arguments: str, code: int = 0, **variables: str) -> tuple[Any, str]:
    """Run a command; return its standard output as JSON, and its messages."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        env=kept | {"BULKHEAD_HOME": str(home)} | variables,
        cwd=ROOT,
        timeout=580,
    )
    assert done.returncode == code, (
        f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    )
    return json.loads(done.stdout or "null"), done.stderr


def left_behind(home: Path) -> list[str]:
    """Return folders of reproductions, and work trees that git still knows."""
    listed = subprocess.run(
        ["git", "worktree", "list"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    return [
        *map(str, home.glob("reproduce-*")),
        *(line for line in listed.splitlines() if "reproduce-" in line),
    ]


@pytest.mark.long
@pytest.mark.req("R3")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", [*EXAMPLES, *MODELS])
def test_a_version_is_verified_and_made_again_bit_by_bit(
    case: str, tmp_path: Path, real_data: Path
) -> None:
    data = tmp_path / "clinic.parquet"
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "clinic_visits.py"),
            str(data),
            "--patients",
            "1200",
        ],
        check=True,
        capture_output=True,
    )
    where = {"BULKHEAD_CLINIC": str(data), "BULKHEAD_DATA": str(real_data)}
    file = ROOT / "examples" / f"{case}.yaml"
    if case in MODELS:
        tree = yaml.safe_load((ROOT / "tests" / "clinic_visits.yaml").read_text())
        kept = {key: tree[key] for key in ("name", "data", "task", "split")}
        file = tmp_path / "declared.yaml"
        file.write_text(yaml.safe_dump(kept | {"model": MODELS[case]}, sort_keys=False))
    made, _ = bulkhead(tmp_path / "home", "run", str(file), *SMALL, **where)
    name = made["registered"]["name"]
    bulkhead(tmp_path / "home", "verify", f"models:/{name}/1")
    client = MlflowClient(*[f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}"] * 2)
    runs = len(client.search_runs([client.get_experiment_by_name(name).experiment_id]))
    found, _ = bulkhead(tmp_path / "home", "reproduce", f"models:/{name}/1", "--apply-diff")
    assert found["identical"] and [s["name"] for s in found["steps"]][-2:] == [
        "weights",
        "exported program",
    ]
    assert all("next to the checkout" in note for note in found["notes"]), (
        "the same machine and libraries"
    )
    assert all(step["found"] == step["recorded"] for step in found["steps"])
    assert len(client.search_runs([client.get_experiment_by_name(name).experiment_id])) == runs
    assert len(client.search_model_versions(f"name = '{name}'")) == 1
    assert left_behind(tmp_path / "home") == []


@pytest.mark.long
@pytest.mark.req("R3")
@pytest.mark.timeout(3000)
def test_a_stratified_split_is_made_again_from_the_ledger_as_it_was(tmp_path: Path) -> None:
    """Rows were appended and split since, so the ledger grew; then the source is restored."""
    growing = Growing(tmp_path)
    growing.grow()
    how = ["split={kind: stratified_group}", *SMALL]
    bulkhead(growing.home, "run", str(growing.file), *how)
    second = growing.grow()
    bulkhead(growing.home, "run", str(growing.file), *how)
    answer, said = bulkhead(growing.home, "reproduce", "models:/growing/1", "--apply-diff", code=1)
    assert (
        f"the source differs first; the data are not what they were: {second} (is new)" in said
        and not answer["identical"]
    )
    second.rename(tmp_path / "kept.parquet")
    assert bulkhead(growing.home, "reproduce", "models:/growing/1", "--apply-diff")[0]["identical"]
    second.write_bytes((tmp_path / "kept.parquet").read_bytes())
    assert bulkhead(growing.home, "reproduce", "models:/growing/2", "--apply-diff")[0]["identical"]
    changed = bytearray(second.read_bytes())
    changed[-20] ^= 1
    second.write_bytes(bytes(changed))
    _, said = bulkhead(growing.home, "reproduce", "models:/growing/2", code=1)
    assert f"{second}: cannot be read" in said or f"{second} (SHA-256 was" in said
    second.write_bytes((tmp_path / "kept.parquet").read_bytes())
    client = growing.client
    run_id = str(client.get_model_version("growing", "2").run_id)
    text = Path(client.download_artifacts(run_id, "config.yaml", str(tmp_path))).read_text()
    client.log_text(run_id, text.replace("epochs: 3", "epochs: 4"), "config.yaml")
    _, said = bulkhead(growing.home, "reproduce", "models:/growing/2", code=1)
    assert (
        "the declaration differs first; config.yaml of run" in said
        and "train.epochs is '4', was '3'" in said
    )
    assert left_behind(growing.home) == []
