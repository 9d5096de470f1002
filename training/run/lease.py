"""One writer for each run directory: `lease.json`, locked and numbered.

{"generation": 3, "token": "5f0c…", "host": "node1", "pid": 4711, "since": "2026-11-21
09:00:00+00:00"}

Rank 0 locks the file while it lives; the system releases the lock when the process ends in any way.
Each holder writes a new generation with its own token. Before any file gets its name in the run
directory, the holder checks that the token is still its own. So even on a file system without
locks, a superseded process (an orphan, a machine that came back) never writes again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.errors import LeaseError
from training.distributed.parallel import Parallel

log = logging.getLogger("training")

LEASE = "lease.json"
WAIT_SECONDS = 15.0  # longer than an orphan needs to end (training.launch.stop_signal)
POLL_SECONDS = 0.1
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def always() -> None:
    """Replace `Lease.check` where nobody else could write."""


@contextmanager
def one_writer(run_dir: Path, parallel: Parallel, stopped: Callable[[], bool]) -> Iterator[Lease]:
    """Hold the lease on rank 0 in the block; the other ranks only wait for it. Collective.

    Args:
        run_dir: the run directory; created.
        parallel: the ranks.
        stopped: returns True if a stop was requested, which ends the wait.

    Raises:
        LeaseError: another process holds it; raised on every rank.
    """
    lease = Lease(run_dir)
    try:
        parallel.on_main(lambda: lease.take(stopped))
        yield lease
    finally:
        lease.release()


class Lease:
    """Right of one process to write to a run directory.

    Args:
        run_dir: the run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / LEASE
        self.token = ""
        self._handle = -1

    def take(self, stopped: Callable[[], bool], wait_seconds: float = WAIT_SECONDS) -> None:
        """Become the writer; wait for one that is about to end.

        Raises:
            LeaseError: another process still holds it after the wait, or a stop was requested
                meanwhile.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        deadline, told = time.monotonic() + wait_seconds, False
        while not self._locked():
            if time.monotonic() > deadline or stopped():
                raise LeaseError(
                    f"{self.path.parent}: {self._holder()} is still writing to this run directory;"
                    " wait for it or end it, then start again. Two writers would destroy each"
                    " other's checkpoints"
                )
            if not told:
                log.warning(
                    "waiting up to %.0f s for %s, which holds %s",
                    wait_seconds,
                    self._holder(),
                    self.path,
                )
                told = True
            time.sleep(POLL_SECONDS)
        self._sign()

    def check(self) -> None:
        """Check that this process is still the writer, before any file gets its name in the run
        directory.

        Raises:
            LeaseError: another process has taken the lease over, or `lease.json` is missing.
        """
        found = self._read()
        if not self.token or found.get("token") != self.token:
            raise LeaseError(
                f"{self.path}: taken over by {self._holder()}; this process (pid {os.getpid()} on"
                f" {socket.gethostname()}) writes no more"
            )

    def release(self) -> None:
        """Let another process write; a second call does nothing."""
        self.token = ""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _locked(self) -> bool:
        """Try to lock; return True if the lock is held on the file that currently has the name."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(handle)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
            log.warning(
                "%s: this file system has no locks (%s); a second writer is noticed only when it"
                " has taken over",
                self.path,
                error.strerror,
            )
        # removed while we waited
        if not self.path.exists() or os.fstat(handle).st_ino != self.path.stat().st_ino:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def _sign(self) -> None:
        last = self._read().get("generation")
        generation = last + 1 if isinstance(last, int) else 1
        self.token = secrets.token_hex(8)
        record = {
            "generation": generation,
            "token": self.token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": str(datetime.now(UTC))[:19],
        }
        # Write in place, without a rename: the lock is on this file. One write of less than a page.
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(record).encode(), 0)
        os.fsync(self._handle)

    def _read(self) -> dict[str, Any]:
        """Return the record; None if there is no readable one: a holder was killed before it
        signed.
        """
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _holder(self) -> str:
        found = self._read()
        return (
            f"process {found.get('pid', '?')} on {found.get('host', '?')} (since"
            f" {found.get('since', '?')} UTC)"
        )
