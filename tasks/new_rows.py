"""Compare the rows of this run with those of the last; report if the model learns nothing new."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from pydantic import ValidationError

from schemas.errors import ResumeError
from schemas.new_rows import NewRows
from schemas.records import Prepared, Registered
from tasks.context import RunContext
from tasks.say import say
from training.data.split.new_rows import find_new_rows
from training.run.record import PREPARED, REGISTERED, read


@task(
    name="count new rows",
    description="Rows of each side that the run before did not have there.",
    tags=["data"],
    cache_policy=NO_CACHE,
)
def count_new_rows(prepared: Prepared, run: RunContext) -> NewRows | None:
    """Count new rows since the last finished run of this name; None without one or its files."""
    before = _run_before(run)
    if before is None:
        return None
    run_dir, earlier = before
    found = find_new_rows(prepared.split, earlier.split, _words(run_dir))
    if found is not None:
        run.tracker.set_tags({"bulkhead.new_rows": found.sentence})
        say("new rows", found.sentence, "warn" if found.learns_nothing_new else "info")
    return found


def _run_before(run: RunContext) -> tuple[Path, Prepared] | None:
    """Return the newest other finished pipeline run of this name, with its prepared data."""
    for run_dir in sorted(
        (d for d in run.run_dir.parent.iterdir() if d.name != run.run_dir.name),
        key=lambda d: d.name,
        reverse=True,
    ):
        try:
            record = read(run_dir)
            if (
                record.kind == "pipeline"
                and record.status == "finished"
                and record.created < run_created(run)
            ):
                return run_dir, Prepared.model_validate_json((run_dir / PREPARED).read_bytes())
        except (ResumeError, OSError, ValidationError):
            continue  # a run in an older format
    return None


def run_created(run: RunContext) -> str:
    """Return when the run was started; a resumed run keeps its first start."""
    return read(run.run_dir).created


def _words(run_dir: Path) -> str:
    """Name a run `version 3` if it registered one, else by its id."""
    try:
        registered = Registered.model_validate_json((run_dir / REGISTERED).read_bytes())
    except (OSError, ValidationError):
        return f"run {run_dir.name}"
    return f"version {registered.version}" if registered.version else f"run {run_dir.name}"
