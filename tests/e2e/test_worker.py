"""`bulkhead worker` with servers elsewhere: starts flow runs, is healthy, ends killed runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.operated import ROOT, Operated, until
from tests.e2e.test_intruders import request

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.req("P4", "C7")
def test_a_worker_alone_runs_what_is_asked_for_and_ends_what_was_killed(tmp_path: Path) -> None:
    operated = Operated(tmp_path, "--no-worker")
    operated.make_rows(400)
    # as ExecStartPost of systemd does: before the servers answer, and before the home has a
    # password
    early = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "deploy", "--wait", "180"],
        cwd=ROOT,
        env=operated.environment | {"PREFECT_API_URL": operated.api},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    operated.start()
    output, _ = early.communicate(timeout=180)
    assert early.returncode == 0 and b"pipeline/manual" in output, output.decode()
    settings = {
        "PREFECT_API_URL": operated.api,
        "MLFLOW_TRACKING_URI": operated.tracking_uri,
        "PREFECT_WORKER_WEBSERVER_PORT": "18080",
    }
    try:
        with (tmp_path / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "worker"],
                cwd=ROOT,
                env=operated.environment | settings,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            until(
                lambda: (
                    "work pool" in (tmp_path / "worker.log").read_text()
                    or worker.poll() is not None
                ),
                120,
                "the worker is at work",
            )
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()
            assert request("http://127.0.0.1:18080/health")[0] == 200
            assert (
                operated.wait(operated.pipeline("train.epochs=2", name="small"))[0] == "COMPLETED"
            ), operated.worker_log()[-3000:]
            killed = operated.pipeline("train.epochs=2000", name="other")
            until(
                lambda: operated.at_work() and operated.record(killed)["status"] == "running",
                120,
                "a run at work",
            )
            until(lambda: "epoch 2/2000" in operated.worker_log(), 240, "training")
            for process in operated.at_work():
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            until(
                lambda: operated.record(killed)["status"] == "killed",
                120,
                "the killed run is ended in its record",
            )
            until(lambda: operated.mlflow_run(killed).info.status == "KILLED", 60, "and in MLflow")
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(90) in (0, 130, 143)
        time.sleep(0.5)
        assert not operated.processes("prefect worker")
    finally:
        operated.stop()
