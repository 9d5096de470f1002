"""Prefect's and MLflow's own servers over the files of this home, on loopback, until interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from schemas.errors import LaunchError
from schemas.home import home
from training.tracking import default_tracking_uri

START_SECONDS = 120.0


def serve_uis(prefect_port: int, mlflow_port: int) -> None:
    """Start both servers, say where they are, and stop them when interrupted.

    Raises:
        LaunchError: a server ended or did not answer in time.
    """
    logs = home() / "logs"
    logs.mkdir(exist_ok=True)
    addresses = {"Prefect": f"http://127.0.0.1:{prefect_port}", "MLflow": f"http://127.0.0.1:{mlflow_port}"}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        running["Prefect"] = _start(["prefect", "server", "start", "--host", "127.0.0.1"], logs / "prefect.log", {"PREFECT_SERVER_API_PORT": str(prefect_port)})
        store = default_tracking_uri(None)
        mlflow = [
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(mlflow_port),
            "--backend-store-uri",
            store,
            "--artifacts-destination",
            str(home() / "mlartifacts"),
        ]
        running["MLflow"] = _start(mlflow, logs / "mlflow.log", {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
        for name, path in (("Prefect", "/api/health"), ("MLflow", "/health")):
            _wait(name, running[name], addresses[name] + path, logs)
            print(f"✓ {name:<8} {addresses[name]}", flush=True)
        print("  Ctrl-C stops both", flush=True)
        while all(p.poll() is None for p in running.values()):
            time.sleep(0.5)
        raise LaunchError(f"a server ended by itself; see {logs}")
    except KeyboardInterrupt:
        return
    finally:
        for process in running.values():
            _stop(process)


def _start(command: list[str], log: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    program = str(Path(sys.executable).parent / command[0])
    with log.open("ab") as output:
        return subprocess.Popen(
            [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | settings, start_new_session=True
        )


def _wait(name: str, process: subprocess.Popen[bytes], url: str, logs: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - always http on loopback
                return
        except OSError:
            time.sleep(0.3)
    raise LaunchError(f"{name} did not answer at {url} within {START_SECONDS:.0f} s; is the port taken? see {logs}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
