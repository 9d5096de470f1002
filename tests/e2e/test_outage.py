"""A server that is away for a minute during training: the run completes, with every point of every
metric.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from schemas.home import server_login
from tasks.servers import (
    Program,
    answers,
    mlflow_server,
    prefect_server,
    stop,
    stop_worker,
    wait_until,
    worker,
)
from tests.e2e.operated import ROOT, Operated, until
from training.tracking.metric_lines import metric_batches

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
# if the training ends before the server is back, the run waits
AWAY_SECONDS, EPOCHS = (60, 120)


class Apart(Operated):
    """The programs of `bulkhead up`, each started and stopped on its own, as service files do."""

    def start(self) -> float:
        began = time.monotonic()
        logs = self.home / "logs"
        logs.mkdir(parents=True)
        login = server_login()  # of the home in the environment
        # there is no up.json, from which commands would read the password
        self.environment |= self.servers
        self.programs = {
            "prefect": prefect_server(self.prefect, login, logs / "prefect.log", {}),
            "mlflow": mlflow_server(self.mlflow, login, None, logs / "mlflow.log"),
        }
        for name in self.programs:
            self.begin(name)
        prepare = [
            sys.executable,
            "-c",
            "from tasks.bootstrap import prepare_server; prepare_server()",
        ]
        subprocess.run(prepare, check=True, cwd=ROOT, env=self.environment | self.servers)
        self.programs["worker"] = worker(
            "bulkhead",
            "worker",
            logs / "worker.log",
            {**self.servers, "PREFECT_CLIENT_MAX_RETRIES": "7"},
            ROOT,
        )
        self.programs["worker"].start()
        return time.monotonic() - began

    @property
    def servers(self) -> dict[str, str]:
        user, _, password = self.login.partition(":")
        known = {
            "PREFECT_API_AUTH_STRING": self.login,
            "MLFLOW_TRACKING_USERNAME": user,
            "MLFLOW_TRACKING_PASSWORD": password,
        }
        return {"PREFECT_API_URL": self.api, "MLFLOW_TRACKING_URI": self.tracking_uri, **known}

    def begin(self, name: str) -> None:
        """Start a server and wait until it answers."""
        program: Program = self.programs[name]
        program.start()
        url = f"{self.api}/health" if name == "prefect" else f"{self.tracking_uri}/health"
        wait_until(lambda: answers(url), program, url)

    def end(self) -> None:
        """Stop all of them."""
        stop_worker(self.programs["worker"])
        for name in ("mlflow", "prefect"):
            stop(self.programs[name])


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    found = Apart(tmp_path_factory.mktemp("outage"))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("PREFECT_API_URL", "PREFECT_TEST_MODE", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        for name, value in {
            **found.environment,
            "PREFECT_HOME": str(found.home / "prefect"),
        }.items():
            patch.setenv(name, value)
        found.environment["PREFECT_HOME"] = str(found.home / "prefect")
        found.make_rows(2500)
        found.start()
        stack.callback(found.end)
        found.bulkhead("deploy", "--name", "pipeline/manual")
        yield found


@pytest.mark.req("S3")
@pytest.mark.parametrize("away", [("mlflow",), ("prefect",), ("mlflow", "prefect")], ids="+".join)
def test_a_run_ends_complete_though_servers_were_killed_for_a_minute(
    apart: Apart, away: tuple[str, ...]
) -> None:
    before = len(apart.worker_log())
    flow_run = apart.pipeline(f"name={'-'.join(away)}", epochs=EPOCHS)
    until(lambda: f"epoch 3/{EPOCHS}" in apart.worker_log()[before:], 180, "the third epoch")
    for name in away:
        apart.programs[name].process.kill()  # type: ignore[union-attr]
        stop(apart.programs[name])
    time.sleep(AWAY_SECONDS)
    for name in away:
        apart.begin(name)
    assert apart.wait(flow_run, 600)[0] == "COMPLETED"
    record, tracked = apart.record(flow_run), apart.mlflow_run(flow_run)
    assert (
        record["status"] == "finished"
        and tracked.info.status == "FINISHED"
        and (record["run_dir"] / "report.html").is_file()
    )
    expected: dict[str, list[tuple[int, float]]] = {}
    for metrics, _ in metric_batches(Path(record["run_dir"]) / "metrics.jsonl", 0, 1000):
        for metric in metrics:
            expected.setdefault(metric.key, []).append((metric.step, metric.value))
    assert len(expected["val/auroc"]) == EPOCHS and len(expected["step/loss"]) >= EPOCHS
    for key, points in expected.items():
        found = [
            (m.step, m.value) for m in apart.client().get_metric_history(tracked.info.run_id, key)
        ]
        assert sorted(found) == sorted(points), key
    assert {"report.html", "evidence.json", "metrics.jsonl"} <= {
        item.path for item in apart.client().list_artifacts(tracked.info.run_id)
    }
