"""Runs inside a run: folds of a cross-validation, trials of a search, members of an ensemble.

Each has a child run in MLflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.errors import TrackingError
from tasks.context import RunContext
from tasks.say import say
from training.tracking.mlflow import Tracker, reopen_run, start_run

MLFLOW_RUN = "mlflow_run_id"  # file with the id of a child run in MLflow
RESUMED = ("trial", "member")  # kinds that a run started again takes up


@contextmanager
def fold_runs(run: RunContext) -> Iterator[list[RunContext]]:
    """Open a run for each fold inside the cross-validation's; all end like the block.

    Each has directory `folds/<number>` and an MLflow child run.

    Raises:
        TrackingError: the tracking server could not be reached, or lacks part of a fold.
    """
    numbers = range(1, run.declaration.cv.folds + 1)
    folders = {number: run.run_dir / "folds" / str(number) for number in numbers}
    with _child_runs(run, "fold", folders, [run.declaration] * len(numbers)) as folds:
        yield folds


@contextmanager
def trial_runs(
    run: RunContext, numbers: Sequence[int], declarations: Sequence[Declaration]
) -> Iterator[list[RunContext]]:
    """Open a run for each trial inside the search's, again after a kill; they end as
    `RunContext.ends_as`.

    Each has directory `trials/<number>` and an MLflow child run.

    Raises:
        TrackingError: the tracking server could not be reached, or lacks part of a trial.
    """
    folders = {number: trial_dir(run.run_dir, number) for number in numbers}
    with _child_runs(run, "trial", folders, declarations) as trials:
        yield trials


@contextmanager
def member_run(
    run: RunContext, number: int, folder: Path, declaration: Declaration
) -> Iterator[RunContext]:
    """Open the run of a member of an ensemble inside the ensemble's, again after a kill.

    Raises:
        TrackingError: the tracking server could not be reached, or lacks part of the run.
    """
    with _child_runs(run, "member", {number: folder}, [declaration]) as (child,):
        yield child


def trial_dir(run_dir: Path, number: int) -> Path:
    """Return the directory of a trial, counted from 1."""
    return run_dir / "trials" / f"{number:03d}"


@contextmanager
def _child_runs(
    run: RunContext, kind: str, folders: dict[int, Path], declarations: Sequence[Declaration]
) -> Iterator[list[RunContext]]:
    children: list[RunContext] = []
    try:
        for (number, folder), declaration in zip(folders.items(), declarations, strict=True):
            children.append(_child(run, kind, number, folder, declaration))
        yield children
    except BaseException as error:
        for child in children:
            try:
                child.tracker.finish("FAILED" if isinstance(error, Exception) else "KILLED")
            except TrackingError as away:
                say("tracking", str(away), "warn")
        raise
    for child in children:
        child.tracker.finish(child.ends_as)


def _child(
    run: RunContext, kind: str, number: int, folder: Path, declaration: Declaration
) -> RunContext:
    folder.mkdir(parents=True, exist_ok=kind in RESUMED)
    run_id = f"{run.run_id}-{kind}-{number}"
    tags = {
        "mlflow.parentRunId": run.tracker.run_id,
        "bulkhead.flow": kind,
        f"bulkhead.{kind}": str(number),
        "bulkhead.run_dir": str(folder),
    }
    known = folder / MLFLOW_RUN
    tracker: Tracker
    if known.is_file():
        tracker = reopen_run(run.tracker.uri, known.read_text().strip())
    else:
        tracker = start_run(declaration, uri=run.tracker.uri, tags=tags, name=run_id)
        if kind in RESUMED:
            write_atomic(known, tracker.run_id)
    return RunContext(declaration, run_id, folder, tracker, run.flow_run_id)
