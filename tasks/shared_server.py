"""Prefect's server of `bulkhead up`, used by the commands of its home in place of their own.

A command that uses it holds a shared lock on `up.used`, which any exit releases. `bulkhead up
--idle` takes the lock exclusively before it ends itself: no command begins to use a server that is
ending. If `bulkhead up` ends during a command, the command serves Prefect's API at the same address
itself; until then Prefect's client tries again.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from importlib.metadata import version
from urllib.parse import urlsplit

from schemas.home import home, server_login
from tasks.claim import Servers, running_servers
from tasks.embedded import LEASES, EmbeddedServer, named_to_prefect

USED = "up.used"
TRIES, TRY_SECONDS = 5, 0.02  # the lock is also taken for a moment to look whether it is free
LOOK_SECONDS, ANSWER_SECONDS = 0.5, 5.0
LOGIN = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING")


class SharedServer:
    """Prefect's server of a running `bulkhead up`, used until this process ends."""

    def __init__(self, ui: str, lock: int) -> None:
        self.ui, self.lock = ui.rstrip("/"), lock

    @property
    def api_url(self) -> str:
        """Address of the server's API."""
        return f"{self.ui}/api"

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the server to Prefect, which reads its settings in the block; not to children."""
        os.environ |= dict.fromkeys(LOGIN, server_login())
        with named_to_prefect(self.api_url, self.ui):
            yield

    def wait(self) -> None:
        """Take its place from now on if it ends; it answers already."""
        threading.Thread(target=self._follow, name="shared server", daemon=True).start()

    def _follow(self) -> None:
        while _runs_at(self.ui):
            time.sleep(LOOK_SECONDS)
        while EmbeddedServer.running is None:
            try:
                EmbeddedServer(
                    urlsplit(self.ui).port or 0,
                    {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES},
                )
            except OSError:  # it is still ending, or another command was first
                time.sleep(LOOK_SECONDS)


def shared_server() -> SharedServer | None:
    """Return the server of this home's `bulkhead up`; None if there is none to share, it does not
    answer yet, or it is of another version of Prefect.
    """
    found = running_servers()
    if found is None or not found.shared:
        return None
    lock = os.open(home() / USED, os.O_RDWR | os.O_CREAT, 0o600)
    if _locked(lock, fcntl.LOCK_SH) and _runs_at(found.prefect) and _answers(found):
        return SharedServer(found.prefect, lock)
    os.close(lock)
    return None


class Idleness:
    """Time in which no command has used the servers of this process."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.since = seconds, time.monotonic()
        self.lock = os.open(home() / USED, os.O_RDWR | os.O_CREAT, 0o600)

    def is_over(self) -> bool:
        """Return True if it was as long as asked; from then on no command begins to use them."""
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.since = time.monotonic()
            return False
        if time.monotonic() - self.since >= self.seconds:
            return True
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        return False


def _locked(handle: int, kind: int) -> bool:
    for _ in range(TRIES):
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(TRY_SECONDS)
        else:
            return True
    return False


def _runs_at(ui: str) -> bool:
    found = running_servers()
    return found is not None and found.prefect.rstrip("/") == ui.rstrip("/")


def _answers(found: Servers) -> bool:
    """Return True if the server answers to the home's password, with this version of Prefect."""
    login = base64.b64encode(server_login().encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{found.prefect}/api/admin/version", headers={"Authorization": f"Basic {login}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            return bool(json.load(answer) == version("prefect"))
    except (OSError, HTTPException, ValueError):
        return False
