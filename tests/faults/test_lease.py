"""One writer for each run directory, known by name; a superseded one never writes again."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from schemas.errors import LeaseError
from tests.faults.saved_runs import IDENTITY, parts
from tests.training.runs import keep_torch_settings, make_run
from training.checkpoint.checkpoint import Checkpoints
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer, train
from training.launch.stop_signal import StopSignal
from training.run.lease import LEASE, Lease, one_writer
from training.run.metrics_file import Journal
from training.run.record import RESULT


def never() -> bool:
    return False


def supersede(run_dir: Path) -> None:
    """Write what another machine would write on a file system without locks."""
    record = {
        "generation": 99,
        "token": "other",
        "host": "node7",
        "pid": 1,
        "since": "2026-01-01 00:00:00",
    }
    (run_dir / LEASE).write_text(json.dumps(record))


@pytest.mark.req("C7")
def test_a_second_writer_waits_and_is_refused_with_the_name_of_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.take(never)
    with pytest.raises(
        LeaseError,
        match=(
            rf"process {os.getpid()} on {socket.gethostname()} \(since 20.* UTC\) is still writing"
            r" .* wait for it or end it"
        ),
    ):
        second.take(never, wait_seconds=0.3)
    assert f"waiting up to 0 s for process {os.getpid()}" in caplog.text
    first.check()
    with pytest.raises(LeaseError, match="writes no more"):
        second.check()
    first.release()
    second.take(never, wait_seconds=0)
    second.check()
    assert json.loads((tmp_path / LEASE).read_text())["generation"] == 2
    with pytest.raises(LeaseError, match="writes no more"):
        first.check()
    second.release()


@pytest.mark.req("C7")
def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    first = Lease(tmp_path)
    first.take(never)
    with pytest.raises(LeaseError, match="is still writing"):
        Lease(tmp_path).take(lambda: True)
    first.release()


@pytest.mark.req("C7")
@pytest.mark.parametrize("content", ["", '{"generation": 4', "[1]", '{"generation": "x"}'])
def test_a_lease_that_was_cut_off_is_taken_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / LEASE).write_text(content)
    lease = Lease(tmp_path)
    lease.take(never)
    lease.check()
    assert json.loads((tmp_path / LEASE).read_text())["generation"] == 1
    lease.release()


@pytest.mark.req("C7")
def test_a_removed_lease_is_a_lost_one(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    first.take(never)
    (tmp_path / LEASE).unlink()
    second.take(never, wait_seconds=0)
    second.check()
    with pytest.raises(LeaseError, match=f"taken over by process {os.getpid()}"):
        first.check()
    first.release()
    second.check()
    second.release()


@pytest.mark.req("C7")
def test_a_superseded_writer_changes_nothing(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    lease.take(never)
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, {}, 2, told.append, lease.check)
    journal = Journal(tmp_path / "metrics.jsonl", lease.check)
    checkpoints.save(10, 0, parts(10))
    journal.values("step", {"lr": 1.0})
    supersede(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for attempt in (
        lambda: checkpoints.save(20, 0, parts(20)),
        lambda: checkpoints.save_sharded(20, 0, {}, {}, Parallel()),
        lambda: checkpoints.save_best(20, {}),
        lambda: checkpoints.prune(0),
        checkpoints.newest,
        lambda: journal.event("still here"),
        lambda: journal.rewind(0, 0),
    ):
        with pytest.raises(
            LeaseError, match=r"taken over by process 1 on node7 \(since 2026-01-01 00:00:00 UTC\)"
        ):
            attempt()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    lease.release()


@pytest.mark.req("C7")
def test_a_run_that_was_superseded_in_the_middle_stops_before_its_next_commit(
    tmp_path: Path,
) -> None:
    spec, run_dir = (
        make_run(tmp_path, train={"epochs": 2, "batch_size": 16, "log_every": 100}),
        tmp_path / "run",
    )
    with keep_torch_settings(), one_writer(run_dir, Parallel(), never) as lease:
        trainer = Trainer(spec, run_dir, Parallel(), StopSignal(), lease.check)
        for _ in range(3):
            trainer._train_one_step()
        supersede(run_dir)
        with pytest.raises(LeaseError, match="writes no more"):
            trainer.run()
    assert not list((run_dir / "checkpoints").glob("*")) and not (run_dir / RESULT).exists()


@pytest.mark.req("C7")
def test_a_run_is_not_started_beside_another(tmp_path: Path) -> None:
    spec, stop, lease = make_run(tmp_path), StopSignal(), Lease(tmp_path / "run")
    lease.take(never)
    stop.requested = True
    with pytest.raises(LeaseError, match="is still writing to this run directory"):
        train(spec, tmp_path / "run", Parallel(), stop)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LEASE]
    lease.release()
