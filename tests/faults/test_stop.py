"""SIGTERM and SIGINT in every phase: a quick end, no applied step lost, and the resumed run has the
same bits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import ROOT, environment
from tests.faults.final_state import final_state
from tests.faults.launches import LIMIT_SECONDS, LOOK_SECONDS, launch, start
from tests.faults.stop_work import PHASES
from tests.faults.trials import ROWS, SETUPS, Reference
from tests.subset import some
from tests.training.runs import make_run
from training.launch.stop_signal import StopSignal, children

GRACE_SECONDS = 15.0


@pytest.fixture(scope="module")
def stopped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What came of a stop in each phase that a chosen test asks for."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    phases = {c.params["phase"] for c in calls if c.params.get("phase") in PHASES}
    command = [
        sys.executable,
        "-m",
        "tests.faults.stop_work",
        str(tmp_path_factory.mktemp("stopped")),
        *sorted(phases),
    ]
    done = subprocess.run(
        command,
        env=environment(OMP_NUM_THREADS="1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.req("C6")
@pytest.mark.parametrize("phase", some(PHASES, 3))
def test_a_stop_in_any_phase_loses_no_step_and_the_run_goes_on_to_the_same_bits(
    stopped: dict[str, Any], phase: str
) -> None:
    found = stopped[phase]
    assert found["halted"], "the signal came in that phase"
    starting = phase.startswith("start")
    assert found["status"] in (
        ("died of SIGTERM", "died of SIGINT")
        if starting
        else ("finished",)
        if phase.startswith("finish")
        else ("interrupted",)
    ), found
    assert found["seconds"] < GRACE_SECONDS
    assert found["saved"] == found["applied"] and (found["saved"] > 0 or starting), (
        "zero applied steps lost"
    )
    assert found["ended"] == "finished" and found["same"]


@pytest.mark.req("C6")
@pytest.mark.parametrize("phase", some(["scoring", "evaluation.begun", "evaluation.measuring"], 3))
def test_an_evaluation_is_broken_off_and_made_again(stopped: dict[str, Any], phase: str) -> None:
    assert stopped[phase]["evaluated"] < stopped[phase]["saved"] == 5


def test_work_that_may_be_abandoned_ends_at_the_signal() -> None:
    before, stop = signal.getsignal(signal.SIGTERM), StopSignal().install()
    try:
        assert stop.unless_stopped(lambda: 3) == 3 and not stop.requested

        def work() -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
            return 4

        begun = time.monotonic()
        assert stop.unless_stopped(work) is None and time.monotonic() - begun < 5
        assert stop.requested and stop.reason == "SIGTERM"
        assert stop.unless_stopped(lambda: 5) is None, "not begun any more"
        os.kill(os.getpid(), signal.SIGTERM)  # outside of such work a second signal is only noted
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_ranks(folder: Path, hold: str) -> tuple[float, str, int]:
    """Halt one of two ranks, stop the agent as the launcher does, and end the run.

    Return the seconds of the stop, its report, and the code of the second launch.
    """
    make_run(folder, rows=ROWS, **SETUPS["exact"])
    agent = start(folder, folder / "first.log", 2, BULKHEAD_TEST_HOLD=hold)
    deadline = time.monotonic() + LIMIT_SECONDS
    while (
        b"holding STOP" not in (folder / "first.log").read_bytes()
        and agent.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(LOOK_SECONDS)
    ranks = children(agent.pid)
    agent.terminate()
    begun = time.monotonic()
    time.sleep(0.5)  # the agent forwards it to ranks of which one is halted
    for rank in ranks:
        os.kill(rank, signal.SIGCONT)
    agent.wait(LIMIT_SECONDS)
    seconds, report = time.monotonic() - begun, (folder / "run" / "result.json").read_text()
    return seconds, report, launch(folder, folder / "second.log", 2).code


@pytest.mark.long
@pytest.mark.req("C6")
def test_ranks_under_the_agent_agree_on_where_to_stop(
    tmp_path: Path, undisturbed: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    seconds, report, code = stop_ranks(tmp_path, "STOP:1:eval:2")
    assert seconds < GRACE_SECONDS
    assert json.loads(report)["status"] == "interrupted" and json.loads(report)["steps"] == 7, (
        "the first evaluation"
    )
    assert code == 0 and final_state(tmp_path / "run") == undisturbed.state
    # a cache that torch has for each user
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert not left, "neither the stopped launch nor the one that ended leaves anything"
