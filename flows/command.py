"""What every command shares: its arguments, stated errors as exit codes, settings of Prefect and
MLflow, JSON on standard output.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import typer

from schemas.errors import BulkheadError, ConfigError, LaunchError, shortened
from schemas.home import home
from tasks.claim import log_in
from tasks.sound_home import open_home, require_sound_databases
from tasks.stop import reason, say_stopped

ROOT = Path(__file__).resolve().parent.parent
MOST_CHARACTERS = 10_000  # of an error in the terminal
STORAGE = {
    errno.ENOSPC: (
        "the disk is full; free some space, or let BULKHEAD_HOME name a folder of a larger one"
    ),
    errno.EDQUOT: (
        "the quota of the disk is used up; free some space, or let BULKHEAD_HOME name a folder"
        " elsewhere"
    ),
    errno.EFBIG: (
        "a file would be larger than its file system or this user's limit (ulimit -f) allows; raise"
        " it, or let BULKHEAD_HOME name a folder elsewhere"
    ),
    errno.EROFS: (
        "the file system cannot be written to; let BULKHEAD_HOME name a folder of another one"
    ),
    errno.EMFILE: (
        "too many files are open at once for this shell; raise its limit, e.g. ulimit -n 1024"
    ),
    errno.ENFILE: "too many files are open at once on this machine; end other programs",
    errno.ENOMEM: "memory ran out; free some, or raise the limit of this shell (ulimit -v)",
    errno.ENAMETOOLONG: "a name is longer than the file system allows; give a shorter path",
    errno.EACCES: (
        "a file or folder is not permitted to this user; change its rights, or let BULKHEAD_HOME"
        " name a folder of this user"
    ),
}
FULL_BYTES = 2_000_000  # free, below which an error of a database is put down to the disk


def declared_paths(incomplete: str) -> list[str]:
    """Tab-completion of overrides: the dotted paths of the declaration."""
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
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's own log.")]


PREFECT_REMEDY = (
    "start it with `bulkhead up`, set PREFECT_API_URL to another, or unset it: the run then starts"
    " its own"
)


@contextmanager
def stated_errors(debug: bool = False) -> Iterator[None]:
    """Turn an error into its sentence and exit code: one that is stated, of the machine, or a
    mistake of ours, which says so.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, typer.Exit | typer.Abort | SystemExit):
            raise
        if reason() or isinstance(error, KeyboardInterrupt):
            raise typer.Exit(say_stopped()) from None
        if debug or not isinstance(error, Exception):
            raise
        if isinstance(error, BrokenPipeError):  # who read the output, e.g. head, has seen enough
            raise typer.Exit(1) from None
        with suppress(OSError):  # standard error may be what failed
            print(f"\n✗ {shortened(told(error), MOST_CHARACTERS, plain=True)}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def storage_refusal(error: BaseException) -> OSError | None:
    """What the system's storage refused behind an error; None where it is about something else.

    On a full disk Prefect and MLflow fail with errors of their own (an HTTP status, SQLite's
    "database or disk is full"): the disk is looked at.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in STORAGE:
            return cause
        cause = cause.__cause__ or cause.__context__
    place = home()
    if isinstance(error, OSError) or (free := shutil.disk_usage(place).free) >= FULL_BYTES:
        return None
    return OSError(
        errno.ENOSPC,
        f"{free:,} bytes are free; what was saved stays, and `bulkhead resume` goes on from there",
        str(place),
    )


def told(error: Exception) -> str:
    """The sentence of an error; one that nobody foresaw says where it was raised, and asks for a
    report.
    """
    if isinstance(error, BulkheadError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return (
            "memory ran out; free some, raise the limit of this shell (ulimit -v), or set"
            " data.memory_limit"
        )
    refusal = storage_refusal(error)
    if refusal is not None:
        where = f" ({refusal.filename})" if refusal.filename else ""
        return f"{STORAGE[refusal.errno or 0]}{where}: {refusal.strerror}"
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(ROOT) and "site-packages" not in f.filename
    ]
    where = (
        f" at {Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else ""
    )
    cause = " ".join(str(error).split()) or "no message"
    return (
        f"unexpected: {type(error).__name__}{where}: {shortened(cause, 500, plain=True)}; please"
        " report it; --debug shows the traceback"
    )


def environment(debug: bool) -> None:
    """Settings of Prefect and MLflow for a run without servers; what the user has set stays. Their
    databases are looked at first.

    Raises:
        IntegrityError: a database of the home is damaged or gone.
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
        login = (  # of the server that this process starts for itself alone
            f"bulkhead:{secrets.token_urlsafe(24)}"
        )
        defaults |= {"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    require_sound_databases()
    if address := os.environ.get("PREFECT_API_URL"):
        require_address(address)


def require_address(address: str) -> str:
    """Refuse a PREFECT_API_URL that is no address, which Prefect would do with a traceback; else
    return it as it may be shown.

    Raises:
        ConfigError: it is none.
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
    """Refuse to start on a Prefect server that does not answer, before anything is prepared.

    Raises:
        ConfigError: the address is none.
        LaunchError: nothing answers there.
    """
    shown = require_address(address)
    try:
        urlopen(f"{address.rstrip('/')}/health", timeout=10).close()  # noqa: S310 - the user's own setting
    except HTTPError:  # an answer, e.g. that it wants a password
        return
    except (OSError, HTTPException, ValueError) as error:
        raise LaunchError(
            f"Prefect's server at {shown} does not answer"
            f" ({getattr(error, 'reason', None) or error}); {PREFECT_REMEDY}"
        ) from None


@contextmanager
def server_starting() -> Iterator[None]:
    """Where Prefect will start a server for this process, have it start now, while the block
    imports what the flow needs.

    The server is a program of its own and takes some seconds of a second core; Prefect itself would
    begin at the flow's first call. If it does not come up, Prefect tries again there, and says what
    is wrong.

    Raises:
        OSError: the home cannot be written to, or has hardly any space left; before anything is
            started.
    """
    open_home()
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_SERVER_ALLOW_EPHEMERAL_MODE,
    )  # after `environment`: Prefect reads its settings once

    if address := PREFECT_API_URL.value():
        require_prefect(address)
    if address or not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
        yield
        return
    from tasks.embedded import start

    def begin() -> None:
        with suppress(
            Exception
        ):  # Prefect tries again at the flow's first call, and says what is wrong
            start()

    started = Thread(target=begin, name="server", daemon=True)
    started.start()
    yield
    started.join()  # Prefect would take one that is still starting for one that answers


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    plain = (sys.stdout.encoding or "").lower().replace(
        "-", ""
    ) != "utf8"  # a terminal of ASCII could not show the rest
    print(json.dumps(value, indent=2, ensure_ascii=plain, default=str))
