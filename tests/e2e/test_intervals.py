"""Intervals from the declaration to the registered model and the scored file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DECLARATION = """
name: bounds
data: {{uri: rows.parquet, columns: {{row: id, who: group, y: label, "*": numeric}}}}
task: {task}
split: {{kind: group}}
model: {{kind: mlp, hidden: [8]}}
train: {{epochs: 4, batch_size: 32, ranks: 1, threads: 1}}
evaluate: {{bootstrap: 20, baselines: [constant], intervals: 0.8}}
checks: {{min_rows: 20}}
register: {{require_skill: false}}
"""
pytestmark = [
    pytest.mark.long,
    pytest.mark.req("R1"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
]


@pytest.mark.parametrize("kind", ["regression", "multiclass"])
def test_intervals_are_served_as_they_were_measured(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    y = np.exp(x[:, 0] + 0.5 * rng.normal(size=900))
    frame = pd.DataFrame(x, columns=list("abc")).assign(
        row=[f"r{i}" for i in range(900)],
        who=[f"g{g}" for g in rng.integers(0, 200, 900)],
        y=y if kind == "regression" else np.digitize(y, [0.6, 1.6]),
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    task = "{kind: regression, transform: log}" if kind == "regression" else "{kind: multiclass}"
    (tmp_path / "bounds.yaml").write_text(DECLARATION.format(task=task))
    variables = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_"))}
    variables |= {"BULKHEAD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}

    def bulkhead(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *words],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    if kind == "multiclass":  # intervals that are declared later are those of a new version
        assert "promoted" in bulkhead("run", "bounds.yaml", "evaluate.intervals=null")
    shown = bulkhead("run", "bounds.yaml")
    assert "(80% declared)" in shown and "outcome       promoted" in shown
    folder = sorted(tmp_path.glob("home/runs/bounds/*"))[-1]
    assert "Intervals" in (folder / "report.html").read_text()
    bulkhead("verify", "models:/bounds@champion")
    bulkhead("predict", "models:/bounds@champion", "rows.parquet", "out.parquet", "--intervals")
    found = pd.read_parquet(tmp_path / "out.parquet")
    if kind == "regression":
        inside = found["y"].between(found["prediction_low"], found["prediction_high"])
    else:
        sets = found[[f"possible_{c}" for c in range(3)]].to_numpy()
        inside = pd.Series(sets[np.arange(900), found["y"]])
    record = json.loads((folder / "evaluation/test/evaluation.json").read_text())
    ids = pd.read_parquet(record["predictions"]["path"])["__id"]
    on_test = found["row"].isin(ids)
    seen = inside[on_test].groupby(found["who"][on_test]).mean().mean()
    assert record["coverage"][0]["seen"] == pytest.approx(seen, abs=1e-9)
    assert 0.65 < seen < 0.95
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}")
    model = mlflow.pyfunc.load_model("models:/bounds@champion")
    own = model.predict(frame[["a", "b", "c"]], params={"intervals": True})
    added = [c for c in own.columns if c.endswith(("_low", "_high")) or c.startswith("possible_")]
    pd.testing.assert_frame_equal(own[added], found[added], check_dtype=False)
    assert not set(added) & set(model.predict(frame[["a", "b", "c"]]).columns)
