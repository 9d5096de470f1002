"""`run.json`: what a run says of itself, so that it can be found and continued; and the lock of the one process at work on it.

The lock is the kernel's: it ends with its process, however that ends. A run whose record says `running` and whose
lock is free was therefore killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from schemas.config import Declaration
from schemas.confinement import require_readable
from schemas.digest import write_atomic
from schemas.errors import ResumeError, first_few, shortened
from schemas.home import home
from schemas.load import declare
from schemas.records import Record

RECORD = "run.json"
LOCK = "run.lock"
DECLARED, SPEC, PREPARED = "declaration.json", "resolved.json", "prepared.json"
LOCK_SECONDS = 1.0  # someone who only looks whether a run is at work holds the lock for a moment

RESUMED = ("pipeline", "train")  # kinds that can be gone on with; the others are started anew
Kind = Literal["pipeline", "train", "crossvalidate", "reevaluate"]
Status = Literal["running", "finished", "failed", "killed"]


class StartedRun(Record):
    """`run.json`.

    `kind`: the flow that started it. `tracking_uri`: credentials masked. `flow_run_ids`: of the first start and of
    each resumption. `commit`: of the code that started it. `cause`: of a run that failed or was stopped.
    """

    run_id: str
    name: str
    kind: Kind
    tracking_uri: str
    mlflow_run_id: str
    flow_run_ids: tuple[str, ...] = ()
    commit: str | None = None
    created: str
    status: Status = "running"
    cause: str = ""

    def write(self, run_dir: Path) -> None:
        """Replace the record in a run directory, whole or not at all."""
        write_atomic(run_dir / RECORD, self.model_dump_json(indent=1))


def read(run_dir: Path) -> StartedRun:
    """The record in a run directory.

    Raises:
        ResumeError: the folder holds none.
    """
    try:
        return StartedRun.model_validate_json((run_dir / RECORD).read_bytes())
    except (OSError, ValidationError) as error:
        raise ResumeError(
            f"{run_dir}: expected the directory of a run, with its {RECORD} ({str(error).splitlines()[0]}); `bulkhead resume` lists them"
        ) from error


def started_declaration(run_dir: Path) -> Declaration:
    """What the run was declared to be when it was started.

    Raises:
        ResumeError: the file that says so is gone or damaged.
    """
    try:
        tree = json.loads((run_dir / DECLARED).read_bytes())
    except (OSError, ValueError) as error:
        raise ResumeError(
            f"{run_dir}: what the run was declared to be cannot be read ({error}), so there is nothing to go on from; start anew with `bulkhead run FILE` (data that were prepared are reused)"
        ) from None
    return declare(tree, str(run_dir / DECLARED))


def all_runs() -> dict[Path, StartedRun]:
    """Every run of this home, newest first; folders without a readable record are left out."""
    found = {}
    for file in (home() / "runs").glob(f"*/*/{RECORD}"):
        try:
            found[file.parent] = read(file.parent)
        except ResumeError:
            continue
    return dict(sorted(found.items(), key=lambda item: item[1].created, reverse=True))


def find(run: str) -> Path:
    """The directory of a run that is named by its directory, its id or the id of its MLflow run.

    Raises:
        ResumeError: there is none, with those that could be continued.
    """
    folder = Path(run)
    if _is_folder(run):
        require_readable(run, "run")
        read(folder)
        return folder.absolute()
    for run_dir, record in all_runs().items():
        if run in (record.run_id, record.mlflow_run_id):
            return run_dir
    others = first_few(record.run_id for record in resumable().values())
    raise ResumeError(f"{shortened(run)}: no run of {home()} has this directory, id or MLflow run id; runs that can be resumed: {others or 'none'}")


def _is_folder(run: str) -> bool:
    try:
        return Path(run).is_dir()
    except (OSError, ValueError):  # no path at all: too long, or NUL in it
        return False


def resumable() -> dict[Path, StartedRun]:
    """The runs of this home that `bulkhead resume` would continue, newest first."""
    return {d: r for d, r in all_runs().items() if r.status != "finished" and r.kind in RESUMED and (d / DECLARED).is_file() and not is_held(d)}


def settle(run_dir: Path, cause: str) -> None:
    """Record that a run was killed whose process could not do so itself; nothing where it has ended or is at work after all."""
    with suppress(ResumeError), held(run_dir):
        record = read(run_dir)
        if record.status == "running":
            record.model_copy(update={"status": "killed", "cause": cause}).write(run_dir)


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Be the one process at work on a run directory.

    Raises:
        ResumeError: another process is.
    """
    with open(run_dir / LOCK, "a+") as file:  # not inherited by programs that are started
        deadline = time.monotonic() + LOCK_SECONDS
        while not locked(file.fileno()):
            if time.monotonic() > deadline:
                raise _still_going(run_dir)
            time.sleep(0.05)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_held(run_dir: Path) -> bool:
    """Whether a process is at work on a run directory."""
    try:
        with open(run_dir / LOCK, "rb") as file:
            return not locked(file.fileno())
    except FileNotFoundError:
        return False


def require_free(run_dir: Path) -> None:
    """Refuse a run directory that a process is at work on.

    Raises:
        ResumeError: naming the process.
    """
    if is_held(run_dir):
        raise _still_going(run_dir)


def _still_going(run_dir: Path) -> ResumeError:
    process = (run_dir / LOCK).read_text().strip() or "unknown"
    return ResumeError(f"{run_dir}: the run is still going (process {process}); wait for its end, or stop that process first")


def newest_step(run_dir: Path) -> int:
    """Optimizer step of the newest checkpoint, which is not verified; 0 where there is none."""
    steps = [path.name.removeprefix("step-") for path in (run_dir / "checkpoints").glob("step-*")]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def locked(handle: int) -> bool:
    """Take the lock of an open file, where no other process has it; it goes with the process."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
