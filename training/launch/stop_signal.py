"""Being asked to stop, and following the process that started this one to its end.

SIGTERM and SIGINT set a flag that the ranks act on together at the next step boundary; before the
first one, they end the process. Nothing that this project starts outlives its parent by more than
the grace period, whatever it is busy with: the launcher may be killed, and so may the torchrun
agent, which puts every rank into a session of its own where no signal of a terminal or a group
reaches it.
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

LAUNCHER = "BULKHEAD_LAUNCHER"  # process id of what started the torchrun agent
AGENT = "BULKHEAD_AGENT"  # process id of the torchrun agent
# for a checkpoint at the step boundary; nothing of the run is left 10 s after the parent's end
ORPHAN_GRACE_SECONDS = 8.0
LOOK_SECONDS = 0.2

T = TypeVar("T")


class StopRequested(Exception):
    """A stop was asked for during work that may be abandoned."""


class StopSignal:
    """A flag that signals set; install it from the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.reason = ""
        self._when_ready = False
        self._abandoning = False

    def install(self) -> StopSignal:
        """Take SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)
        return self

    def install_when_ready(self) -> StopSignal:
        """Take the signals only once there is something to save; until then they end the process at
        once, whatever it loads or waits for.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        self._when_ready = True
        return self

    def ready(self) -> None:
        """From now on there is something to save."""
        if self._when_ready:
            self.install()

    def unless_stopped(self, work: Callable[[], T]) -> T | None:
        """What the work returns, or None where a stop was asked for before it was done: the signal
        ends it at once.

        Only for work in the main thread that changes nothing and in which no other rank takes part.
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
    """End this process when the one that started it has ended: asked to stop at once, killed with
    its children after the grace period.

    The kill does not depend on what the main thread is busy with. The kernel's own parent-death
    signal is not used: it follows the thread that started this process, not the process.

    Args:
        variable: of the environment; holds the process id of the parent as the parent wrote it,
            which tells of a parent that ended before this call. Where it is not set nothing is
            followed.
        grace_seconds: between the two.
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
    """Process ids of the children of a process, from /proc; none where there is no such file
    system.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found
