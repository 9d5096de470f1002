"""Seconds of a warm `bulkhead run` around its training, next to scripts that do less of the job.

Called by `benchmarks.startup`, each command in its own process, in turns. Everything that can be
reused was made by a first run, which is not counted. The scripts are `benchmarks.warm_peers`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.made_up import write_table
from benchmarks.peers import peers
from benchmarks.warm_peers import BATCH, EPOCHS, HIDDEN
from schemas.home import home

ROWS = 10_000
RUN, AUDIT = "a warm bulkhead run", "bulkhead audit of 20,000 rows x 35 columns"
HAND, LIGHTNING = "a script by hand with MLflow", "a script with Lightning and MLflow"
AUDIT_ROWS = 20_000
ROOT = Path(__file__).resolve().parent.parent


class Job(NamedTuple):
    """A command, its folder and environment, and the file with the seconds of its training."""

    words: list[str]
    folder: Path
    environment: dict[str, str]
    seconds: str

    def training(self) -> float:
        """Return the seconds of training in the last call; 0 where nothing is trained."""
        found = sorted(self.folder.glob(self.seconds)) if self.seconds else []
        if not found:
            return 0.0
        text = max(found, key=lambda path: path.stat().st_mtime).read_text()
        return float(json.loads(text)["seconds"] if text.startswith("{") else text)


def jobs(folder: Path) -> dict[str, Job]:
    """Return the commands by their name in the table; the first run is made here."""
    table = write_table(folder / "table.parquet", ROWS)
    large = write_table(folder / "large.parquet", AUDIT_ROWS)
    variables = os.environ | {"BULKHEAD_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    ours = [sys.executable, "-m", "flows.cli"]
    run = [*ours, "run", str(_declared(folder / "run.yaml", table))]
    found = {RUN: Job(run, folder, variables, "home/runs/*/*/result.json")}
    audit = [*ours, "audit", str(_declared(folder / "audit.yaml", large)), "split.seed="]
    found[AUDIT] = Job(audit, folder, variables, "")
    for way, name, python in (
        ("bare", HAND, Path(sys.executable)),
        ("lightning", LIGHTNING, _lightning()),
    ):
        if python is None:
            continue
        out = folder / way
        out.mkdir()
        words = [str(python), "-m", "benchmarks.warm_peers", way, str(table), str(out)]
        found[name] = Job(words, out, variables, "seconds")
    subprocess.run(run, cwd=folder, env=variables, capture_output=True, check=True)
    return found


def turn(job: Job, number: int) -> list[str]:
    """Return the words of a turn: each audit has another split, so that nothing is reused."""
    return [f"{w}{number}" if w == "split.seed=" else w for w in job.words]


def _lightning() -> Path | None:
    try:
        return peers(home() / "bench-training")
    except RuntimeError as error:
        print(f"no Lightning here: {error}", file=sys.stderr)
        return None


def _declared(path: Path, table: Path) -> Path:
    declaration = {
        "name": path.stem,
        "data": {
            "uri": str(table),
            "columns": {"row": "id", "y": "label", "c*": "categorical", "*": "feature"},
        },
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
        "model": {"kind": "mlp", "hidden": [HIDDEN, HIDDEN]},
        "train": {"epochs": EPOCHS, "batch_size": BATCH, "ranks": 1},
        "register": {"thresholds": {}},
    }
    path.write_text(yaml.safe_dump(declaration, sort_keys=False))
    return path
