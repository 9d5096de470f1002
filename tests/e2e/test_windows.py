"""A model of series through the command line: refitted, registered, verified, and held against
rows that came since; and the engines of C-MAPSS, where their table is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.e2e.test_pipeline import ROOT, bulkhead
from tests.training.windows.tables import series

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
DATA = ROOT.parent / "shared" / "data" / "cmapss_fd001.parquet"
DECLARATION: dict[str, Any] = {
    "name": "wear",
    "data": {
        "uri": "rows.parquet",
        "columns": {
            "row": "id",
            "unit": "group",
            "at": "time",
            "y": "label",
            "x": "numeric",
            "z": "ignore",
        },
        "windows": {
            "past": {
                "columns": ["x", "z"],
                "look_back": 5,
                "encoder": {"kind": "gru", "width": 8, "size": 8},
            }
        },
    },
    "task": {"kind": "binary"},
    "split": {"kind": "group"},
    "model": {"kind": "mlp", "hidden": [16]},
    "optimizer": {"kind": "adamw", "lr": 0.02},
    "train": {"epochs": 3, "batch_size": 64, "threads": 1, "refit": "train_val"},
    "evaluate": {"bootstrap": 60, "baselines": ["constant"]},
    "checks": {"min_rows": 20},
    "register": {"thresholds": {}},
}


def write_rows(folder: Path, units: int, seeds: tuple[int, ...]) -> None:
    """Write series of so many units for each seed, under names of their own."""
    parts = [series(units=units, rows=25, seed=seed) for seed in seeds]
    for seed, part in zip(seeds, parts, strict=True):
        part["unit"], part["row"] = f"s{seed}" + part["unit"], f"s{seed}" + part["row"]
    pd.concat(parts, ignore_index=True).to_parquet(folder / "rows.parquet", index=False)


def test_series_are_refitted_registered_verified_and_evaluated_again(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "wear.yaml"
    file.write_text(yaml.safe_dump(DECLARATION))
    write_rows(tmp_path, 40, (1,))
    made = json.loads(bulkhead(home, "run", str(file), "--json").stdout)
    assert made["registered"]["registered"]
    found = json.loads((Path(made["run_dir"]) / "evidence.json").read_bytes())
    sides = found["split"]["sides"]
    assert found["refit"]["num_rows"] == sides["train"]["rows"] + sides["val"]["rows"]
    named = {check["name"]: check["verdict"] for check in found["checks"]}
    assert named["windows"] == named["duplicates"] == named["label_conflicts"] == "pass"
    told = bulkhead(home, "verify", "models:/wear@champion").stdout
    assert "✓ refit" in told and "✗" not in told

    write_rows(tmp_path, 40, (1, 2))
    again = json.loads(bulkhead(home, "reevaluate", str(file), "--json").stdout)
    assert again["rows"] == len(series(units=40, rows=25, seed=2)), again


@pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA}")
def test_the_example_of_engines_trains_on_windows(tmp_path: Path) -> None:
    options = ["train.epochs=2", "evaluate.bootstrap=60", "evaluate.baselines=[constant]"]
    example = "examples/cmapss_windows.yaml"
    found = json.loads(bulkhead(tmp_path / "home", "run", example, *options, "--json").stdout)
    predicted = pd.read_parquet(Path(found["run_dir"]) / "evaluation/test/predictions.parquet")
    error = np.sqrt(np.mean((predicted["prediction"] - predicted["label"]) ** 2))
    assert len(predicted) == 13_096 and error < 18  # 12.6 after 20 epochs, 41 for a constant
