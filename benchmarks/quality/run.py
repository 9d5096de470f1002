"""Fit every candidate on the same rows, and keep the predictions of each."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.environments import environment
from benchmarks.quality.candidates import Candidate
from benchmarks.quality.tables import QualityTable
from schemas.load import declare
from schemas.records import Prepared, RunSpec, TrainReport
from training.data.arrays.shards import load_arrays
from training.evaluation.baselines import baseline_predictions
from training.evaluation.evaluate import given_targets
from training.evaluation.row_ids import read_ids
from training.models.shape import FIRST_VALUE
from training.objectives.metrics import predict
from training.run.record import PREPARED, SPEC, read_part
from training.serving.reference_network import reference_network, reference_scores

WORKER = Path(__file__).resolve().parent / "workers" / "peer.py"
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("schemas", "tasks", "training")  # code of this project that its results depend on


@dataclass(frozen=True)
class Job:
    """One table, one seed: its folder in the cache, and its declaration."""

    table: QualityTable
    seed: int
    folder: Path
    tree: dict[str, Any]

    @property
    def declared(self) -> Path:
        """Return the declaration's file, written if it changed."""
        path, text = self.folder / "declaration.yaml", yaml.safe_dump(self.tree, sort_keys=False)
        if not path.exists() or path.read_text() != text:
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path


@dataclass(frozen=True)
class Rows:
    """What candidates are fitted on, and the targets that they are scored by."""

    spec: RunSpec
    target: np.ndarray
    group: np.ndarray | None


def job(table: QualityTable, seed: int, cache: Path, data: Path) -> Job:
    """Return the job of a table and a seed."""
    tree = table.declaration(cache / "tables", data, seed)
    return Job(table, seed, cache / table.name / str(seed), tree)


def prepared_rows(job: Job, cache: Path) -> Rows:
    """Prepare a job's rows by this project's own command, once."""
    declared = hashlib.sha256(job.declared.read_bytes()).hexdigest()[:10]
    kept = job.folder / f"prepared-{declared}.json"
    if not kept.exists():
        found = _bulkhead(cache, "prepare", str(job.declared))
        kept.write_text(json.dumps(found))
    prepared = Prepared.model_validate_json(kept.read_text())
    spec = RunSpec(
        run_id="quality",
        name="quality",
        declaration=job.tree,
        spec=prepared.validated.spec,
        statistics=prepared.statistics,
        arrays=prepared.arrays,
    )
    declaration, arrays = declare(job.tree), prepared.arrays.test
    ids = read_ids(arrays, prepared.statistics)
    label = load_arrays(arrays)["label"]
    group = None if ids["__group"].isna().all() else ids["__group"].to_numpy()
    return Rows(spec, given_targets(declaration, prepared.statistics, label, ids), group)


def predictions(
    candidate: Candidate, job: Job, rows: Rows, cache: Path
) -> tuple[np.ndarray, float] | str:
    """Return a candidate's test predictions and its seconds, or why there are none; kept on disk.

    Predictions are probabilities [N, C], or values [N] in the label's units.
    """
    path = job.folder / f"{_key(candidate)}.npz"
    if not path.exists():
        print(
            f"{job.table.name} {job.seed} {candidate.name} …", end=" ", file=sys.stderr, flush=True
        )
        started = time.monotonic()
        try:
            found, seconds = _fit(candidate, job, rows, cache)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print("failed", file=sys.stderr, flush=True)
            return str(getattr(error, "stderr", "") or error).strip()[-300:]
        np.savez(path, predictions=found, seconds=seconds)
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    kept = np.load(path)
    return kept["predictions"], float(kept["seconds"])


def _key(candidate: Candidate) -> str:
    """Return a name that changes with the candidate's settings, and ours with our code."""
    code = ""
    if candidate.overrides is not None or candidate.baseline:
        files = [f for name in SOURCES for f in sorted((ROOT / name).rglob("*.py"))]
        code = hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
    text = f"{candidate}{code}"
    name = "".join(c if c.isalnum() else "-" for c in candidate.name.lower())
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _fit(candidate: Candidate, job: Job, rows: Rows, cache: Path) -> tuple[np.ndarray, float]:
    if candidate.overrides is not None:
        return _ours(candidate, job, cache)
    if candidate.baseline:
        started = time.monotonic()
        declaration, spec = declare(job.tree), rows.spec
        found = baseline_predictions(declaration, spec.statistics, spec.arrays)
        return found[candidate.baseline], time.monotonic() - started
    return _library(candidate, job, rows, cache)


def _ours(candidate: Candidate, job: Job, cache: Path) -> tuple[np.ndarray, float]:
    """Train by `bulkhead train`, and score test rows with the weights that would be registered."""
    found = _bulkhead(cache, "train", str(job.declared), *(candidate.overrides or ()))
    trained = TrainReport.model_validate(found)
    run_dir = next((cache / "home" / "runs").glob(f"*/{trained.run_id}"))
    spec = read_part(run_dir, SPEC, RunSpec)
    network = reference_network(spec, trained.best_checkpoint.file)
    scores = reference_scores(network, read_part(run_dir, PREPARED, Prepared).arrays.test)
    return predict(declare(spec.declaration), spec.statistics, scores), trained.seconds


def _bulkhead(cache: Path, *command: str) -> dict[str, Any]:
    home = os.environ | {"BULKHEAD_HOME": str(cache / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *command, "--json"],
        env=home,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-600:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _library(candidate: Candidate, job: Job, rows: Rows, cache: Path) -> tuple[np.ndarray, float]:
    folder = cache / "environments" / candidate.packages[0]
    # torch and scikit-learn are those of this environment
    python = environment(folder, candidate.packages, on_top=True)
    given, out = job.folder / "rows.npz", job.folder / "out.npz"
    _write_rows(given, rows.spec)
    words = (candidate.library, str(given), str(out), str(candidate.trials), str(job.seed))
    subprocess.run([str(python), str(WORKER), *words], check=True, capture_output=True, text=True)
    made = np.load(out)
    found, statistics = made["predictions"], rows.spec.statistics
    if not statistics.classes:
        found = found * statistics.target_scale + statistics.target_center
    else:  # a float32 softmax does not add up to 1
        found = found / found.sum(axis=1, keepdims=True)
    return found, float(made["seconds"])


def _write_rows(path: Path, spec: RunSpec) -> None:
    """Write the arrays as the worker reads them."""
    statistics = spec.statistics
    out: dict[str, Any] = {}
    for side in ("train", "val", "test"):
        arrays = load_arrays(spec.arrays.side(side))
        count = len(arrays["label"])
        out[f"numeric_{side}"] = arrays.get("numeric", np.zeros((count, 0), np.float32))
        out[f"categorical_{side}"] = arrays.get("categorical", np.zeros((count, 0), np.int64))
        if side != "test":
            out[f"label_{side}"] = arrays["label"]
    codes = [FIRST_VALUE + len(column.values) for column in statistics.categorical]
    task = "classes" if statistics.classes else "regression"
    np.savez(path, codes=codes, task=task, classes=len(statistics.classes), **out)


def scored_groups(rows: Rows) -> np.ndarray | None:
    """Return the groups to resample, None where rows are their own."""
    return None if rows.group is None or pd.isna(rows.group).all() else rows.group


def run(
    candidates: Sequence[Candidate], jobs: Sequence[Job], cache: Path
) -> dict[tuple[str, int, str], tuple[np.ndarray, float] | str]:
    """Return predictions and seconds by table, seed and candidate."""
    found = {}
    for one in jobs:
        rows = prepared_rows(one, cache)
        for candidate in candidates:
            key = (one.table.name, one.seed, candidate.name)
            found[key] = predictions(candidate, one, rows, cache)
    return found
