"""Commands for operators: `bulkhead up` and `bulkhead deploy`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.output import print_json
from flows.cli.shared import AsJson, Debug, environment, stated
from schemas.duration import seconds_of
from schemas.errors import ConfigError
from schemas.home import server_login
from tasks.claim import running_servers, set_mlflow_login, wait_for_prefect

HOST = "127.0.0.1"


def _lengths(incomplete: str) -> list[str]:
    """Tab-completion of --idle."""
    return [length for length in ("5m", "10m", "1h", "8h") if length.startswith(incomplete)]


def _seconds(idle: str) -> float:
    """Return the seconds of --idle; `m` stands for minutes.

    Raises:
        ConfigError: it is not a duration above 0.

    >>> _seconds("10m"), _seconds("90s")
    (600.0, 90.0)
    """
    try:
        found = seconds_of(re.sub(r"(?<=[\d ])m$", "min", idle.strip()))
    except ValueError:
        found = 0.0
    if found <= 0:
        raise ConfigError(f"--idle: expected a duration above 0 such as 10m or 1h, got {idle!r}")
    return found


Idle = Annotated[
    str | None,
    typer.Option(
        help=(
            "End by itself after so long without a command of this home, e.g. 10m; no worker is"
            " started. Default: run until Ctrl-C."
        ),
        autocompletion=_lengths,
        metavar="LENGTH",
    ),
]
Postgres = Annotated[
    str | None,
    typer.Option(
        envvar="BULKHEAD_POSTGRES",
        show_envvar=True,
        help=(
            "postgresql://user:password@host:5432/database for both servers (schemas prefect"
            " and mlflow), in place of SQLite files."
        ),
    ),
]


@stated
def up(
    prefect_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of Prefect's UI and API.")
    ] = 4200,
    mlflow_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of MLflow's UI and API.")
    ] = 5000,
    postgres: Postgres = None,
    worker: Annotated[
        bool,
        typer.Option("--worker/--no-worker", help="Start flow runs of the work pool bulkhead too."),
    ] = True,
    idle: Idle = None,
    debug: Debug = False,
) -> None:
    """Open Prefect and MLflow over this home's runs, with a worker for deployments, on loopback,
    until Ctrl-C. Commands of this home use its Prefect server and start sooner.
    """
    idle_seconds = None if idle is None else _seconds(idle)
    ui = (  # set before Prefect is loaded, which reads its settings then
        f"http://{HOST}:{prefect_port}"
    )
    os.environ |= {
        "PREFECT_UI_URL": ui,
        "PREFECT_API_URL": f"{ui}/api",
        "MLFLOW_TRACKING_URI": f"http://{HOST}:{mlflow_port}",
    }
    login = (
        os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
        or os.environ.get("PREFECT_API_AUTH_STRING")
        or server_login()
    )
    os.environ["PREFECT_API_AUTH_STRING"] = login
    set_mlflow_login(login)
    environment(debug)
    from flows.up import up as start
    from tasks.stop import stand_aside

    stand_aside()
    start(prefect_port, mlflow_port, postgres, worker and idle is None, idle_seconds)


@stated
def worker(debug: Debug = False) -> None:
    """Start the flow runs of the work pool bulkhead on this machine, against the servers of
    PREFECT_API_URL and MLFLOW_TRACKING_URI.

    Runs of this home whose process is gone are ended there, as `bulkhead up` does. Answers at
    http://127.0.0.1:8080/health while it works.
    """
    environment(debug)
    from flows.up import work
    from tasks.stop import stand_aside

    stand_aside()
    work()


@stated
def deploy(
    name: Annotated[
        list[str] | None,
        typer.Option(help="Only these, as FLOW/NAME; may be given again. Default: all."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Another file than deployments/prefect.yaml of this project, in the same format."
        ),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a Prefect server that is starting.")
    ] = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and register nothing.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Register the deployments of deployments/prefect.yaml with the Prefect server of
    PREFECT_API_URL, stamped with the commit.
    """
    if not dry_run:
        wait_for_prefect(f"http://{HOST}:4200/api", wait)
    found = running_servers()
    os.environ.setdefault(
        "PREFECT_API_URL", f"{found.prefect if found else f'http://{HOST}:4200'}/api"
    )
    environment(debug)
    from flows.deploy import deploy as register
    from tasks.deploy import FILE, ROOT

    made = register(tuple(name or ()), dry_run, file.absolute() if file else ROOT / FILE)
    if as_json:
        print_json([deployment.model_dump(mode="json") for deployment in made])
        return
    for deployment in made:
        print(
            f"✓ {deployment.name:<28} {deployment.version}  {deployment.schedule or 'by hand'}"
            + (f"  {deployment.url}" if deployment.url else "")
        )
    if dry_run:
        print("nothing was registered (--dry-run)", file=sys.stderr)
