"""Shared parts of commands: arguments, settings of Prefect and MLflow, and a server that starts."""

from __future__ import annotations

import functools
import gc
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import typer

from flows.cli.output import stated_errors
from schemas.errors import ConfigError, LaunchError, shortened
from schemas.home import home
from tasks import embedded
from tasks.claim import log_in
from tasks.shared_server import SharedServer, shared_server
from tasks.sound_home import open_home, require_sound_databases


def declared_paths(incomplete: str) -> list[str]:
    """Complete overrides: the dotted paths of the declaration."""
    from schemas.describe import value_paths

    return [f"{path}=" for path in value_paths() if path.startswith(incomplete)]


File = Annotated[Path, typer.Argument(help="The declaration, a YAML file.", metavar="FILE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Values that replace the file's, e.g. train.epochs=5 model.kind=mlp.",
        metavar="[path=value]…",
        autocompletion=declared_paths,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on standard output.")
]
TrackingUri = Annotated[
    str | None,
    typer.Option(help="Default: MLFLOW_TRACKING_URI, else the Bulkhead home's SQLite file."),
]
Table = Annotated[
    str | None,
    typer.Option(help="Table or view of a database; needed where it has several.", metavar="TABLE"),
]
Query = Annotated[
    str | None, typer.Option(help="One SELECT over a database, in place of --table.", metavar="SQL")
]
Sheet = Annotated[
    str | None,
    typer.Option(help="Sheet of an Excel file; needed where it has several.", metavar="SHEET"),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's own log.")]


P = ParamSpec("P")
R = TypeVar("R")
PREFECT_REMEDY = (
    "start it with `bulkhead up`, set PREFECT_API_URL to another, or unset it: the run then starts"
    " its own"
)


def environment(debug: bool) -> None:
    """Set up Prefect and MLflow for a run without servers; keep the user's settings.

    Their databases are checked first.

    Raises:
        IntegrityError: a database of the home is damaged or missing.
    """
    defaults = {
        "PREFECT_HOME": str(home() / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if debug else "CRITICAL",
        "PREFECT_LOGGING_LEVEL": "INFO",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }
    log_in()
    fresh = "prefect" not in sys.modules  # Prefect reads its settings once
    if (
        fresh
        and "PREFECT_API_URL" not in os.environ
        and not Path(
            os.environ.get("PREFECT_HOME", defaults["PREFECT_HOME"]), "profiles.toml"
        ).exists()
    ):
        login = (  # of the server that this process starts for itself
            f"bulkhead:{secrets.token_urlsafe(24)}"
        )
        defaults |= {"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    require_sound_databases()
    if address := os.environ.get("PREFECT_API_URL"):
        require_address(address)


def require_address(address: str) -> str:
    """Return PREFECT_API_URL, masked; refuse an invalid one, which Prefect would do with a
    traceback.

    Raises:
        ConfigError: it is not an address.
    """
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        right = False
    shown = re.sub(r"//[^/@]*@", "//***@", shortened(address, plain=True))
    if not right:
        raise ConfigError(
            "PREFECT_API_URL: expected an address such as http://127.0.0.1:4200/api, got"
            f" {shown!r}; {PREFECT_REMEDY}"
        )
    return shown


def require_prefect(address: str) -> None:
    """Refuse to start with a Prefect server that does not answer, before anything is prepared.

    Raises:
        ConfigError: the address is invalid.
        LaunchError: nothing answers there.
    """
    shown = require_address(address)
    try:
        urlopen(f"{address.rstrip('/')}/health", timeout=10).close()  # noqa: S310 - the user's own setting
    except HTTPError:  # an answer, e.g. that it needs a password
        return
    except (OSError, HTTPException, ValueError) as error:
        raise LaunchError(
            f"Prefect's server at {shown} does not answer"
            f" ({getattr(error, 'reason', None) or error}); {PREFECT_REMEDY}"
        ) from None


@contextmanager
def server_starting() -> Iterator[None]:
    """Start the Prefect server of this process early, while the block imports what the flow needs;
    a running `bulkhead up` of this home is used instead.

    The server is a separate program and takes some seconds of a second core. It is started before
    Prefect is imported, unless a setting has to say first whether there is another one.

    Raises:
        OSError: the home is not writable, or has hardly any space left; nothing was started.
        LaunchError: the server did not start.
    """
    open_home()
    server: embedded.EmbeddedServer | SharedServer | None = None
    gc.disable()  # what is loaded stays: scanning it repeatedly takes a sixth of the time
    try:
        if embedded.is_wanted():
            server = shared_server() or embedded.EmbeddedServer()
        with server.named() if server else nullcontext():  # Prefect reads its settings once
            from prefect.context import refresh_global_settings_context
            from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE
        if server is None:
            if address := PREFECT_API_URL.value():
                require_prefect(address)
            elif PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
                server = embedded.EmbeddedServer()
                with server.named():
                    refresh_global_settings_context()
        yield
        gc.freeze()
    finally:
        gc.enable()
    if server:
        server.wait()


def stated(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors of a command into sentences and exit codes; --debug shows tracebacks."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **options: P.kwargs) -> R:
        with stated_errors(bool(options.get("debug"))):
            return command(*args, **options)

    return wrapped
