"""Programs of `bulkhead up`: Prefect's server, MLflow's server and a Prefect worker, on loopback.

They run until a stop is requested. A program that ends by itself is started again, so that current
runs outlive it. One that keeps ending is given up; the error shows the end of its log.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import ConfigError, LaunchError
from schemas.home import home
from tasks import guarded
from tasks.embedded import LEASES
from tasks.say import say
from training.launch.stop_signal import children

HOST = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 10.0
FLOW_RUN_SECONDS = 30.0  # for the checkpoints of flow runs, as in Prefect's cancellation
RESTART_SECONDS = 5.0
RESTARTS, RESTARTS_WITHIN_SECONDS = 5, 300.0
POLL_SECONDS, LOOK_SECONDS, AWAY_SECONDS = 0.3, 2.0, 60.0


class Program:
    """One program and its log; started, watched and stopped with its children.

    Args:
        name: its name for people.
        command: a command of this interpreter's environment.
        log: gets its output.
        settings: added to the environment; None removes a variable.
        folder: its working folder; default: this process's.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        settings: Mapping[str, str | None],
        folder: Path | None = None,
    ) -> None:
        self.name, self.log, self.folder = name, log, folder
        self.command = [str(Path(sys.executable).parent / command[0]), *command[1:]]
        merged: dict[str, str | None] = {**os.environ, **settings}
        self.environment = {key: value for key, value in merged.items() if value is not None}
        self.process: subprocess.Popen[bytes] | None = None
        self.ends: list[float] = []

    @property
    def ended(self) -> bool:
        """True if it was started and is not running any more."""
        return self.process is not None and self.process.poll() is not None

    def start(self) -> None:
        """Start it in its own session, so that Ctrl-C reaches this process alone."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def last_lines(self) -> str:
        """Return the end of its log, for a message."""
        lines = self.log.read_text(errors="replace").splitlines()[-8:] if self.log.exists() else []
        return f"the end of {self.log}:\n" + "\n".join(lines)

    def restart(self) -> None:
        """Start it again after it ended by itself.

        Raises:
            LaunchError: it has ended too often.
        """
        now = time.monotonic()
        self.ends = [*(end for end in self.ends if now - end < RESTARTS_WITHIN_SECONDS), now]
        if len(self.ends) > RESTARTS:
            raise LaunchError(
                f"{self.name} ended {len(self.ends)} times within {RESTARTS_WITHIN_SECONDS:.0f} s;"
                f" {self.last_lines()}"
            )
        say(
            self.name,
            f"ended by itself; started again in {RESTART_SECONDS:.0f} s (log: {self.log})",
            "warn",
        )
        time.sleep(RESTART_SECONDS)
        self.start()


def prefect_server(port: int, login: str, log: Path, settings: Mapping[str, str]) -> Program:
    """Return Prefect's server and UI behind a password, with the home's database unless set
    otherwise.

    Leases of concurrency limits are stored in files. In memory, Prefect's default, a restart of the
    server would lose them, and every run that cannot renew its lease is ended.
    """
    ours = {
        "PREFECT_API_URL": None,
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": login,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}:{port}",
        "PREFECT_UI_API_URL": "/api",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": LEASES,
        guarded.LOGIN: login,
    }
    return Program(
        "Prefect", ["python", "-m", "tasks.guarded", str(port)], log, {**ours, **settings}
    )


def mlflow_server(port: int, login: str, store: str | None, log: Path) -> Program:
    """Return MLflow's server and UI behind a password.

    Files are not sent through the server: its clients are on this machine and write them to the
    folder. A model therefore reads the same through the server and through the database.

    Args:
        port: port to listen on.
        login: `user:password`.
        store: address of the database, passed in the environment because it may contain a password;
            None: the SQLite file of the home.
        log: gets its output.
    """
    artifacts = (home() / "mlartifacts").as_uri()
    command = ["mlflow", "server", "--app-name", "bulkhead", "--host", HOST, "--port", str(port)]
    command += ["--no-serve-artifacts", "--default-artifact-root", artifacts]
    settings = {
        "MLFLOW_BACKEND_STORE_URI": store or f"sqlite:///{home() / 'mlflow.db'}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_TRACKING_URI": None,
        guarded.PORT: str(port),
        guarded.LOGIN: login,
    }
    return Program("MLflow", command, log, settings)


def worker(
    pool: str,
    name: str,
    log: Path,
    settings: Mapping[str, str | None],
    folder: Path,
    options: Sequence[str] = (),
) -> Program:
    """Return a worker that starts flow runs of the pool as processes in this project's root."""
    command = [
        "prefect",
        "worker",
        "start",
        "--pool",
        pool,
        "--type",
        "process",
        "--name",
        name,
        "--install-policy",
        "never",
        *options,
    ]
    return Program(name, command, log, settings, folder)


def require_free(ports: Mapping[str, int]) -> None:
    """Refuse ports that are in use, before anything is started.

    Args:
        ports: option of the command line to port.

    Raises:
        ConfigError: a port is in use; the message names the option that chooses another.
    """
    for option, port in ports.items():
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError as error:
                raise ConfigError(
                    f"port {port} of {HOST} cannot be used ({error.strerror}); choose another with"
                    f" {option} N, or stop what uses it (perhaps another `bulkhead up`)"
                ) from error
    if len(set(ports.values())) < len(ports):
        raise ConfigError(
            f"{' and '.join(ports)} are both {next(iter(ports.values()))}; each server needs a port"
            " of its own"
        )


def wait_until(ready: Callable[[], bool], program: Program, what: str) -> None:
    """Wait until the program is ready.

    Raises:
        LaunchError: it ended, or took too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if program.ended:
            raise LaunchError(f"{program.name} ended instead of starting; {program.last_lines()}")
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{program.name} was not ready at {what} within {START_SECONDS:.0f} s;"
                f" {program.last_lines()}"
            )
        time.sleep(POLL_SECONDS)


def answers(url: str) -> bool:
    """Return True if a server answers at an address."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - always http on loopback
            return True
    except OSError:
        return False


@contextmanager
def kept(*programs: Program) -> Iterator[list[Program]]:
    """Start programs; at the end of the block stop them and all later ones, the last one first."""
    running: list[Program] = []
    try:
        for program in programs:
            program.start()
            running.append(program)
        yield running
    finally:
        for program in reversed(running):
            stop(program)


def watch(
    programs: Sequence[Program],
    look: Callable[[], bool],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Restart programs that end, until a stop, or until it is over.

    Args:
        programs: the started programs.
        look: called every few seconds, and less often after it has returned False.
        is_over: ends the watch by returning True.

    Raises:
        LaunchError: a program keeps ending.
        KeyboardInterrupt: a stop was requested.
    """
    again = 0.0
    while not is_over():
        for program in programs:
            if program.ended:
                program.restart()
        if time.monotonic() >= again:
            again = time.monotonic() + (LOOK_SECONDS if look() else AWAY_SECONDS)
        time.sleep(POLL_SECONDS)


def stop(program: Program) -> None:
    """Ask the whole session to stop, and kill the rest after the grace period.

    A second Ctrl-C does not interrupt this.
    """
    process = program.process
    if process is None:
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _signal(process.pid, signal.SIGTERM)
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()
        signal.signal(signal.SIGINT, before)


def stop_worker(program: Program) -> None:
    """Ask the worker's flow runs to save and end, then stop it: a stopped worker kills them at
    once.
    """
    pid = program.process.pid if program.process else 0
    deadline = time.monotonic() + FLOW_RUN_SECONDS
    for child in children(pid):
        _signal(child, signal.SIGTERM)  # Prefect gives each flow run its own process group
    while children(pid) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    stop(program)


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
