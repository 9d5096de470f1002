"""A real `bulkhead up` with deployments in its own home, and a person's actions: trigger, wait,
cancel, look.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = [
    "train.ranks=2",
    "model.kind=mlp",
    "evaluate.bootstrap=60",
    "checks.min_rows=20",
    "register.thresholds={}",
    "train.patience=1000",
]
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
POLL_SECONDS = 0.05


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(ready: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until `ready` returns a true value and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


class Operated:
    """One `bulkhead up`; its files remain after a stop, and `start` continues with them."""

    def __init__(self, folder: Path, *options: str, settings: dict[str, str] | None = None) -> None:
        self.folder, self.home, self.options = folder, folder / "home", options
        self.prefect, self.mlflow = free_port(), free_port()
        self.api, self.tracking_uri = (
            f"http://127.0.0.1:{self.prefect}/api",
            f"http://127.0.0.1:{self.mlflow}",
        )
        self.output = folder / "up.log"
        ours = {
            "BULKHEAD_HOME": str(self.home),
            "BULKHEAD_CLINIC": str(folder / "clinic.parquet"),
            "BULKHEAD_DATA": str(folder),
            "PYTHONPATH": str(ROOT),
            **(settings or {}),
        }
        foreign = (
            "PREFECT_API_AUTH_STRING",
            "PREFECT_SERVER_API_AUTH_STRING",
            "MLFLOW_TRACKING_USERNAME",
            "MLFLOW_TRACKING_PASSWORD",
            "PREFECT_API_URL",
            "PREFECT_HOME",
            "MLFLOW_TRACKING_URI",
            "PREFECT_TEST_MODE",
            "BULKHEAD_FAMILY",
        )
        self.environment = {
            name: value for name, value in (os.environ | ours).items() if name not in foreign
        }
        self.process: subprocess.Popen[bytes] | None = None

    # servers

    def start(self) -> float:
        """Start and return the seconds until everything was ready."""
        began = time.monotonic()
        with self.output.open("wb") as output:
            command = [
                sys.executable,
                "-m",
                "flows.cli",
                "up",
                "--prefect-port",
                str(self.prefect),
                "--mlflow-port",
                str(self.mlflow),
                *self.options,
            ]
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        process = self.process
        until(
            lambda: "Ctrl-C" in self.output.read_text() or process.poll() is not None,
            180,
            "bulkhead up is ready",
        )
        assert process.poll() is None, self.output.read_text()
        return time.monotonic() - began

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(90)

    @property
    def login(self) -> str:
        """Return `user:password` of the servers."""
        return (self.home / "keys" / "servers").read_text().strip()

    def log_in(self, page: Any) -> None:
        """Open the addresses that `up` printed, as a person does."""
        for address in re.findall(r"(http://\S+/login#\S+)", self.output.read_text()):
            page.open(address)
            page.until(
                "location.pathname !== '/login' && document.readyState === 'complete'",
                "the page behind the login",
            )

    def bulkhead(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command against these servers."""
        settings = {
            "PREFECT_API_URL": self.api,
            "PREFECT_HOME": str(self.home / "prefect"),
            "MLFLOW_TRACKING_URI": self.tracking_uri,
        }
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            capture_output=True,
            text=True,
            env=self.environment | settings,
            cwd=ROOT,
            timeout=280,
            check=False,
        )
        assert done.returncode == code, (
            f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        )
        return done

    def make_rows(self, patients: int) -> None:
        """Write the rows of the default example."""
        generator = [
            sys.executable,
            str(ROOT / "examples" / "clinic_visits.py"),
            str(self.folder / "clinic.parquet"),
            "--patients",
            str(patients),
        ]
        subprocess.run(generator, check=True, capture_output=True)

    # Prefect

    def call(self, path: str, body: Any = None) -> Any:
        """Send one request to Prefect's API; retry while it is busy (503: its SQLite file is
        locked), as Prefect's own client does.
        """
        data = None if body is None else json.dumps(body).encode()
        token = base64.b64encode(self.login.encode()).decode()
        request = urllib.request.Request(
            f"{self.api}{path}",
            data,
            {"Content-Type": "application/json", "Authorization": f"Basic {token}"},
        )
        for _ in range(20):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                time.sleep(1)
        raise AssertionError(f"{path}: the server stays busy")

    def trigger(self, deployment: str, **parameters: Any) -> str:
        """Trigger a flow run now; return its id."""
        found = self.call(f"/deployments/name/{deployment}")
        return str(
            self.call(
                f"/deployments/{found['id']}/create_flow_run",
                {"parameters": parameters, "state": {"type": "SCHEDULED"}},
            )["id"]
        )

    def pipeline(self, *overrides: str, epochs: int = 3, name: str = "small") -> str:
        """Trigger a small run of the default example."""
        values = [*SMALL, f"name={name}", *overrides]
        return self.trigger(
            "pipeline/manual",
            config_path="tests/clinic_visits.yaml",
            epochs=epochs,
            overrides=values,
        )

    def state(self, flow_run: str) -> tuple[str, str]:
        """Return type and message of a flow run's state."""
        state = self.call(f"/flow_runs/{flow_run}")["state"]
        return state["type"], state["message"] or ""

    def wait(self, flow_run: str, seconds: float = 240) -> tuple[str, str]:
        """Wait for the end of a flow run; return its final state."""
        until(
            lambda: self.state(flow_run)[0] in FINAL,
            seconds,
            f"end of flow run {flow_run}; worker: {self.worker_log()[-3000:]}",
        )
        return self.state(flow_run)

    def cancel(self, flow_run: str) -> None:
        """Cancel a flow run, as the button of the UI does."""
        self.call(
            f"/flow_runs/{flow_run}/set_state",
            {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False},
        )

    def worker_log(self) -> str:
        """Return the log of the worker."""
        path = self.home / "logs" / "worker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # runs

    def run_dir(self, flow_run: str) -> Path | None:
        """Return the directory of the run that a flow run started or resumed."""
        for path in self.home.glob("runs/*/*/run.json"):
            if flow_run in json.loads(path.read_text())["flow_run_ids"]:
                return path.parent
        return None

    def record(self, flow_run: str) -> dict[str, Any]:
        """Return `run.json` of a run."""
        folder = until(
            lambda: self.run_dir(flow_run),
            120,
            f"run of {flow_run}; worker: {self.worker_log()[-3000:]}",
        )
        return dict(json.loads((folder / "run.json").read_text()), run_dir=folder)

    def mlflow_run(self, flow_run: str) -> Any:
        """Return the MLflow run of a run."""
        return self.client().get_run(self.record(flow_run)["mlflow_run_id"])

    def client(self) -> Any:
        """Return an MLflow client of these servers."""
        from mlflow import MlflowClient

        os.environ["MLFLOW_TRACKING_USERNAME"], _, os.environ["MLFLOW_TRACKING_PASSWORD"] = (
            self.login.partition(":")
        )
        return MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri)

    def processes(self, *words: str) -> dict[int, str]:
        """Return the processes of this home with one of the words in their command line."""
        mine, found = f"BULKHEAD_HOME={self.home}".encode(), {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if mine in (path / "environ").read_bytes().split(b"\0") and any(
                    word in command for word in words
                ):
                    found[int(path.name)] = command
            except OSError:
                continue
        return found

    def at_work(self) -> dict[int, str]:
        """Return the processes of flow runs and their training."""
        return self.processes("prefect.engine", "training.agent", "training.main")
