"""Services of compose.yaml as plain processes: their own command lines, variables and health
checks, on PostgreSQL.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.e2e.operated import ROOT, Operated, free_port, until
from tests.e2e.postgres import PASSWORD, postgres, program
from tests.e2e.test_intruders import request

COMPOSE = ROOT / "deployments" / "compose"
PROGRAMS = {
    "bulkhead": ["-m", "flows.cli"],
    "prefect": ["-m", "prefect"],
    "mlflow": ["-m", "mlflow"],
    "python": [],
}
FILLED = {
    "POSTGRES_PASSWORD": PASSWORD,
    "PREFECT_AUTH": "ann:api-w0rd",
    "MLFLOW_PASSWORD": "mlflow-w0rd",
    "GIT_SHA": "",
}  # .env, and the build argument that compose leaves unchanged

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def image_variables() -> dict[str, str]:
    """Return what the Dockerfile sets for every container."""
    text = (COMPOSE / "Dockerfile").read_text().replace("\\\n", " ")
    return dict(re.findall(r"(\w+)=(\S*)", " ".join(re.findall(r"^ENV (.+)$", text, re.MULTILINE))))


class Containers(Operated):
    """The services of compose.yaml on this machine, with other hosts, ports and folders."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder)
        self.worker_port = free_port()
        split = urlsplit(database)
        self.exchanged = {
            "://bulkhead:" + PASSWORD + "@postgres:5432/bulkhead": f"://{split.netloc}{split.path}",
            "prefect:4200": f"127.0.0.1:{self.prefect}",
            "127.0.0.1:4200": f"127.0.0.1:{self.prefect}",
            "mlflow:5000": f"127.0.0.1:{self.mlflow}",
            "localhost:5000": f"localhost:{self.mlflow}",
            "127.0.0.1:5000": f"127.0.0.1:{self.mlflow}",
            "127.0.0.1:8080": f"127.0.0.1:{self.worker_port}",
            "0.0.0.0": "127.0.0.1",
            "/var/lib/bulkhead": str(self.home),
            "/data": str(folder),
        }
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(
            (COMPOSE / "compose.yaml").read_text()
        )["services"]
        own = ("BULKHEAD_", "PREFECT_", "MLFLOW_")
        self.bare = {
            name: value for name, value in os.environ.items() if not name.startswith(own)
        } | {"PYTHONPATH": str(ROOT)}

    @property
    def login(self) -> str:
        return FILLED["PREFECT_AUTH"]

    def worker_log(self) -> str:
        return (self.folder / "worker.log").read_text(errors="replace")

    def here(self, text: str) -> str:
        """Return a value of compose.yaml for this machine, with variables filled in as compose
        does.
        """
        text = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: FILLED[found[1]], text)
        for there, ours in self.exchanged.items():
            text = text.replace(there, ours)
        return str(self.mlflow) if text == "5000" else text

    def command(self, words: list[str]) -> list[str]:
        first, *rest = words
        return [sys.executable, *PROGRAMS[first], *map(self.here, rest)]

    def variables(self, name: str) -> dict[str, str]:
        """Return the environment of a service: from the image, its own, and the two ports that no
        file sets.
        """
        set_for_all = {key: self.here(value) for key, value in image_variables().items()}
        set_for_it = {
            key: self.here(str(value)) for key, value in self.services[name]["environment"].items()
        }
        ports = {
            "PREFECT_SERVER_API_PORT": str(self.prefect),
            "PREFECT_WORKER_WEBSERVER_PORT": str(self.worker_port),
        }
        return self.bare | set_for_all | set_for_it | ports

    def healthy(self, name: str) -> bool:
        """Return the result of the service's own health check."""
        kind, *words = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return (
            subprocess.run(
                self.command(words), env=self.variables(name), capture_output=True, check=False
            ).returncode
            == 0
        )

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run a service from its start, through its health, to its end by SIGTERM."""
        assert not self.healthy(name), f"{name}: something else answers"
        path = self.folder / f"{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                self.command(self.services[name]["command"]),
                cwd=ROOT,
                env=self.variables(name),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            until(
                lambda: self.healthy(name) or process.poll() is not None, 180, f"{name} is healthy"
            )
            assert process.poll() is None, path.read_text()
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.req("P4", "C7")
def test_the_services_of_compose_start_stay_healthy_and_run_a_flow(tmp_path: Path) -> None:
    with postgres() as database:
        subprocess.run(
            [
                program("psql"),
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-f",
                str(COMPOSE / "schemas.sql"),
                database,
            ],
            check=True,
            capture_output=True,
        )
        containers = Containers(tmp_path, database)
        containers.home.mkdir(mode=0o700)
        with containers.running("prefect"), containers.running("mlflow"):
            assert (
                request(f"{containers.api}/flows/count", {})[0] == 401
                and request(f"{containers.tracking_uri}/")[0] == 401
            )
            registered = subprocess.run(
                containers.command(containers.services["deploy"]["command"]),
                cwd=ROOT,
                env=containers.variables("deploy"),
                capture_output=True,
                text=True,
                check=False,
            )
            assert registered.returncode == 0 and "pipeline/manual" in registered.stdout, (
                registered.stdout + registered.stderr
            )
            containers.make_rows(400)
            (tmp_path / "clinic.parquet").rename(tmp_path / "clinic_visits.parquet")
            with containers.running("worker"):
                assert containers.wait(containers.pipeline("train.epochs=2"))[0] == "COMPLETED", (
                    containers.worker_log()[-3000:]
                )
            token = base64.b64encode(f"bulkhead:{FILLED['MLFLOW_PASSWORD']}".encode()).decode()
            mlflow, login = f"{containers.tracking_uri}/api/2.0/mlflow", f"Basic {token}"
            code, answer = request(
                f"{mlflow}/experiments/search", {"max_results": 10}, Authorization=login
            )
            experiments = [found["experiment_id"] for found in json.loads(answer)["experiments"]]
            code, answer = request(
                f"{mlflow}/runs/search", {"experiment_ids": experiments}, Authorization=login
            )
            assert code == 200 and [
                found["info"]["status"] for found in json.loads(answer)["runs"]
            ] == ["FINISHED"], answer
            assert list((containers.home / "mlartifacts").iterdir())
