"""A promotion starts its consumers: event, deployment, worker, predictions; pyfunc and an endpoint
give the same numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from training.serving.serving import mlflow  # imports MLflow with its own warnings quieted

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
SMALL = [
    "train.epochs=3",
    "train.ranks=1",
    "evaluate.bootstrap=50",
    "evaluate.baselines=[constant]",
    "register.thresholds={}",
]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str], folder: Path = ROOT
) -> Iterator[None]:
    """Run a program in its own session, which ends with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


def wait_for(what: Callable[[], Any], seconds: float, log: Path) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := what():
                return found
        time.sleep(0.5)
    raise AssertionError(f"waited {seconds} s in vain:\n{log.read_text()[-4000:]}")


def request(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read()
    return json.loads(text or b"true")


class Place:
    """A Prefect server with a worker, a home, and the consumer's deployment from
    deployments/prefect.yaml.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.home, self.rows, self.scores = (
            folder,
            folder / "home",
            folder / "clinic.parquet",
            folder / "scores",
        )
        self.api = f"http://127.0.0.1:{port}/api"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "MLFLOW_"))
        }
        settings = {
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "true",
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }
        places = {
            # mlflow starts uvicorn by name
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "BULKHEAD_HOME": str(self.home),
            "BULKHEAD_CLINIC": str(self.rows),
            "BULKHEAD_DATA": str(folder),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.api,
        }
        self.environment = kept | settings | places | {"PYTHONPATH": str(ROOT)}

    def call(self, *command: str) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=ROOT,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout

    def bulkhead(self, *arguments: str) -> Any:
        return json.loads(self.call("python", "-m", "flows.cli", *arguments, "--json"))

    def deploy(self) -> None:
        """Deploy the entry `on-promotion` with this place's files; match, event and templates are
        unchanged.
        """
        content = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
        entry = next(d for d in content["deployments"] if d["name"] == "on-promotion")
        (trigger,) = entry["triggers"]
        for parameters in (entry["parameters"], trigger["parameters"]):
            parameters |= {
                "source": str(self.rows),
                "target": str(self.scores / Path(parameters["target"]).name),
            }
        pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
        file = self.folder / "prefect.yaml"
        file.write_text(
            yaml.safe_dump(
                {
                    "name": "bulkhead",
                    "prefect-version": content["prefect-version"],
                    "pull": pull,
                    "deployments": [entry],
                }
            )
        )
        self.call("prefect", "work-pool", "create", "bulkhead", "--type", "process")
        self.call("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made, log = Place(tmp_path, free_port()), tmp_path / "server.log"
    made.call("python", "examples/clinic_visits.py", str(made.rows), "--patients", "1200")
    with running(["prefect", "server", "start", "--host", "127.0.0.1"], log, made.environment):
        wait_for(lambda: request(f"{made.api}/health"), 120, log)
        made.deploy()
        with running(
            ["prefect", "worker", "start", "--pool", "bulkhead"],
            tmp_path / "worker.log",
            made.environment,
        ):
            yield made


def served(place: Place, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the answer of `mlflow models serve` for the champion."""
    port, log = free_port(), place.folder / "serve.log"
    command = [
        "mlflow",
        "models",
        "serve",
        "-m",
        "models:/clinic-visits@champion",
        "--env-manager",
        "local",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environment = place.environment | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{place.home / 'mlflow.db'}",
        "PYTHONPATH": "",
    }
    with running([*command, "--workers", "1"], log, environment, place.folder):
        wait_for(
            lambda: (
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).status == 200
            ),
            120,
            log,
        )
        body = json.loads(
            rows.to_json(orient="split", date_format="iso", index=False, double_precision=15)
        )
        return pd.DataFrame(
            request(f"http://127.0.0.1:{port}/invocations", {"dataframe_split": body})[
                "predictions"
            ]
        )


@pytest.mark.long
@pytest.mark.req("R4")
@pytest.mark.req("R2")
@pytest.mark.timeout(900)
def test_a_promotion_starts_the_consumer_with_the_new_champion(place: Place) -> None:
    made = place.bulkhead("run", "tests/clinic_visits.yaml", *SMALL)
    assert made["registered"]["uri"] == "models:/clinic-visits@champion"
    first = (
        wait_for(
            lambda: (place.scores / "clinic-visits-1.parquet").exists(),
            120,
            place.folder / "worker.log",
        )
        and place.scores / "clinic-visits-1.parquet"
    )
    waiting = place.bulkhead(
        "run",
        "tests/clinic_visits.yaml",
        *SMALL,
        "train.seed=7",
        "register.promotion=approval",
        "register.tolerance=0.5",
    )
    assert waiting["registered"]["uri"] == "models:/clinic-visits@challenger"
    time.sleep(10)
    assert [p.name for p in place.scores.iterdir()] == ["clinic-visits-1.parquet"], (
        "nothing is promoted before a person says so"
    )
    promoted = place.bulkhead("promote", "models:/clinic-visits@challenger")
    assert (promoted["version"], promoted["previous_version"]) == ("2", "1")
    second = place.scores / "clinic-visits-2.parquet"
    wait_for(second.exists, 120, place.folder / "worker.log")
    agree(place, first, second)


def agree(place: Place, first: Path, second: Path) -> None:
    """Check that the consumer's file, pyfunc and the endpoint give the new champion's numbers."""
    told = {key.decode(): value.decode() for key, value in pq.read_schema(second).metadata.items()}
    assert (told["bulkhead.name"], told["bulkhead.version"], told["bulkhead.uri"]) == (
        "clinic-visits",
        "2",
        "models:/clinic-visits/2",
    )
    rows, scored = pd.read_parquet(place.rows), pd.read_parquet(second)
    mlflow.set_tracking_uri(f"sqlite:///{place.home / 'mlflow.db'}")
    try:
        wanted = mlflow.pyfunc.load_model("models:/clinic-visits@champion").predict(rows)
    finally:
        mlflow.set_tracking_uri(None)
    columns = [c for c in wanted.columns if c.startswith("probability_")]
    assert len(columns) == 2 and len(scored) == len(rows) > 5000
    np.testing.assert_allclose(scored[columns], wanted[columns], rtol=0, atol=1e-6)
    assert (
        np.abs(pd.read_parquet(first)[columns].to_numpy() - wanted[columns].to_numpy()).max() > 1e-3
    ), "the version before gives other numbers"
    answered = served(place, rows.head(500))
    np.testing.assert_allclose(answered[columns], wanted[columns].head(500), rtol=0, atol=1e-6)
    assert answered["prediction"].tolist() == wanted["prediction"].head(500).tolist()
