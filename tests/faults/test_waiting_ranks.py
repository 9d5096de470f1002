"""Stops, kills and refusals of `bulkhead run` while its ranks wait for their inputs: no process is
left, the exit code is that of any other moment, and the run has no trace of ranks that never began.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from schemas.errors import DataError
from schemas.load import declare
from tasks.early import early_ranks, ending_early_ranks, start_ranks
from tests.faults.launches import processes_of
from tests.faults.test_stop_command import (
    BUSY_SECONDS,
    SHORT,
    Command,
    clinic,
    process,
    require_stopped,
    running,
)
from tests.training.runs import make_run

__all__ = ["clinic"]  # a fixture
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
RANKS = 2  # of SMALL
ASLEEP_SECONDS = 0.5
WILD = ["optimizer={kind: sgd, lr: 1.0e+30}", "train.clip=none", "schedule.kind=constant"]


def ranks_of(command: Command) -> list[int]:
    return [
        pid
        for pid, text in command.family().items()
        if "training.main" in text and "training.agent" not in text
    ]


def sleeps(pid: int) -> bool:
    """Return True for a rank that has loaded torch and waits: it sleeps, and needs no core."""
    folder, deadline = Path(f"/proc/{pid}"), time.monotonic() + ASLEEP_SECONDS
    if "libtorch_python" not in (folder / "maps").read_text():
        return False
    while time.monotonic() < deadline:
        if (folder / "stat").read_text().rpartition(")")[2].split()[0] != "S":
            return False
        time.sleep(0.02)
    return True


def wait(command: Command) -> bool:
    """Return True if all ranks of the command wait."""
    found = ranks_of(command)
    return len(found) == RANKS and all(map(sleeps, found))


@contextmanager
def held_back(command: Command) -> Iterator[None]:
    """Halt the command until its ranks wait, run the block, then let it go on."""
    command.wait_for(process("training.agent"))
    command.process.send_signal(signal.SIGSTOP)
    try:
        command.wait_for(wait)
        assert "✓ preflight" not in command.output(), "they were started early"
        yield
    finally:
        command.process.send_signal(signal.SIGCONT)  # nothing where it has ended


def require_no_trace(command: Command) -> None:
    """Check that no process and no file of ranks that never began is left."""
    run_dir = command.run_dir()
    assert run_dir is not None and not command.family()
    names = {path.name for path in run_dir.iterdir()}
    assert not {"begin", "train.log", "metrics.jsonl", "checkpoints"} & names
    assert not list(run_dir.glob("error*.json"))


@pytest.mark.long
@pytest.mark.req("C6")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_while_ranks_wait_ends_the_command_and_them(
    tmp_path: Path, clinic: Path, number: signal.Signals
) -> None:
    with running(tmp_path, clinic, *SHORT) as command:
        with held_back(command):
            command.send(number)
        require_stopped(command, number, command.end())
        require_no_trace(command)


@pytest.mark.long
@pytest.mark.req("C7")
def test_no_waiting_rank_outlives_a_killed_command(tmp_path: Path, clinic: Path) -> None:
    with running(tmp_path, clinic, *SHORT) as command:
        with held_back(command):
            command.process.kill()
            seconds = command.end()
        assert seconds < BUSY_SECONDS and not command.family()
        assert command.process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def leaking(clinic: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the clinic's table with a column that gives the label away."""
    frame = pd.read_parquet(clinic)
    noise = np.random.default_rng(0).normal(size=len(frame))
    path = tmp_path_factory.mktemp("leaking") / "clinic.parquet"
    frame.assign(billed=frame["admitted_30d"] + noise / 100).to_parquet(path)
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "overrides"), [("LeakageError", []), ("PreflightError", WILD)], ids=["leak", "rates"]
)
def test_a_refusal_ends_the_ranks_that_wait(
    tmp_path: Path, clinic: Path, leaking: Path, error: str, overrides: list[str]
) -> None:
    table = clinic if overrides else leaking
    with running(tmp_path, table, *SHORT, *overrides) as command:
        with held_back(command):
            pass
        command.process.wait(BUSY_SECONDS * 10)
        assert command.process.returncode == 1, command.output()[-3000:]
        assert error in command.output() and "Traceback" not in command.output()
        assert command.end() < BUSY_SECONDS
        require_no_trace(command)


def started_in(folder: Path, **sections: Any) -> tuple[Any, Any]:
    """Return what ranks are started from early: the part of a run and of its typed table."""
    declaration = declare(make_run(folder, **sections).declaration)
    validated = SimpleNamespace(table=SimpleNamespace(file=SimpleNamespace(num_bytes=1)))
    return SimpleNamespace(declaration=declaration, run_dir=folder / "early"), validated


def require_started(folder: Path) -> None:
    """Check that there is a process: a moment after its start it has its command line."""
    deadline = time.monotonic() + BUSY_SECONDS
    while not processes_of(folder):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_refused_flow_ends_its_ranks_before_the_process_goes_on(tmp_path: Path) -> None:
    run, validated = started_in(tmp_path)
    with pytest.raises(DataError), early_ranks(run) as begin:
        begin(validated)
        require_started(tmp_path)
        raise DataError("refused")
    assert not processes_of(tmp_path) and not (run.run_dir / "train.log").exists()


def test_ranks_of_a_next_member_that_is_not_trained_are_ended_with_the_members(
    tmp_path: Path,
) -> None:
    """A resumed run has no block of its own around them."""
    run, validated = started_in(tmp_path, ensemble={"members": 2})
    with pytest.raises(DataError), ending_early_ranks():
        start_ranks(run, validated, 2)
        require_started(tmp_path)
        raise DataError("the first member failed")
    assert not processes_of(tmp_path)
