"""P4: runs of one model take turns if a worker started them, or if one may register a version."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks import turns
from tasks.turns import turn

ROOT = Path(__file__).resolve().parent.parent.parent
HOLD = (
    "import sys, time\nfrom tasks.turns import turn\nwith turn(sys.argv[1], True):\n    print('has"
    " it', flush=True)\n    time.sleep(60)"
)


@pytest.fixture
def other(own_home: Path) -> subprocess.Popen[str]:
    """Run another process at work on the model `visits`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BULKHEAD_HOME": str(own_home)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "visits"], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "has it\n"
    return process


@pytest.mark.req("P4")
@pytest.mark.parametrize("by_worker", [True, False])
def test_a_flow_run_and_one_that_registers_wait_until_the_other_is_gone_even_by_a_kill(
    other: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    by_worker: bool,
) -> None:
    if by_worker:
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "a worker's")
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            other.kill()
            other.wait()

    monkeypatch.setattr(turns.time, "sleep", look)
    with turn("visits", registers=not by_worker):
        assert looks == 3 and other.poll() is not None
    assert (
        capsys.readouterr().err.count(
            f"another run of visits is at work (process {other.pid}); this one waits"
        )
        == 1
    )


@pytest.mark.req("P4")
def test_a_person_whose_run_registers_nothing_is_told_and_another_model_is_not_waited_for(
    other: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with turn("something-else", registers=True):
        assert capsys.readouterr().err == ""
    with turn("visits", registers=False):
        assert (
            f"another run of visits is at work (process {other.pid}); both go on"
            in capsys.readouterr().err.replace("\n", " ")
        )
    assert time.monotonic() - began < 30
    other.kill()
    other.wait()
