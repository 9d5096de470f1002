"""One small `bulkhead run` from a CSV to a registered version, and what is recorded of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.golden.pinned import bulkhead
from tests.golden.runs import uniform, weights_sha256

ROWS = 400
DECLARATION = {
    "name": "golden",
    "data": {
        "uri": "rows.csv",
        "derive": {"ratio": "a / (b + 5)"},
        "columns": {
            "id": "id",
            "ward": "categorical",
            "seen": "numeric",
            "y": "label",
            "*": "feature",
        },
    },
    "task": {"kind": "binary"},
    "split": {"kind": "random", "fractions": {"train": 0.6, "val": 0.2, "test": 0.2}},
    "model": {"kind": "linear"},
    "optimizer": {"kind": "adamw", "lr": 0.05},
    "train": {"epochs": 4, "batch_size": 40, "threads": 1, "device": "cpu", "log_every": 2},
    "evaluate": {"bootstrap": 40},
    "checks": {"min_rows": 20},
    "register": {"thresholds": {}},
}


def write_rows(path: Path) -> None:
    """Write the table: two numbers, one of them with nulls, a ward, and a label that follows from
    them.
    """
    draws = uniform(77, ROWS, 5)
    a, b, seen = (
        np.round(draws[:, 0] * 8 - 4, 3),
        np.round(draws[:, 1] * 4, 3),
        np.round(draws[:, 2] * 10, 2),
    )
    ward = (draws[:, 3] * 3).astype(int)
    y = (a + 2 * (ward == 1) - b + 2 * draws[:, 4] > -1).astype(int)
    lines = [
        f"{i},{a[i]},{b[i]},{'' if draws[i, 2] < 0.1 else seen[i]},{'xyz'[ward[i]]},{y[i]}"
        for i in range(ROWS)
    ]
    path.write_text("\n".join(["id,a,b,seen,ward,y", *lines]) + "\n")


def start(folder: Path, *overrides: str, command: str = "run", **extra: str) -> dict[str, Any]:
    """Run the command over the table in a folder, with its home in `home`; what it printed as JSON.

    Raises:
        RuntimeError: it ended otherwise than with 0; with the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rows.csv")
    (folder / "run.yaml").write_text(yaml.safe_dump(DECLARATION, sort_keys=False))
    home = {"BULKHEAD_HOME": str(folder / "home"), "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true"}
    done = bulkhead(command, "run.yaml", *overrides, "--json", folder=folder, **home, **extra)
    if done.returncode:
        raise RuntimeError(
            f"bulkhead {command} ended with"
            f" {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return dict(json.loads(done.stdout))


# their keys depend on the machine and the checkout
OPEN = ("provenance.git", "provenance.hardware", "provenance.versions")
DIGESTS = (
    "source_sha256",
    "validated_sha256",
    "statistics_sha256",
    "arrays_sha256",
    "model_sha256",
)


def keys(value: Any, place: str = "") -> set[str]:
    """Dotted paths of all keys; `[]` stands for the entries of a list."""
    if place in OPEN or not isinstance(value, dict | list) or not value:
        return {place}
    if isinstance(value, list):
        return set().union(*(keys(entry, f"{place}[]") for entry in value))
    return set().union(
        *(keys(entry, f"{place}.{name}".lstrip(".")) for name, entry in value.items())
    )


def recorded(summary: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of a finished run: keys of its records, digests of data and weights,
    verdicts and metrics.
    """
    run_dir = Path(summary["run_dir"])
    evidence, checklist = (
        json.loads((run_dir / f"{name}.json").read_text()) for name in ("evidence", "checklist")
    )
    result = json.loads((run_dir / "result.json").read_text())
    return {
        "keys of evidence.json": sorted(keys(evidence)),
        "keys of checklist.json": sorted(keys(checklist)),
        "keys of the summary": sorted(summary),
        "files of the run": sorted(
            path.name for path in run_dir.iterdir() if not path.name.startswith(".")
        ),
        "checks": {check["name"]: check["verdict"] for check in evidence["checks"]},
        "checklist": {item["id"]: item["standing"] for item in checklist["items"]},
        "metrics": {name: interval["value"] for name, interval in evidence["metrics"].items()},
        "digests": (
            {name: evidence[name] for name in DIGESTS}
            | {side: told["sha256"] for side, told in evidence["split"]["sides"].items()}
        ),
        "rows": {side: told["rows"] for side, told in evidence["split"]["sides"].items()},
        "best weights": weights_sha256(Path(result["best_checkpoint"]["path"])),
        "outcome": summary["outcome"],
    }


def run(folder: Path) -> dict[str, Any]:
    """Run the command in a folder; what is recorded of the run."""
    return recorded(start(folder))
