"""Stop signals, and a process that ends with its parent.

SIGTERM and SIGINT set a flag that the ranks act on together at the next step boundary; before the
first one, they end the process. No process that this project starts outlives its parent by more
than the grace period, even when it is busy. The launcher or the torchrun agent may be killed. The
agent gives every rank its own session, which no signal of a terminal or a group reaches.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

LAUNCHER = "BULKHEAD_LAUNCHER"  # process id of the launcher of the torchrun agent
AGENT = "BULKHEAD_AGENT"  # process id of the torchrun agent
# for a checkpoint at the step boundary; nothing of the run is left 10 s after the parent's end
ORPHAN_GRACE_SECONDS = 8.0
LOOK_SECONDS = 0.2

T = TypeVar("T")


class StopRequested(Exception):
    """A stop was requested during work that may be abandoned."""


class StopSignal:
    """Flag that signals set; install it from the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.reason = ""
        self._when_ready = False
        self._abandoning = False

    def install(self) -> StopSignal:
        """Handle SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)
        return self

    def install_when_ready(self) -> StopSignal:
        """Handle the signals only once there is something to save.

        Until then they end the process at once, even while it loads or waits.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        self._when_ready = True
        return self

    def ready(self) -> None:
        """Mark that there is something to save from now on."""
        if self._when_ready:
            self.install()

    def unless_stopped(self, work: Callable[[], T]) -> T | None:
        """Return the work's result, or None if a stop is requested before its end; the signal ends
        it.

        Only for work in the main thread that changes nothing and needs no other rank.
        """
        try:
            return self._abandonable(work)
        except StopRequested:
            return None

    def _abandonable(self, work: Callable[[], T]) -> T | None:
        self._abandoning = True
        try:
            return None if self.requested else work()
        finally:
            self._abandoning = False

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.reason = self.reason or signal.Signals(number).name
        if self._abandoning:
            self._abandoning = False
            raise StopRequested


def follow_parent(variable: str, grace_seconds: float = ORPHAN_GRACE_SECONDS) -> None:
    """End this process after its parent: request a stop, then kill it and its children.

    The kill works even if the main thread is busy. The kernel's parent-death signal is not used: it
    follows the thread that started this process, not the process.

    Args:
        variable: environment variable with the parent's process id, written by the parent, which
            reveals a parent that ended before this call. If it is not set, no process is followed.
        grace_seconds: time between the two.
    """
    if variable in os.environ:
        threading.Thread(
            target=_follow,
            args=(int(os.environ[variable]), grace_seconds),
            name="follow-parent",
            daemon=True,
        ).start()


def _follow(parent: int, grace_seconds: float) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    for child in children(os.getpid()):
        os.kill(child, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def children(parent: int) -> list[int]:
    """Return the process ids of a process's children, from /proc; none without /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found
