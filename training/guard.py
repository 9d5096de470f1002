"""Being asked to stop: SIGTERM and SIGINT set a flag that the ranks act on together at the next step boundary."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1


class StopSignal:
    """A flag that signals set; install it from the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self.reason = ""

    def install(self) -> StopSignal:
        """Take SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._set)
        return self

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self.reason = self.reason or signal.Signals(number).name


def follow_launcher() -> None:
    """Under `torchrun` on Linux: get SIGTERM when the launching process dies, however it dies.

    torchrun puts every rank into a session of its own, so that nothing else would tell a rank of the end of a
    launcher that was killed.
    """
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request was made
        os.kill(os.getpid(), signal.SIGTERM)
