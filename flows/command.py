"""What every command shares: its arguments, stated errors as exit codes, settings of Prefect and MLflow, JSON on standard output."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NoReturn

import typer

from schemas.errors import BulkheadError, ConfigError
from schemas.home import home
from tasks.claim import log_in
from tasks.sound_home import open_home, require_sound_databases
from tasks.stop import reason, say_stopped

STORAGE = {
    errno.ENOSPC: "the disk is full; free some space, or let BULKHEAD_HOME name a folder of a larger one",
    errno.EDQUOT: "the quota of the disk is used up; free some space, or let BULKHEAD_HOME name a folder elsewhere",
    errno.EFBIG: "a file would be larger than its file system or this user's limit (ulimit -f) allows; raise it, or let BULKHEAD_HOME name a folder elsewhere",
    errno.EROFS: "the file system cannot be written to; let BULKHEAD_HOME name a folder of another one",
    errno.EACCES: "a file or folder is not permitted to this user; change its rights, or let BULKHEAD_HOME name a folder of this user",
}
FULL_BYTES = 2_000_000  # free, below which an error of a database is put down to the disk


def declared_paths(incomplete: str) -> list[str]:
    """Tab-completion of overrides: the dotted paths of the declaration."""
    from schemas.describe import value_paths

    return [f"{path}=" for path in value_paths() if path.startswith(incomplete)]


File = Annotated[Path, typer.Argument(help="The declaration, a YAML file.", metavar="FILE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Values that replace the file's, e.g. train.epochs=5 model.kind=mlp.", metavar="[path=value]…", autocompletion=declared_paths),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and Prefect's own log.")]


@contextmanager
def stated_errors(debug: bool = False) -> Iterator[None]:
    """Turn a stated error, or one of storage, into its message and exit code; anything else keeps its traceback."""
    try:
        yield
    except BulkheadError as error:
        if debug or reason():
            raise
        _refuse(error)
    except Exception as error:
        refusal = storage_refusal(error)
        if debug or reason() or refusal is None:
            raise
        where = f" ({refusal.filename})" if refusal.filename else ""
        print(f"\n✗ {STORAGE[refusal.errno or 0]}{where}: {refusal.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None
    except BaseException as error:
        if not (reason() or isinstance(error, KeyboardInterrupt)) or isinstance(error, SystemExit):
            raise
        raise typer.Exit(say_stopped()) from None


def storage_refusal(error: BaseException) -> OSError | None:
    """What the system's storage refused behind an error; None where it is about something else.

    On a full disk Prefect and MLflow fail with errors of their own (an HTTP status, SQLite's "database or disk is full"): the disk is looked at.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in STORAGE:
            return cause
        cause = cause.__cause__ or cause.__context__
    place = home()
    if isinstance(error, OSError) or (free := shutil.disk_usage(place).free) >= FULL_BYTES:
        return None
    return OSError(errno.ENOSPC, f"{free:,} bytes are free; what was saved stays, and `bulkhead resume` goes on from there", str(place))


def _refuse(error: BulkheadError) -> NoReturn:
    print(f"\n✗ {type(error).__name__}: {error}", file=sys.stderr)
    raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


def environment(debug: bool) -> None:
    """Settings of Prefect and MLflow for a run without servers; what the user has set stays. Their databases are looked at first.

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
    if "PREFECT_API_URL" not in os.environ and not Path(os.environ.get("PREFECT_HOME", defaults["PREFECT_HOME"]), "profiles.toml").exists():
        login = f"bulkhead:{secrets.token_urlsafe(24)}"  # of the server that this process starts for itself alone
        defaults |= {"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    require_sound_databases()


@contextmanager
def server_starting() -> Iterator[None]:
    """Where Prefect will start a server for this process, have it start now, while the block imports what the flow needs.

    The server is a program of its own and takes some seconds of a second core; Prefect itself would begin at the flow's first
    call. If it does not come up, Prefect tries again there, and says what is wrong.

    Raises:
        OSError: the home cannot be written to, or has hardly any space left; before anything is started.
    """
    open_home()
    from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE  # after `environment`: Prefect reads its settings once

    if PREFECT_API_URL.value() or not PREFECT_SERVER_ALLOW_EPHEMERAL_MODE.value():
        yield
        return
    from tasks.embedded import start

    def begin() -> None:
        with suppress(Exception):  # Prefect tries again at the flow's first call, and says what is wrong
            start()

    started = Thread(target=begin, name="server", daemon=True)
    started.start()
    yield
    started.join()  # Prefect would take one that is still starting for one that answers


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
