"""Prefect's server of a command that has no other: a program that no signal of a terminal,
`timeout` or systemd ends.

    python -m tasks.embedded PORT < pipe

Prefect starts it in the command's own process group. There Ctrl-C ends the server together with the
command, which then waits for minutes for a server that is gone. This one has a session of its own
and is deaf to SIGINT and SIGTERM. It lives as long as the pipe at its standard input, of which the
command alone has the other end: it ends with the command, however that ends.
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
STARTUP_FAILURE = 3  # exit code at which Prefect tries another port
# as Prefect has it
SERVER = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}


class EmbeddedServer(SubprocessASGIServer):
    """The server that Prefect looks for by `SubprocessASGIServer()`: the first instance, of
    whatever class, is the one of the process.
    """

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
    """Start it, unless it is there already; returns when it answers."""
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
