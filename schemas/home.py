"""Home folder of Bulkhead's files: `BULKHEAD_HOME`, or `.bulkhead` in the working directory."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from schemas.errors import ConfigError

FOLDERS = ("runs", "prepared", "prefect", "keys")  # a folder with one of these is a home


def home() -> Path:
    """Return the folder of data, ledgers, runs and the databases of Prefect and MLflow; create it.

    Only its owner can read it (mode 0700): it contains rows of the data, models and keys.

    Raises:
        ConfigError: it cannot be created, or is not a folder.
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
    """Remove others' rights from a home of an earlier version; skip other folders."""
    found = path.stat()
    if not stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid != os.geteuid():
        return
    if any((path / name).is_dir() for name in FOLDERS):
        with suppress(OSError):  # a read-only home is still readable
            path.chmod(0o700)


def server_login() -> str:
    """Return `user:password` of the servers of this home; create it in `keys/servers` (mode 0600).

    If two processes run at once, one creates it and both return the same.
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
            os.link(name, path)  # fails if another process was first
        except FileExistsError:
            pass
        finally:
            Path(name).unlink()
    return path.read_text().strip()
