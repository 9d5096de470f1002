"""Make sure that no process that a command starts outlives it.

Prefect's own server and a torchrun agent are separate processes, which a killed command cannot end.
Therefore a small process is forked before anything else. It waits for the command's end and then
ends the rest of its family: processes that inherited an environment variable of the command.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path

VARIABLE = "BULKHEAD_FAMILY"
GRACE_SECONDS = 8.0  # for a checkpoint at the step boundary; nothing is left 10 s after the end
POLL_SECONDS = 0.1


def end_with_me() -> None:
    """End all descendants when this process ends. Linux only.

    Call it before any thread or child exists.
    """
    if sys.platform != "linux":
        return
    word = secrets.token_hex(8)
    os.environ[VARIABLE] = word
    # only this process has `held` open: no child inherits it through exec
    waiting, held = os.pipe()
    if os.fork():
        os.close(waiting)
        return
    os.close(held)
    _detach()
    os.read(waiting, 1)  # returns when the command has ended
    end_family(word)
    os._exit(0)


def end_family(word: str, grace_seconds: float = GRACE_SECONDS) -> None:
    """Ask every process of the family to stop, and kill the rest after the grace period."""
    deadline = time.monotonic() + grace_seconds
    number = signal.SIGTERM
    while found := family(word):
        for pid in found:
            _send(pid, number)
        while family(word) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        number = signal.SIGKILL


def kill_family(word: str, within_seconds: float = 2.0) -> None:
    """Kill every other process of the family, also ones started meanwhile.

    Does nothing without the environment variable.
    """
    deadline = time.monotonic() + within_seconds
    while (
        word
        and (found := [pid for pid in family(word) if pid != os.getpid()])
        and time.monotonic() < deadline
    ):
        for pid in found:
            _send(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS / 2)


def family(word: str) -> list[int]:
    """Return process ids whose environment has the family's variable."""
    wanted, found = f"{VARIABLE}={word}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return found


def _detach() -> None:
    """Detach from terminal and streams.

    Readers of the command's output must see its end when the command ends.
    """
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
