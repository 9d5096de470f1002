"""Runs of killed processes are ended everywhere, and no other run is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Running
from prefect.testing.utilities import prefect_test_harness

from tasks.context import RunContext, tracked
from tasks.reconcile import end_orphans, reconcile
from tests.training.mlflow_home import blank_database, declaration, uri
from training.run.record import RECORD, StartedRun, held, read

__all__ = ["blank_database", "uri"]


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


@flow
def work() -> None:
    """A flow run to mark."""


def flow_run_at_work() -> UUID:
    """Return a flow run that Prefect shows as running, as a killed process leaves it."""
    with get_client(sync_client=True) as client:
        made = client.create_flow_run(work)
        client.set_flow_run_state(made.id, Running(), force=True)
        return made.id


def killed_run(flow_run_id: UUID | None = None) -> RunContext:
    """Return a run as `kill -9` leaves it: running in its record and in MLflow, its lock free."""
    with tracked(declaration(), "train") as run:  # type: ignore[arg-type]
        record = read(run.run_dir)
    ids = (str(flow_run_id),) if flow_run_id else ()
    record.model_copy(update={"status": "running", "flow_run_ids": ids}).write(run.run_dir)
    run.tracker.client.update_run(run.tracker.run_id, status="RUNNING")
    return run


def status(run: RunContext) -> tuple[str, str]:
    return read(run.run_dir).status, run.tracker.client.get_run(run.tracker.run_id).info.status


@pytest.mark.long
@pytest.mark.req("C7")
def test_a_killed_run_is_ended_in_its_record_in_mlflow_and_in_prefect(
    server: None, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flow_run = flow_run_at_work()
    lost, working = killed_run(flow_run), killed_run()
    (lost.run_dir / "metrics.jsonl").write_text(
        '{"kind": "evaluation", "step": 4, "epoch": 1, "time": 2.5, "values": {"val/loss": 0.5}}\n'
    )
    with held(working.run_dir):
        assert end_orphans()
        assert status(working) == ("running", "RUNNING")
    assert status(lost) == ("killed", "KILLED")
    tags = lost.tracker.client.get_run(lost.tracker.run_id).data.tags
    assert (
        "was killed" in tags["bulkhead.error"]
        and f"bulkhead resume {lost.run_id}" in tags["mlflow.note.content"]
    )
    assert [
        m.value for m in lost.tracker.client.get_metric_history(lost.tracker.run_id, "val/loss")
    ] == [0.5]
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run).state
    assert state is not None and state.is_crashed() and "killed" in str(state.message)
    assert f"{lost.run_id} was killed" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.req("C7")
def test_a_run_without_a_record_is_ended_only_where_it_is_ours(
    server: None, uri: str, tmp_path: Path
) -> None:
    ours, other, working = killed_run(), killed_run(), killed_run()
    (ours.run_dir / RECORD).unlink()
    (other.run_dir / RECORD).unlink()
    other.tracker.set_tags({"bulkhead.run_dir": str(tmp_path / "another home" / "run")})
    fold = working.run_dir / "folds" / "1"
    fold.mkdir(parents=True)
    working.tracker.set_tags({"bulkhead.run_dir": str(fold)})
    with held(working.run_dir):
        reconcile(uri)
        found = [
            run.tracker.client.get_run(run.tracker.run_id).info.status
            for run in (ours, other, working)
        ]
    assert found == ["KILLED", "RUNNING", "RUNNING"]


@pytest.mark.long
@pytest.mark.req("S3")
def test_where_the_tracking_server_is_away_the_run_is_found_again(
    server: None, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = killed_run()
    record: StartedRun = read(run.run_dir)
    record.model_copy(update={"tracking_uri": "http://127.0.0.1:9"}).write(run.run_dir)
    assert not end_orphans()
    assert (
        read(run.run_dir).status == "running"
        and "MLflow at http://127.0.0.1:9 could not be used" in capsys.readouterr().err
    )
    record.write(run.run_dir)
    assert end_orphans() and status(run) == ("killed", "KILLED")
