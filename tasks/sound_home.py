"""Checks of a Bulkhead home before anything starts: writable, with space, readable databases.

It loads neither Prefect nor MLflow, because every command runs it first.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from schemas.errors import IntegrityError, counted
from schemas.home import home
from schemas.scratch import remove_abandoned

LEAST_FREE_BYTES = (
    50_000_000  # for the databases of Prefect and MLflow, which a full disk can damage
)
WHOLE_CHECK_BYTES = (
    200_000_000  # up to here a database is also compared with its indexes: about a second
)
FOLDERS = ("prepared", "runs", "ledgers", "locks", "prefect", "mlartifacts")
TRACKING, HISTORY = "mlflow.db", "prefect/prefect.db"
NEW_HOME = "let BULKHEAD_HOME name a new folder"
REMEDIES = {
    TRACKING: (
        "it holds the runs, models and aliases of this home: restore it from a backup, or"
        f" {NEW_HOME} to begin again without them"
    ),
    HISTORY: (
        "it holds only the history of flow runs and deployments: move it and the files prefect.db-*"
        " away, then run again"
    ),
}


def open_home() -> None:
    """Refuse a home that cannot be used, and remove leftovers of killed processes.

    Raises:
        OSError: it is not writable, or has hardly any space left.
    """
    place = home()
    for folder in (place, *(place / name for name in FOLDERS if (place / name).is_dir())):
        handle, name = tempfile.mkstemp(prefix=".write-", dir=folder)
        os.close(handle)
        Path(name).unlink()
    free = shutil.disk_usage(place).free
    if free < LEAST_FREE_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"{free / 1e6:.1f} MB are free, at least {LEAST_FREE_BYTES / 1e6:.0f} MB are needed"
            " before anything is started",
            str(place),
        )
    sweep()


def sweep() -> None:
    """Remove temporary folders of killed processes; keep those of running ones."""
    place = home()
    remove_abandoned(
        place, place / "prepared", *(place / "runs").glob("*/*"), Path(tempfile.gettempdir())
    )


def require_sound_databases() -> None:
    """Refuse a home whose databases are damaged, or whose registry of models is missing.

    Raises:
        IntegrityError: the message names the file and what to do.
    """
    for name, remedy in REMEDIES.items():
        problem = _problem(home() / name)
        if problem:
            raise IntegrityError(
                f"{home() / name}: expected a sound SQLite database, found a damaged one"
                f" ({problem}); {remedy}"
            )
    _refuse_lost_registry()


def _problem(path: Path) -> str:
    """Return why a database cannot be used; empty if it can, is absent, or cannot be read now."""
    if not path.is_file() or not path.stat().st_size:
        return ""
    check = "integrity_check" if path.stat().st_size <= WHOLE_CHECK_BYTES else "quick_check"
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)
        ) as connection:
            found = str(connection.execute(f"pragma {check}(1)").fetchone()[0])
    except sqlite3.OperationalError:  # locked, or not permitted: its user will report it
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if found == "ok" else found.replace("\n", " ")


def _refuse_lost_registry() -> None:
    """Refuse a new registry if runs are recorded in a lost one: the next model would be promoted
    without a comparison.
    """
    database = home() / TRACKING
    if (database.is_file() and database.stat().st_size) or os.environ.get("MLFLOW_TRACKING_URI"):
        return
    address = f'"tracking_uri": "sqlite:///{database}"'
    recorded = [
        file.parent.name
        for file in (home() / "runs").glob("*/*/run.json")
        if address in file.read_text(errors="replace")
    ]
    if recorded:
        raise IntegrityError(
            f"{database}: expected the database in which "
            f"{counted(len(recorded), 'run', 'of this home is', 'of this home are')}"
            f" recorded (first: {min(recorded)}), found"
            f" {'an empty file' if database.exists() else 'no file'}; a new one would have no"
            " champion, and the next model would be promoted without being compared;"
            f" {REMEDIES[TRACKING]}"
        )
