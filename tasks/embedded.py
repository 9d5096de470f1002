"""Prefect's server for a command without another one; no signal ends it except the command's end.

    python -m tasks.embedded PORT < pipe

Prefect starts its server in the command's own process group. There Ctrl-C ends it together with the
command, which then waits minutes for a missing server. This server has its own session and ignores
SIGINT and SIGTERM, from a terminal, `timeout` or systemd. It ends when the pipe at its standard
input closes; only the command has the other end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import uvicorn
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

LEAVE_SECONDS = 3.0
STARTUP_FAILURE = 3  # exit code that makes Prefect try another port
# same as in Prefect
SERVER = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


class EmbeddedServer(SubprocessASGIServer):
    """Server that Prefect finds by `SubprocessASGIServer()`: a process uses the first instance."""

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        command = [sys.executable, "-m", "tasks.embedded", str(self.port)]
        environment = {**os.environ, **SERVER, **settings, "PYTHONPATH": path}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, start_new_session=True
        )

    def stop(self) -> None:
        """End the server, at the end of the command."""
        if (process := self.server_process) is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_SECONDS + 1)
            process.kill()
        super().stop()


def start() -> None:
    """Start it unless it runs already; return when it answers."""
    EmbeddedServer().start()


def serve(port: int) -> None:
    """Serve Prefect's API on loopback until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="on",
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    threading.Thread(target=_follow, args=(server,), daemon=True).start()
    server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _follow(server: uvicorn.Server) -> None:
    while os.read(0, 1024):
        pass
    server.should_exit = True
    time.sleep(LEAVE_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
