"""`bulkhead up`: run both servers and a worker for deployments until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from urllib.parse import quote

from schemas.errors import ConfigError
from schemas.home import home
from tasks.bootstrap import HEARTBEAT_SECONDS, POOL, prepare_server, worker_is_online
from tasks.claim import Servers, claimed
from tasks.deploy import require_server
from tasks.postgres import prepare_postgres
from tasks.reconcile import end_orphans, reconcile
from tasks.say import say
from tasks.servers import (
    Program,
    answers,
    kept,
    mlflow_server,
    prefect_server,
    require_free,
    stop_worker,
    wait_until,
    watch,
    worker,
)
from tasks.shared_server import Idleness

ROOT = Path(__file__).resolve().parent.parent
# retries of flow runs and worker if a Prefect server is missing: eight take four minutes
PATIENCE = {
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    "PREFECT_WORKER_QUERY_SECONDS": "5",
}


def up(
    prefect_port: int,
    mlflow_port: int,
    postgres: str | None,
    with_worker: bool,
    idle_seconds: float | None = None,
) -> None:
    """Start and prepare the servers, print their addresses, and keep them running.

    PREFECT_API_URL and MLFLOW_TRACKING_URI already name these servers. Clients need the home's
    password, which is already in this process's environment.

    Args:
        prefect_port: port of Prefect's UI and API.
        mlflow_port: port of MLflow's UI and API.
        postgres: address of a database for both; None: SQLite files in the Bulkhead home.
        with_worker: start flow runs too.
        idle_seconds: end after so many seconds in which no command has used the server; None: a
            stop alone ends it.

    Raises:
        ConfigError: another `bulkhead up` serves this home, a port is in use, or PostgreSQL cannot
            be reached.
        LaunchError: a program did not start, or keeps ending.
    """
    # also if SIGINT was ignored, as in a shell's background: a worker that inherits that cannot be
    # stopped
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):
        signal.signal(number, signal.default_int_handler)
    addresses = os.environ["PREFECT_UI_URL"], os.environ["MLFLOW_TRACKING_URI"]
    with claimed(Servers(*addresses, os.getpid(), shared=postgres is None)):
        require_free({"--prefect-port": prefect_port, "--mlflow-port": mlflow_port})
        _serve(prefect_port, mlflow_port, postgres, with_worker, idle_seconds)


def _serve(
    prefect_port: int,
    mlflow_port: int,
    postgres: str | None,
    with_worker: bool,
    idle_seconds: float | None,
) -> None:
    database, store = prepare_postgres(postgres) if postgres else ({}, None)
    logs = home() / "logs"
    logs.mkdir(exist_ok=True)
    login = os.environ["PREFECT_API_AUTH_STRING"]
    prefect = prefect_server(prefect_port, login, logs / "prefect.log", database)
    mlflow = mlflow_server(mlflow_port, login, store, logs / "mlflow.log")
    try:
        with kept(prefect, mlflow) as running:
            for server, address, path in (
                (prefect, os.environ["PREFECT_UI_URL"], "/api/health"),
                (mlflow, os.environ["MLFLOW_TRACKING_URI"], "/health"),
            ):
                wait_until(lambda url=address + path: answers(url), server, address)  # type: ignore[misc]
                say(server.name, f"{address}/login#{quote(login, safe=':')}")
            prepare_server()
            reconcile(os.environ["MLFLOW_TRACKING_URI"], None if postgres else POOL)
            keep_at_work(running, logs if with_worker else None, idle_seconds)
    except KeyboardInterrupt:
        say("up", "stopped")


def keep_at_work(
    running: list[Program], logs: Path | None, idle_seconds: float | None = None
) -> None:
    """Watch the servers, and a worker if there is a folder for its log.

    At a stop, the servers still receive the ends of flow runs.
    """
    if idle_seconds is not None:
        length = f"{idle_seconds:g} s"
        say("up", f"no worker; ends after {length} without a command; files in {home()}", "info")
        watch(running, end_orphans, Idleness(idle_seconds).is_over)
        say("up", f"no command for {length}: stopped")
        return
    if logs is None:
        say("up", f"no worker; files in {home()}; Ctrl-C stops both", "info")
        watch(running, end_orphans)
        return
    program = flow_worker(logs)
    try:
        program.start()
        wait_until(lambda: worker_is_online(program.name), program, f"the work pool {POOL}")
        say("worker", f"{program.name}, work pool {POOL}; next: bulkhead deploy")
        say("up", f"files in {home()}; Ctrl-C stops everything", "info")
        watch([*running, program], end_orphans)
    finally:
        stop_worker(program)
        reconcile(os.environ["MLFLOW_TRACKING_URI"])


def work() -> None:
    """Run a worker for remote servers, and end dead runs of this home, until Ctrl-C or SIGTERM.

    Raises:
        ConfigError: the environment does not name both servers.
        LaunchError: the server does not answer, or the worker keeps ending.
    """
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        if not os.environ.get(name):
            raise ConfigError(
                f"bulkhead worker needs the address of a server in {name}; for servers of this"
                " machine alone use bulkhead up"
            )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    require_server()
    # the pool with our template: Prefect's worker would create one that accepts a command
    prepare_server()
    logs = home() / "logs"
    logs.mkdir(exist_ok=True)
    program = flow_worker(logs, "--with-healthcheck")
    try:
        reconcile(os.environ["MLFLOW_TRACKING_URI"])
        program.start()
        wait_until(lambda: worker_is_online(program.name), program, f"the work pool {POOL}")
        say("worker", f"{program.name}, work pool {POOL}, files in {home()}")
        watch([program], end_orphans)
    except KeyboardInterrupt:
        say("worker", "stopped")
    finally:
        stop_worker(program)
        reconcile(os.environ["MLFLOW_TRACKING_URI"])


def flow_worker(logs: Path, *options: str) -> Program:
    """Return a worker whose flow runs find both servers, the home and the project root."""
    settings = {
        "BULKHEAD_HOME": str(home()),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "BULKHEAD_POSTGRES": None,
    }
    settings |= {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1"} | {
        name: os.environ.get(name, value) for name, value in PATIENCE.items()
    }
    return worker(
        POOL,
        f"worker-{socket.gethostname()}-{os.getpid()}",
        logs / "worker.log",
        settings,
        ROOT,
        options,
    )
