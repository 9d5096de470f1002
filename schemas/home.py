"""Where Bulkhead keeps its files: one folder, `BULKHEAD_HOME` or `.bulkhead` in the working
directory.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from schemas.errors import ConfigError

FOLDERS = ("runs", "prepared", "prefect", "keys")  # by one of these a folder is known as a home


def home() -> Path:
    """Return the folder of prepared data, ledgers, runs, Prefect's and MLflow's databases; created
    when absent.

    It is its owner's alone (mode 0700): it holds rows of the data, models and keys.

    Raises:
        ConfigError: it cannot be created, or is no folder.
    """
    path = Path(os.environ.get("BULKHEAD_HOME", ".bulkhead")).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        _close(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be the folder of Bulkhead's files: {error.strerror}; let BULKHEAD_HOME"
            " name one that you may write to"
        ) from error
    return path


def _close(path: Path) -> None:
    """Take others' rights from a home of an earlier version; a folder that is not ours, or no home
    yet, stays as it is.
    """
    found = path.stat()
    if not stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
        return
    if any((path / name).is_dir() for name in FOLDERS):
        with suppress(OSError):  # a read-only one can still be read
            path.chmod(0o700)


def server_login() -> str:
    """Return `user:password` of the servers of this home, made when absent and kept in
    `keys/servers` (mode 0600).

    Of two processes at once one makes it, and both return the same.
    """
    folder = home() / "keys"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "servers"
    if not path.exists():
        handle, name = tempfile.mkstemp(prefix=".servers.", dir=folder)  # mode 0600
        with os.fdopen(handle, "w") as file:
            file.write(f"bulkhead:{secrets.token_urlsafe(24)}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(name, path)  # fails where another process was first
        except FileExistsError:
            pass
        finally:
            Path(name).unlink()
    return path.read_text().strip()
