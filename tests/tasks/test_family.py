"""Children of a command end with it: after SIGKILL, and at its own end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import subprocess, sys, time
from tasks.family import end_with_me
end_with_me()
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
asked = "import time; print('ready', flush=True); time.sleep(60)"
children = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True) for text in (deaf, asked)]
for child in children:
    child.stdout.readline()
print(*(child.pid for child in children), flush=True)
if len(sys.argv) == 1:
    time.sleep(60)
"""  # noqa: E501


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.req("C7")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ends_itself", [False, True])
def test_nothing_is_left_ten_seconds_after_the_end(ends_itself: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, *["x"] * ends_itself]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert process.stdout is not None
    children = [int(pid) for pid in process.stdout.readline().split()]
    assert len(children) == 2
    if not ends_itself:
        process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout.read() == "", "the output ends with the command, not with what it left"
    deadline = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, children)), "one that hears SIGTERM, and one that is deaf to it"
