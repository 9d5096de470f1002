"""Prefect's server for a command without another one; no signal ends it except the command's end.

    python -m tasks.embedded FD < pipe

Prefect would start its server in the command's own process group, and load the server's classes
into the command as well. There Ctrl-C ends it together with the command, which then waits minutes
for a missing server. This server has its own session and ignores SIGINT and SIGTERM, from a
terminal, `timeout` or systemd. It ends when the pipe at its standard input closes; only the command
has the other end. Its port is bound by the command, which therefore knows it at once; the server
accepts connections when it is ready.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError

from schemas.errors import LaunchError

if TYPE_CHECKING:
    import uvicorn

LEAVE_SECONDS = 3.0
LOOK_SECONDS = 0.02
START_SECONDS = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
LEASES = "prefect.server.concurrency.lease_storage.filesystem"  # of `bulkhead up`
UI = "http://127.0.0.1:4200"  # of `bulkhead up`, where a person sees this server's runs afterwards
# same as in Prefect
SERVER = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
# variables and files that tell Prefect of another server, or that there shall be none
SETTINGS = (
    "PREFECT_API_URL",
    "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE",
    "PREFECT_SERVER_EPHEMERAL_ENABLED",
    "PREFECT_TEST_MODE",
)
FILES = ("prefect.toml", ".env")


class EmbeddedServer:
    """Prefect's server of this process; it runs until `stop`, or until this process ends."""

    running: EmbeddedServer | None = None

    def __init__(self, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        """Start it.

        Args:
            port: of loopback; 0: a free one.
            settings: added to its environment.

        Raises:
            OSError: the port is in use.
        """
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **SERVER, **_settings_in_use(), **(settings or {})}
        environment["PYTHONPATH"] = path
        environment.pop("PREFECT_API_URL", None)
        with socket.create_server(("127.0.0.1", port)) as listener:
            self.port: int = listener.getsockname()[1]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tasks.embedded", str(listener.fileno())],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        EmbeddedServer.running = self
        atexit.register(self.stop)

    @property
    def api_url(self) -> str:
        """Address of the server's API."""
        return f"http://127.0.0.1:{self.port}/api"

    @classmethod
    def is_own(cls, address: str | None) -> bool:
        """Return True if an address is that of this process's own server, or there is none."""
        own = cls.running
        return address is None or (own is not None and address.rstrip("/") == own.api_url)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the server to Prefect, which reads its settings in the block; not to children."""
        with named_to_prefect(self.api_url, UI):
            yield

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            LaunchError: it ended, or does not answer in time.
        """
        seconds = float(os.environ.get(START_SECONDS, "120"))
        deadline = time.monotonic() + seconds
        while not self._answers():
            code = self.process.poll()
            if code is not None or time.monotonic() > deadline:
                self.stop()
                what = (
                    f"did not answer within {seconds:.0f} s"
                    if code is None
                    else f"ended with exit code {code} before it answered"
                )
                raise LaunchError(
                    f"Prefect's server of this command {what}; its own lines above say why."
                    " `bulkhead doctor` looks further"
                )
            time.sleep(LOOK_SECONDS)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.api_url}/health", timeout=5).close()  # noqa: S310 - loopback
        except HTTPError:  # an answer, e.g. that it needs a password
            return True
        except (OSError, HTTPException):
            return False
        return True

    def stop(self) -> None:
        """End the server, at the end of the command."""
        EmbeddedServer.running = None
        atexit.unregister(self.stop)
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVE_SECONDS + 1)
        self.process.kill()
        self.process.wait()


@contextmanager
def named_to_prefect(api_url: str, ui: str) -> Iterator[None]:
    """Name a server to Prefect, which reads its settings in the block; not to children."""
    before = dict(os.environ)
    os.environ["PREFECT_API_URL"] = api_url
    os.environ.setdefault("PREFECT_UI_URL", ui)
    try:
        yield
    finally:
        for name in ("PREFECT_API_URL", "PREFECT_UI_URL"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def is_wanted() -> bool:
    """Return True if nothing tells Prefect of another server, so that it need not be asked."""
    home = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    project = Path("pyproject.toml")
    return (
        "prefect" not in sys.modules
        and not any(name in os.environ for name in SETTINGS)
        and not any(Path(name).exists() for name in FILES)
        and not (home / "profiles.toml").exists()
        and not (project.exists() and "[tool.prefect" in project.read_text(errors="replace"))
    )


def _settings_in_use() -> dict[str, str]:
    """Return settings that Prefect has read already, e.g. from a profile."""
    if "prefect.settings" not in sys.modules:
        return {}
    from prefect.settings import get_current_settings

    return get_current_settings().to_environment_variables(exclude_unset=True)


def serve(descriptor: int) -> None:
    """Serve Prefect's API on a bound socket until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # what is loaded stays: scanning it repeatedly takes a tenth of the time
    import uvicorn
    from prefect.server.api.server import create_app

    gc.freeze()
    gc.enable()
    config = uvicorn.Config(create_app, factory=True, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    threading.Thread(target=_follow, args=(server,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=descriptor)])
    # what follows frees memory, object by object, for a second
    sys.stderr.flush()
    os._exit(0 if server.started else 1)


def _follow(server: uvicorn.Server) -> None:
    while os.read(0, 1024):
        pass
    server.should_exit = True
    time.sleep(LEAVE_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
