"""Lock file that names the `bulkhead up` of this home with its addresses; any exit unlocks it."""

from __future__ import annotations

import fcntl
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from schemas.errors import ConfigError
from schemas.home import home, server_login


class Servers(NamedTuple):
    """Addresses of Prefect's UI and of MLflow, and the process that runs them; commands of the
    home may use Prefect's server if it is `shared`.
    """

    prefect: str
    mlflow: str
    pid: int
    shared: bool = False


def _file() -> Path:
    return home() / "up.json"


def running_servers() -> Servers | None:
    """Return the running servers of this home; None if nobody holds the file's lock."""
    try:
        with _file().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Servers(**json.load(file))
    except (OSError, ValueError, TypeError):  # absent, or still being written
        return None
    return None


@contextmanager
def claimed(servers: Servers) -> Iterator[None]:
    """Claim this home for these servers while the block runs.

    Raises:
        ConfigError: another `bulkhead up` holds it; the message gives its addresses.
    """
    handle = os.open(_file(), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            first = running_servers()
            where = (
                f": Prefect {first.prefect}, MLflow {first.mlflow} (process {first.pid})"
                if first
                else ""
            )
            raise ConfigError(
                f"another `bulkhead up` serves {home()}{where}; use that one, stop it, or let"
                " BULKHEAD_HOME name another folder"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(servers._asdict()).encode())
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def wait_for_prefect(default: str, seconds: float) -> None:
    """Wait until Prefect's server answers or the time is over, before Prefect reads its settings.

    The password is known only then.

    Args:
        default: address of the API if neither the environment nor a running `bulkhead up` names
            one.
        seconds: longest wait.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = running_servers()
        address = os.environ.get("PREFECT_API_URL") or (
            f"{found.prefect}/api" if found else default
        )
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10):  # noqa: S310 - the user's own setting
                return
        except (OSError, ValueError):
            time.sleep(1.0)


def log_in() -> None:
    """Set the password of this home's servers if the environment names them without one."""
    found = running_servers()
    if found is None:
        return
    api, tracking = os.environ.get("PREFECT_API_URL", ""), os.environ.get("MLFLOW_TRACKING_URI", "")
    if _same(api.removesuffix("/").removesuffix("/api"), found.prefect):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", server_login())
    if _same(tracking, found.mlflow):
        set_mlflow_login(server_login())


def set_mlflow_login(login: str) -> None:
    """Give MLflow's clients of this process a user and a password, unless they have one."""
    user, _, password = login.partition(":")
    if "MLFLOW_TRACKING_USERNAME" not in os.environ and "MLFLOW_TRACKING_TOKEN" not in os.environ:
        os.environ |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}


def used_servers(tracking_uri: str) -> str:
    """Return the servers that this process used, or that serve its home, with their addresses."""
    from training.run.provenance import masked

    ours, api = running_servers(), os.environ.get("PREFECT_API_URL")
    prefect = api.removesuffix("/").removesuffix("/api") if api else ours.prefect if ours else ""
    mlflow = tracking_uri if tracking_uri.startswith("http") else ours.mlflow if ours else ""
    return ", ".join(
        f"{name} {masked(address)}"
        for name, address in (("Prefect", prefect), ("MLflow", mlflow))
        if address
    )


def _same(given: str, known: str) -> bool:
    return given.rstrip("/").replace("//localhost:", "//127.0.0.1:") == known
