"""A version that an earlier tree registered: its files, what the registry and its run said of it,
and what it predicted.

    python -m tests.golden.model_before FOLDER      # write it from a run of this tree; once, for all later trees

The tests put it into a registry of their own, where today's tree loads, scores and verifies it.
"""  # noqa: E501

from __future__ import annotations

import csv
import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.golden import whole_run
from tests.golden.pinned import bulkhead

STORED = Path(__file__).parent / "model-before"
NAME, ROWS = "golden", 12
OVERRIDES = ("model.kind=mlp", "model.hidden=[8]", "evaluate.baselines=[constant]")
# artifacts of its MLflow run that a verification reads
RUN_FILES = ("evidence.json", "config.yaml")


def tracking_uri(home: Path) -> str:
    """Address of the registry of a home."""
    return f"sqlite:///{home / 'mlflow.db'}"


def score(
    folder: Path, home: Path, rows: list[dict[str, str]], **variables: str
) -> list[dict[str, str]]:
    """Rows with their predictions, by the command.

    Raises:
        RuntimeError: it did not end with 0.
    """
    with (folder / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = bulkhead(
        "predict",
        f"models:/{NAME}/1",
        "in.csv",
        "out.csv",
        folder=folder,
        BULKHEAD_HOME=str(home),
        **variables,
    )
    if done.returncode:
        raise RuntimeError(f"bulkhead predict ended with {done.returncode}:\n{done.stderr[-3000:]}")
    with (folder / "out.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write(folder: Path) -> None:
    """Run a small mlp to a registered version and keep that in `STORED`."""
    from mlflow import MlflowClient

    whole_run.start(folder, *OVERRIDES)
    home = folder / "home"
    client = MlflowClient(tracking_uri(home), tracking_uri(home))
    version = client.get_model_version(NAME, "1")
    run = client.get_run(str(version.run_id))
    files = Path(client.get_model_version_download_uri(NAME, "1").removeprefix("file://"))
    STORED.mkdir(exist_ok=True)
    with zipfile.ZipFile(STORED / "version.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in files.rglob("*") if path.is_file()):
            archive.write(path, f"model/{path.relative_to(files)}")
        for name in RUN_FILES:
            archive.write(Path(run.info.artifact_uri.removeprefix("file://")) / name, f"run/{name}")
    with (folder / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:ROWS]
    scored = score(folder, home, rows)
    found = {
        "tags": dict(version.tags),
        "metrics": dict(run.data.metrics),
        "key": json.loads((files / "manifest.sig").read_text())["key"],
        "rows": rows,
        "predictions": [
            {name: float(row[name]) for name in row if name not in rows[0]} for row in scored
        ],
    }
    (STORED / "version.json").write_text(
        json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def stored() -> dict[str, Any]:
    """What was said of the version: tags, metrics of its run, public key of its signer, rows and
    predictions.
    """
    return dict(json.loads((STORED / "version.json").read_text(encoding="utf-8")))


def restore(home: Path) -> Path:
    """Register the stored version in the registry of a new home, with a run that says the same; the
    folder of its files.
    """
    from mlflow import MlflowClient

    home.mkdir(mode=0o700, parents=True)
    with zipfile.ZipFile(STORED / "version.zip") as archive:
        archive.extractall(home / "mlartifacts" / "before")
    files, told = home / "mlartifacts" / "before", stored()
    with patch.dict(os.environ, {"BULKHEAD_HOME": str(home)}):
        client = MlflowClient(tracking_uri(home), tracking_uri(home))
        experiment = client.create_experiment(NAME, artifact_location=str(home / "mlartifacts"))
        run = client.create_run(experiment).info.run_id
        for name, value in told["metrics"].items():
            client.log_metric(run, name, value)
        for name in RUN_FILES:
            client.log_artifact(run, str(files / "run" / name))
        client.set_terminated(run)
        client.create_registered_model(NAME)
        client.create_model_version(
            NAME, source=str(files / "model"), run_id=run, tags=told["tags"]
        )
    return files / "model"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
