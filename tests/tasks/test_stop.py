"""Stops within a query of the engine, where an exception is lost, and in code that does not end;
each program here is a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tasks.stop import listening

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 60.0  # each would run forever
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

QUERY = """
    from training.data.engine.engine import connect
    connection = connect()
    print("ready", flush=True)
    connection.execute("select max(a.range * b.range) from range(10000000) a, range(10000000) b").fetchall()
"""  # noqa: E501
LOST = """
    import gc, time
    def callback(phase, info):
        if phase == "start":
            print("ready", flush=True)
            time.sleep(3600)
    gc.callbacks.append(callback)
    gc.collect()
    time.sleep(3600)
"""
SLOW = """
    import time
    from tasks.stop import take
    try:
        print("ready", flush=True)
        time.sleep(3600)
    except BaseException:
        take()
        time.sleep(3600)
"""
BUSY_EXIT = """
    import threading, time
    threading.Thread(target=time.sleep, args=(3600,)).start()
    print("ready", flush=True)
    sys.exit(4)
"""
POLLED = """
    import time
    from tasks.stop import polled
    with polled() as check:
        print("ready", flush=True)
        for _ in range(3):
            time.sleep(0.2)  # long enough for the signal: it raises nothing
        print("still here", flush=True)
        while True:
            check()
            time.sleep(0.1)
"""
WRAPPER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
from tasks.family import end_with_me
from tasks.stop import command
end_with_me()
from flows.cli.output import stated_errors
with command(), stated_errors():
{program}
"""


def start(program: str) -> subprocess.Popen[str]:
    """Start the program as a command and wait until it is ready."""
    text = WRAPPER.format(program=textwrap.indent(textwrap.dedent(program), "    "))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    return process.returncode, output, errors


@pytest.mark.req("C6")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [QUERY, LOST, POLLED], ids=["query", "lost", "polled"])
def test_a_signal_ends_a_command_that_is_busy(program: str, number: signal.Signals) -> None:
    process = start(program)
    time.sleep(0.3)
    process.send_signal(number)
    code, output, errors = end(process)
    assert code == 128 + number, errors
    assert f"stopped by {number.name}" in errors and "not stopped after" not in errors, (
        "it ended by itself"
    )
    if program is POLLED:
        assert "still here" in output, "only the poll raises"
    if program is LOST:
        assert "Exception ignored" in errors, "the exception was lost once"


@pytest.mark.req("C6")
def test_what_does_not_end_is_ended() -> None:
    process = start(SLOW)
    process.send_signal(signal.SIGTERM)
    code, _, errors = end(process)
    assert code == 143 and "not stopped after 8 s, so ended" in errors


@pytest.mark.req("C6")
def test_a_signal_that_comes_twice_at_once_is_one_and_a_later_ctrl_c_ends_at_once() -> None:
    process = start(SLOW)
    for _ in range(2):  # as `timeout` sends it: to the process, and to its group
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, _, errors = end(process)
    assert code == 130 and "stopped at once" in errors and "not stopped after" not in errors


@pytest.mark.long
def test_a_command_that_is_done_ends_with_its_own_code_whatever_waits_at_its_end() -> None:
    assert end(start(BUSY_EXIT))[0] == 4


@pytest.mark.req("P4")
def test_a_flow_run_of_a_worker_keeps_prefects_own_handler_of_sigterm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefect reports to its worker that it may cancel only if the handler is its own; with any
    other the flow run ends as crashed.
    """
    from prefect.utilities.engine import capture_sigterm, is_prefect_sigterm_handler_installed

    for variable, kept in (("PREFECT__FLOW_RUN_ID", True), ("OTHER", False)):
        monkeypatch.delenv("PREFECT__FLOW_RUN_ID", raising=False)
        monkeypatch.setenv(variable, "x")
        with capture_sigterm(), listening():
            assert is_prefect_sigterm_handler_installed() is kept
