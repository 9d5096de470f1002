"""Find the runs that can be continued, and the chosen one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from schemas.errors import ResumeError
from schemas.parameters import shown
from training.run.record import (
    RESUMED,
    StartedRun,
    find,
    newest_step,
    read,
    require_free,
    resumable,
    started_declaration,
)

HOW = {"running": "killed", "killed": "stopped", "failed": "failed"}


def _started(run: str) -> str:
    find(run)
    return run


StartedRunName = Annotated[
    str,
    shown(
        "Run",
        "Directory of a run, its id (20261121-101500-3f2a0c), or the id of its MLflow run;"
        " `bulkhead resume` lists them.",
        min_length=1,
    ),
    AfterValidator(_started),
]


class Unfinished(NamedTuple):
    """A run that can be continued."""

    run_dir: Path
    started: StartedRun

    @property
    def kind(self) -> str:
        """Flow that started it: `pipeline` or `train`."""
        return self.started.kind

    @property
    def row(self) -> dict[str, str | int]:
        """Columns for choosing a run: run, model, how and where it ended."""
        return {
            "run_id": self.started.run_id,
            "name": self.started.name,
            "state": HOW[self.started.status],
            "checkpoint_step": newest_step(self.run_dir),
            "cause": self.started.cause.partition("\n")[0],
            "run_dir": str(self.run_dir),
        }


def unfinished_runs() -> list[Unfinished]:
    """List the runs of this home that can be continued, newest first."""
    return [Unfinished(run_dir, started) for run_dir, started in resumable().items()]


def unfinished(run: str) -> Unfinished | None:
    """Return the run of a directory, run id or MLflow run id; print a line and return None if
    finished.

    Raises:
        ResumeError: there is no such run, it is still running, or it left nothing to continue from.
    """
    from tasks.say import say  # loads Prefect, which completing a command line should not wait for

    run_dir = find(run)
    found = Unfinished(run_dir, read(run_dir))
    if found.started.status == "finished":
        say(
            "resume",
            f"{found.started.run_id} is finished: nothing to do; its files lie in {run_dir}",
        )
        return None
    if found.kind not in RESUMED:
        raise ResumeError(
            f"{run_dir}: a run of the flow {found.kind} is not gone on with; start it again, what"
            " was prepared is reused"
        )
    require_free(run_dir)
    started_declaration(run_dir)
    return found
