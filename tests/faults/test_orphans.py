"""Runs whose launcher or agent was killed: no process remains, and a restart is the only writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.distributed.launch import ROOT, environment
from tests.faults.final_state import final_state, unsound
from tests.faults.launches import LIMIT_SECONDS, LOOK_SECONDS, launch, processes_of
from tests.faults.trials import ROWS, SETUPS, Reference
from tests.training.runs import make_run
from training.launch.stop_signal import children
from training.run.lease import LEASE

pytestmark = pytest.mark.long
HUNG = (  # rank 1 never returns from a forward pass, and rank 0 waits for its gradient
    "sleep:1:train:40"
)
CASES = {
    "launcher, ranks hang": ("launcher", HUNG),
    "agent, ranks hang": ("agent", HUNG),
    "agent, ranks train": ("agent", ""),
}
RELAUNCHED = "agent, ranks train"


@dataclass(frozen=True)
class Outcome:
    """`seconds` until the last old process ended; `code` and log of the launch made at once."""

    seconds: float
    run_dir: Path
    code: int = 0
    log: str = ""


def seen(log: Path, words: bytes) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while words not in (log.read_bytes() if log.exists() else b"") and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def disturb(folder: Path, victim: str, hold: str) -> Outcome:
    """Kill the launcher or the agent of a run in training and watch the old processes; if they do
    not hang, start another run at once.
    """
    make_run(folder, rows=ROWS, **SETUPS["exact"])
    log = folder / "first.log"
    first = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.launcher", str(folder), str(log)],
        env=environment(BULKHEAD_TEST_HOLD=hold or ":::0"),
        cwd=ROOT,
        start_new_session=True,
    )
    seen(log, b"holding sleep" if hold else b"epoch 1/3")
    agent = children(first.pid)[0]
    old = {first.pid, *processes_of(folder)}
    assert len(old) == 4, "launcher, agent and two ranks"
    os.kill(first.pid if victim == "launcher" else agent, signal.SIGKILL)
    killed = time.monotonic()
    first.wait()
    with ThreadPoolExecutor(1) as pool:
        again = None if hold else pool.submit(launch, folder, folder / "second.log", 2)
        while old & set(processes_of(folder)) and time.monotonic() < killed + LIMIT_SECONDS:
            time.sleep(LOOK_SECONDS)
        outcome = Outcome(time.monotonic() - killed, folder / "run")
        return (
            replace(outcome, code=again.result().code, log=(folder / "second.log").read_text())
            if again
            else outcome
        )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("orphans")
    with ThreadPoolExecutor(len(CASES)) as pool:
        running = {
            name: pool.submit(disturb, folder / str(number), *case)
            for number, (name, case) in enumerate(CASES.items())
        }
        return {name: one.result() for name, one in running.items()}


@pytest.mark.req("C7")
@pytest.mark.parametrize("case", CASES)
def test_no_process_of_the_run_is_left_after_ten_seconds(
    case: str, outcomes: dict[str, Outcome]
) -> None:
    outcome = outcomes[case]
    assert outcome.seconds < 10.0
    assert outcome.seconds > 5.0 or case == RELAUNCHED, "they had their time to save"
    assert unsound(outcome.run_dir) == []


@pytest.mark.req("C7")
def test_a_relaunch_at_once_is_the_only_writer_and_ends_the_run(
    outcomes: dict[str, Outcome], undisturbed: Reference
) -> None:
    outcome = outcomes[RELAUNCHED]
    assert outcome.code == 0, outcome.log[-3000:]
    assert final_state(outcome.run_dir) == undisturbed.state
    events = [
        json.loads(line) for line in (outcome.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    assert [event["step"] for event in events if event["kind"] == "evaluation"] == [
        7,
        14,
        21,
        28,
        30,
    ], "each once"
    assert json.loads((outcome.run_dir / LEASE).read_text())["generation"] == 2
