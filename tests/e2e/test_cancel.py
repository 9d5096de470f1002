"""A run cancelled in any phase, through the API that the button of the UI calls, saves, ends
everywhere, and resumes to the same bytes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.operated import Operated, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
GONE_SECONDS = 30


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Start `bulkhead up` with deployments over small data."""
    found = Operated(tmp_path_factory.mktemp("cancel"))
    found.make_rows(1200)
    found.start()
    try:
        found.bulkhead("deploy", "--name", "pipeline/manual", "--name", "resume/manual")
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def undisturbed(operated: Operated) -> str:
    """Return the SHA-256 of the weights of a run that nobody cancelled."""
    flow_run = operated.pipeline(epochs=8)
    assert operated.wait(flow_run)[0] == "COMPLETED"
    return model_sha256(operated, flow_run)


def model_sha256(operated: Operated, flow_run: str) -> str:
    return str(
        json.loads((operated.record(flow_run)["run_dir"] / "result.json").read_text())[
            "model_sha256"
        ]
    )


def started(operated: Operated, line: str, *overrides: str) -> str:
    """Start a run and wait until it prints a line."""
    before = len(operated.worker_log())
    flow_run = operated.pipeline(*overrides, epochs=8)
    until(
        lambda: line in operated.worker_log()[before:],
        300,
        f"{line!r} in the worker's log:\n{operated.worker_log()[before:]}",
    )
    return flow_run


def resumed(operated: Operated, flow_run: str) -> str:
    """Resume a run to its end by its id, as a person does; return the flow run."""
    again = operated.trigger("resume/manual", run=operated.record(flow_run)["run_id"])
    assert operated.wait(again)[0] == "COMPLETED"
    return again


PHASES = {
    "prepare": ("✓ source", "✓ arrays"),
    "preflight": ("✓ poison", "✓ preflight"),
    "train": ("epoch 1/8", "✓ best"),
    "evaluate": ("✓ best", "✓ export"),
    "register": ("✓ gate", "✓ report"),
}
# repeat the phase: nothing prepared, no champion with these bytes
OWN = {"prepare": ["checks.min_rows=21"], "register": ["name=registered"]}


@pytest.mark.req("P4")
@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_run_is_gone_within_30_s_and_resumed_to_the_same_bytes(
    operated: Operated, undisturbed: str, phase: str
) -> None:
    begun, ended = PHASES[phase]
    before = len(operated.worker_log())
    flow_run = started(operated, begun, "evaluate.bootstrap=1000", *OWN.get(phase, ()))
    asked = time.monotonic()
    operated.cancel(flow_run)
    until(
        lambda: not operated.at_work(),
        GONE_SECONDS,
        f"no process of the run is left: {operated.at_work()}",
    )
    assert time.monotonic() - asked < GONE_SECONDS
    assert operated.wait(flow_run)[0] == "CANCELLED"
    assert ended not in operated.worker_log()[before:], f"the run had left {phase} already"
    record, tracked = operated.record(flow_run), operated.mlflow_run(flow_run)
    assert record["status"] == tracked.info.status.lower() == "killed"
    assert "bulkhead resume" in tracked.data.tags["mlflow.note.content"]
    if phase == "train":
        assert list((record["run_dir"] / "checkpoints").glob("step-*"))
    again = resumed(operated, flow_run)
    assert model_sha256(operated, again) == undisturbed
    assert operated.record(again)["flow_run_ids"] == [flow_run, again]
    assert (
        operated.record(again)["status"]
        == operated.mlflow_run(again).info.status.lower()
        == "finished"
    )
    assert (record["run_dir"] / "report.html").is_file()
    if phase == "register":
        assert (
            operated.client().get_model_version_by_alias("registered", "champion").run_id
            == record["mlflow_run_id"]
        )


@pytest.mark.req("C7")
def test_a_killed_flow_process_is_crashed_everywhere_and_resumable(
    operated: Operated, undisturbed: str
) -> None:
    flow_run = started(operated, "epoch 2/8")
    for pid in operated.processes("prefect.engine"):
        os.kill(pid, signal.SIGKILL)
    assert operated.wait(flow_run, 60)[0] == "CRASHED"
    until(lambda: operated.record(flow_run)["status"] == "killed", 60, "run.json says killed")
    assert operated.mlflow_run(flow_run).info.status == "KILLED"
    until(lambda: not operated.at_work(), GONE_SECONDS, f"no process is left: {operated.at_work()}")
    assert model_sha256(operated, resumed(operated, flow_run)) == undisturbed


@pytest.mark.req("C7")
def test_a_killed_worker_takes_its_run_along_with_a_checkpoint_and_comes_back(
    operated: Operated, undisturbed: str
) -> None:
    flow_run = started(operated, "epoch 2/8")
    (worker,) = operated.processes("prefect worker start")
    os.kill(worker, signal.SIGKILL)
    assert operated.wait(flow_run, 60)[0] == "CRASHED"
    record = operated.record(flow_run)
    assert record["status"] == operated.mlflow_run(flow_run).info.status.lower() == "killed"
    assert list(Path(record["run_dir"], "checkpoints").glob("step-*"))
    # by the worker that `up` restarted
    assert model_sha256(operated, resumed(operated, flow_run)) == undisturbed


@pytest.mark.req("C7")
def test_what_was_at_work_when_everything_was_killed_is_ended_at_the_next_start(
    operated: Operated, undisturbed: str
) -> None:
    flow_run = started(operated, "epoch 2/8")
    for pid in [operated.process.pid, *operated.processes("")]:  # type: ignore[union-attr]
        os.kill(pid, signal.SIGKILL)
    operated.process.wait()  # type: ignore[union-attr]
    run_dir = operated.run_dir(flow_run)
    assert (
        run_dir is not None
        and json.loads((run_dir / "run.json").read_text())["status"] == "running"
    )
    operated.start()
    assert operated.state(flow_run)[0] == "CRASHED" and "was killed" in operated.output.read_text()
    assert (
        operated.record(flow_run)["status"]
        == operated.mlflow_run(flow_run).info.status.lower()
        == "killed"
    )
    assert model_sha256(operated, resumed(operated, flow_run)) == undisturbed
