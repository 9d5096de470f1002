"""The benchmark of quality: its tables, its comparison, and the program of the other libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.quality.candidates import CANDIDATES, QUICK
from benchmarks.quality.page import Score, normalised, standing
from benchmarks.quality.run import WORKER, Job, Rows, job
from benchmarks.quality.tables import QUICK as QUICK_TABLES
from benchmarks.quality.tables import TABLES, QualityTable
from schemas.load import declare


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_tables_have_a_declaration_that_fits_their_columns(
    table: QualityTable, real_data: Path, tmp_path: Path
) -> None:
    tree = table.declaration(tmp_path, real_data, 1)
    declaration = declare(tree)
    names = pq.read_schema(declaration.data.uri).names
    declared = [name for name in declaration.data.columns if "*" not in name]
    assert set(declared) <= set(names)
    assert table.hashed == ("seed" in tree["split"])


def test_the_quick_form_names_tables_and_candidates_that_exist() -> None:
    assert set(QUICK_TABLES) <= {table.name for table in TABLES}
    assert {"constant", *QUICK} <= {candidate.name for candidate in CANDIDATES} | {"constant"}
    assert len({candidate.name for candidate in CANDIDATES}) == len(CANDIDATES)


def _job(tmp_path: Path, name: str) -> Job:
    return job(next(t for t in TABLES if t.name == name), 0, tmp_path, tmp_path)


def test_standing_follows_the_direction_of_the_metric(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=400)
    good, bad = truth + 0.1 * rng.normal(size=400), truth + rng.normal(size=400)
    one = _job(tmp_path, "visits")  # RMSE: smaller is better
    rows = Rows(None, truth, None)  # type: ignore[arg-type]
    found = {("visits", 0, n): (p, 1.0) for n, p in (("good", good), ("bad", bad), ("same", good))}
    assert standing(one, rows, found, "good", "bad") == 1
    assert standing(one, rows, found, "bad", "good") == -1
    assert standing(one, rows, found, "good", "same") == 0
    found[("visits", 0, "bad")] = "it failed"
    with pytest.raises(ValueError, match="bad has no predictions"):
        standing(one, rows, found, "good", "bad")


def test_normalised_scores_of_an_error_run_from_constant_to_best() -> None:
    values = {"constant": 2.0, "a": 1.0, "b": 1.5, "worse": 3.0}
    scores = {name: Score(v, None, None, None, 0.0) for name, v in values.items()}
    assert normalised(scores, greater=False) == {"constant": 0, "a": 1, "b": 0.5, "worse": 0}


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_the_worker_predicts_test_rows_from_train_rows(task: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = {}
    for side in ("train", "val", "test"):
        x = rng.normal(size=(200, 3)).astype(np.float32)
        label = x[:, 0] + (x[:, 1] > 0)
        rows[f"numeric_{side}"], rows[f"categorical_{side}"] = x, (x[:, 2:] > 0).astype(int) + 2
        rows[f"label_{side}"] = (label > 0.5).astype(int) if task == "classes" else label
    truth = rows.pop("label_test")
    given, out = tmp_path / "rows.npz", tmp_path / "out.npz"
    np.savez(given, codes=[4], task=task, classes=2, **rows)
    command = [sys.executable, str(WORKER), "forest", str(given), str(out), "0", "0"]
    subprocess.run(command, check=True, cwd=tmp_path)
    found = np.load(out)["predictions"]
    error = (
        np.mean(found.argmax(1) != truth) if task == "classes" else np.mean((found - truth) ** 2)
    )
    assert error < 0.1
