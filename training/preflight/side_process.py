"""Checks in a forked copy of this process, on a core that would be idle.

A copy needs no imports and no data, but has this thread alone: a lock that another thread held
stays locked in it. So nothing depends on it: what it found passed is taken, and all else is found
here.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch

from schemas.records import CheckResult

# seconds for which results are waited for: it was begun long before, so that more says that the
# copy hangs
PATIENCE = 60.0
PIECE = 1 << 16


Checks = Mapping[str, Callable[[], CheckResult]]  # by the name of their result


class Copy:
    """A copy of this process that does one check after another; without one there are no
    results.
    """

    def __init__(self, process: int = 0, receiving: int = -1) -> None:
        self._process, self._receiving, self._received = process, receiving, b""
        self._waiting = select.poll()  # for any number of open files
        if process:
            self._waiting.register(receiving, select.POLLIN)

    def results(self, count: int) -> list[CheckResult]:
        """Those of the first checks, in order: what is there, after a wait for so many; fewer where
        a check raised, or the copy hangs.
        """
        until = time.monotonic() + PATIENCE
        while self._process:
            wait = (
                max(0.0, until - time.monotonic()) if self._received.count(b"\n") < count else 0.0
            )
            if not self._waiting.poll(1000 * wait) or not (
                piece := os.read(self._receiving, PIECE)
            ):
                break
            self._received += piece
        return [CheckResult.model_validate_json(line) for line in self._received.split(b"\n")[:-1]]

    def end(self) -> None:
        """Let it do nothing more."""
        if self._process:
            # somebody else waits for all children of this process
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
            os.close(self._receiving)
            self._process = 0


@contextmanager
def checked_aside(checks: Checks) -> Iterator[Callable[[], list[CheckResult]]]:
    """Begin checks next to what goes on here, and end them when left; torch has a thread less here
    until then.

    Args:
        checks: the longest first. What they print in the copy is lost, as is all that they change.

    Yields:
        A function that gives the results, in the order of the checks. It does itself what the copy
        has not come to, from the other end.
    """
    copy, threads = _begun(checks), torch.get_num_threads()
    # with one more than there are cores each step waits for the slowest
    torch.set_num_threads(max(1, threads - 1) if copy else threads)
    try:
        yield lambda: _finished(checks, copy or Copy())
    finally:
        torch.set_num_threads(threads)
        if copy:
            copy.end()


def _finished(checks: Checks, copy: Copy) -> list[CheckResult]:
    found, left = dict[str, CheckResult](), list(checks)
    while left and len(copy.results(0)) < len(left) - 1:  # it is not at the last one yet
        name = left.pop()
        found[name] = checks[name]()
    found |= {r.name: r for r in copy.results(len(left)) if r.verdict == "pass" and r.name in left}
    return [found[name] if name in found else check() for name, check in checks.items()]


def _begun(checks: Checks) -> Copy | None:
    """A copy at work; None where there is no second core or no safe fork."""
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return None
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # that other threads may hold locks, which `PATIENCE` is for
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            process = os.fork()
        except OSError:  # too many processes, or too little memory
            os.close(receiving)
            os.close(sending)
            return None
    if not process:
        _work(checks, sending)
    os.close(sending)
    return Copy(process, receiving)


def _work(checks: Checks, sending: int) -> None:
    """Of the copy: check, send, and end without any of what this process does at its end."""
    try:
        gc.freeze()  # what this process held is not finalized a second time
        logging.disable()
        sys.stdout = sys.stderr = silent = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
        os.dup2(silent.fileno(), 1)
        os.dup2(silent.fileno(), 2)
        torch.set_num_threads(1)  # the threads of its pool are not in the copy
        with os.fdopen(sending, "w", encoding="utf-8") as out:
            for check in checks.values():
                print(check().model_dump_json(), file=out, flush=True)
    finally:
        os._exit(0)
