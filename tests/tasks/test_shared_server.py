"""Sharing the server of `bulkhead up`: only one that runs, answers and is not ending; its idleness
counts from the last command.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
from typer import BadParameter

from flows.cli.commands.operate import _lengths, _seconds
from schemas.errors import ConfigError
from schemas.home import home
from tasks import shared_server as sharing
from tasks.claim import Servers, claimed
from tasks.shared_server import USED, Idleness, shared_server


@pytest.fixture(autouse=True)
def _home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has its own home."""
    for name in sharing.LOGIN:
        monkeypatch.delenv(name, raising=False)


class Version(BaseHTTPRequestHandler):
    """Prefect's version, for the home's password."""

    answer = version("prefect")

    def do_GET(self) -> None:
        known = self.headers.get("Authorization", "").startswith("Basic ")
        self.send_response(200 if known and self.path == "/api/admin/version" else 401)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def answering(shared: bool = True, **changes: object) -> Iterator[str]:
    """Serve a version on loopback, and claim the home for it."""
    server = HTTPServer(("127.0.0.1", 0), type("Changed", (Version,), changes))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with claimed(Servers(address, "http://127.0.0.1:1", os.getpid(), shared)):
            yield address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def is_used() -> bool:
    handle = os.open(home() / USED, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def test_a_running_server_is_named_to_prefect_in_the_block_alone_with_the_homes_password() -> None:
    assert shared_server() is None
    with answering() as address:
        found = shared_server()
        assert found is not None and is_used()
        with found.named():
            assert os.environ["PREFECT_API_URL"] == f"{address}/api"
            assert os.environ["PREFECT_UI_URL"] == address
        assert "PREFECT_API_URL" not in os.environ and "PREFECT_UI_URL" not in os.environ
        for name in sharing.LOGIN:
            assert os.environ.pop(name).startswith("bulkhead:")
        os.close(found.lock)
    assert not is_used() and shared_server() is None


@pytest.mark.parametrize(
    "changes",
    [{"shared": False}, {"answer": "3.0.0"}, {"do_GET": lambda self: self.send_error(401)}],
    ids=["another database", "another version", "another password"],
)
def test_a_server_that_does_not_fit_is_left_alone(changes: dict[str, object]) -> None:
    with answering(**changes):  # type: ignore[arg-type]
        assert shared_server() is None and not is_used()


def test_a_server_that_does_not_answer_is_left_alone() -> None:
    with claimed(Servers("http://127.0.0.1:1", "http://127.0.0.1:1", os.getpid(), True)):
        assert shared_server() is None and not is_used()


def test_an_ending_server_is_not_shared_and_idleness_counts_from_the_last_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(sharing.time, "monotonic", lambda: now[0])
    with answering():
        idle = Idleness(10.0)
        now[0] = 9.0
        assert not idle.is_over()
        found = shared_server()
        assert found is not None
        now[0] = 100.0
        assert not idle.is_over(), "a command uses it"
        os.close(found.lock)
        now[0] = 109.0
        assert not idle.is_over()
        now[0] = 110.0
        assert idle.is_over()
        assert shared_server() is None, "it is ending"
        os.close(idle.lock)


def test_lengths_are_completed_and_checked() -> None:
    assert [_seconds(text) for text in ("10m", "10 m", "10min", "500ms", "1h")] == [
        *(600.0, 600.0, 600.0, 0.5, 3600.0)
    ]
    assert _lengths("1") == ["10m", "1h"]
    for wrong in ("0m", "ten", "-5m", ""):
        with pytest.raises((ConfigError, BadParameter), match="--idle: expected a duration"):
            _seconds(wrong)
