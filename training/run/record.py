"""`run.json`: the record that finds and continues a run; and the lock of its one process.

The lock is the kernel's: it ends with its process, even when it is killed. A run with status
`running` and a free lock was therefore killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel

from schemas.config import Declaration
from schemas.confinement import require_readable
from schemas.errors import IntegrityError, ResumeError, first_few, shortened
from schemas.home import home
from schemas.load import declare
from schemas.records import Record
from schemas.seal import read_record, read_sealed, seal_path, write_sealed

RECORD = "run.json"
LOCK = "run.lock"
DECLARED, SPEC, PREPARED, REGISTERED, RESULT = (
    "declaration.json",
    "resolved.json",
    "prepared.json",
    "registered.json",
    "result.json",
)
START_AGAIN = (
    "restore it from a backup, or start again with `bulkhead run FILE` (data that were prepared are"
    " reused)"
)
LOCK_SECONDS = 1.0  # a process that only checks if a run is active holds the lock for a moment

RESUMED = (
    "pipeline",
    "train",
    "search",
)  # kinds that can be continued; the others are started again
Kind = Literal["pipeline", "train", "crossvalidate", "reevaluate", "search"]
Status = Literal["running", "finished", "failed", "killed"]
Part = TypeVar("Part", bound=BaseModel)


class StartedRun(Record):
    """`run.json`.

    `kind`: the flow that started it. `tracking_uri`: credentials masked. `flow_run_ids`: ids of the
    first start and of each resumption. `commit`: commit of the code that started it. `cause`: why a
    run failed or was stopped. `declaration_sha256`: digest of `declaration.json`; empty in runs of
    earlier versions, whose records have no seals.
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
    declaration_sha256: str = ""

    def write(self, run_dir: Path) -> None:
        """Replace the record in a run directory, completely or not at all."""
        write_sealed(run_dir / RECORD, self.model_dump_json(indent=1))


def read(run_dir: Path) -> StartedRun:
    """Return the record in a run directory.

    Raises:
        ResumeError: the folder contains none, or it was changed after it was written.
    """
    if not has_part(run_dir, RECORD):
        raise ResumeError(
            f"{run_dir}: expected the directory of a run, with its {RECORD}, found none; `bulkhead"
            " resume` lists them"
        )
    try:
        return read_record(run_dir / RECORD, StartedRun, START_AGAIN, required=False)
    except (OSError, IntegrityError) as error:
        raise ResumeError(f"the record of a run cannot be believed: {error}") from error


def has_part(run_dir: Path, name: str) -> bool:
    """Return True if a run wrote a record, also if only its seal is left."""
    return (run_dir / name).exists() or seal_path(run_dir / name).exists()


def read_part(run_dir: Path, name: str, record: type[Part]) -> Part:
    """Return a record in a run directory after its seal matches; earlier versions have no seals.

    Raises:
        IntegrityError: it is missing, was changed after it was written, or is something else.
    """
    return read_record(run_dir / name, record, START_AGAIN, required=_is_sealed(run_dir))


def _is_sealed(run_dir: Path) -> bool:
    """Return True if the records of a run have seals.

    A folder that is no run may contain records written by hand.
    """
    return seal_path(run_dir / RECORD).exists()


def started_declaration(run_dir: Path) -> Declaration:
    """Return the declaration at the start of a run.

    Raises:
        ResumeError: the file is missing or damaged, or is not the one that the run was started
            with.
    """
    recorded = read(run_dir).declaration_sha256
    try:
        text = read_sealed(run_dir / DECLARED, START_AGAIN, required=bool(recorded))
        if recorded not in ("", hashlib.sha256(text).hexdigest()):
            raise IntegrityError(
                f"{run_dir / DECLARED}: is not the declaration that {RECORD} names"
            )
        tree = json.loads(text)
    except (OSError, ValueError) as error:
        why = str(error).removesuffix(f"; {START_AGAIN}")
        raise ResumeError(
            "what the run was declared to be cannot be read, so there is nothing to go on from:"
            f" {why}; {START_AGAIN}"
        ) from None
    return declare(tree, str(run_dir / DECLARED))


def all_runs() -> dict[Path, StartedRun]:
    """Return every run of this home, newest first, without folders that lack a readable record."""
    found = {}
    for file in (home() / "runs").glob(f"*/*/{RECORD}"):
        try:
            found[file.parent] = read(file.parent)
        except ResumeError:
            continue
    return dict(sorted(found.items(), key=lambda item: item[1].created, reverse=True))


def find(run: str) -> Path:
    """Return the directory of a run named by its directory, its id or the id of its MLflow run.

    Raises:
        ResumeError: there is none; the message lists those that could be continued.
    """
    folder = Path(run)
    if _is_folder(run):
        require_readable(run, "run")
        read(folder)
        return folder.absolute()
    for run_dir, record in all_runs().items():
        if run in (record.run_id, record.mlflow_run_id):
            return run_dir
    for run_dir in (home() / "runs").glob("*/*"):
        if run_dir.name == run:
            read(run_dir)  # raises the damage for which it was left out above
    others = first_few(record.run_id for record in resumable().values())
    raise ResumeError(
        f"{shortened(run)}: no run of {home()} has this directory, id or MLflow run id; runs that"
        f" can be resumed: {others or 'none'}"
    )


def _is_folder(run: str) -> bool:
    try:
        return Path(run).is_dir()
    except (OSError, ValueError):  # not a path: too long, or NUL in it
        return False


def resumable() -> dict[Path, StartedRun]:
    """Return the runs of this home that `bulkhead resume` would continue, newest first."""
    return {
        d: r
        for d, r in all_runs().items()
        if r.status != "finished"
        and r.kind in RESUMED
        and (d / DECLARED).is_file()
        and not is_held(d)
    }


def settle(run_dir: Path, cause: str) -> None:
    """Record that a run was killed, unless it has ended or is running after all."""
    with suppress(ResumeError), held(run_dir):
        record = read(run_dir)
        if record.status == "running":
            record.model_copy(update={"status": "killed", "cause": cause}).write(run_dir)


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Be the only process that works on a run directory.

    Raises:
        ResumeError: another process works on it.
    """
    with open(run_dir / LOCK, "a+") as file:  # not inherited by started programs
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
    """Return True if a process works on a run directory."""
    try:
        with open(run_dir / LOCK, "rb") as file:
            return not locked(file.fileno())
    except FileNotFoundError:
        return False


def require_free(run_dir: Path) -> None:
    """Refuse a run directory that a process works on.

    Raises:
        ResumeError: a process works on it; the message names it.
    """
    if is_held(run_dir):
        raise _still_going(run_dir)


def _still_going(run_dir: Path) -> ResumeError:
    process = (run_dir / LOCK).read_text(errors="replace").strip() or "unknown"
    return ResumeError(
        f"{run_dir}: the run is still going (process {process}); wait for its end, or stop that"
        " process first"
    )


def newest_step(run_dir: Path) -> int:
    """Return the optimizer step of the newest checkpoint, unverified; 0 without one.

    Of a run with members it is the largest step of a member.
    """
    found = [*run_dir.glob("checkpoints/step-*"), *run_dir.glob("members/*/checkpoints/step-*")]
    steps = [path.name.removeprefix("step-") for path in found]
    return max((int(step) for step in steps if step.isdigit()), default=0)


def locked(handle: int) -> bool:
    """Lock an open file if no other process has; the lock ends with the process."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
