"""Run several training programs at once, each in its own directory: folds, and trials of a search.

The loop runs in the main thread, which alone receives a cancellation; it then ends all programs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration, TrainConfig
from schemas.records import RunSpec, TrainReport
from tasks.launch import (
    FORWARD_SECONDS,
    POLL_SECONDS,
    Tail,
    number_text,
    outcome,
    show_progress,
    written,
)
from tasks.say import bar, say
from tasks.stop import SAVE_SECONDS, polled, take
from training.launch.torchrun import forget_causes, start, stop
from training.tracking.mlflow import Tracker
from training.tracking.tensorboard import FOLDER, Board

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Show = Callable[[float, str], None]


class Work(Protocol[T_co]):
    """One of several programs, with what is to be done while it runs and at its end."""

    program: Program

    def look(self, show: Show) -> None:
        """Look at the running program, several times a second."""

    def end(self) -> T_co:
        """Return the result of the program, which has ended."""


class Program:
    """A running training program, and its forwarded metrics.

    Args:
        run_dir: with its `resolved.json`.
        declaration: for the length of the progress bar.
        train: for ranks and threads.
        tracker: gets new metrics during training.
    """

    def __init__(
        self, run_dir: Path, declaration: Declaration, train: TrainConfig, tracker: Tracker
    ) -> None:
        self.run_dir, self.declaration, self.tracker, self.metrics = (
            run_dir,
            declaration,
            tracker,
            run_dir / "metrics.jsonl",
        )
        self.before, self.sent, self.last = written(run_dir), 0, time.monotonic()
        forget_causes(run_dir)
        self.tail = Tail(self.metrics)
        self.board = (
            Board(self.metrics, run_dir / FOLDER) if declaration.tracking.tensorboard else None
        )
        self.process = start(run_dir, train)

    def look(self, show: Show) -> None:
        """Show new evaluations, and forward the metrics every few seconds."""
        show_progress(self.tail, self.declaration, show)
        if self.metrics.exists() and time.monotonic() - self.last > FORWARD_SECONDS:
            self._forward()

    def close(self) -> None:
        """Forward the remaining metrics of a program that has ended."""
        if self.metrics.exists():
            self._forward()
        if self.board:
            self.board.close()

    def end(self) -> TrainReport:
        """Return the result of a program that has ended; forward the remaining metrics."""
        self.close()
        return outcome(self.run_dir, self.process.returncode, self.before)

    def _forward(self) -> None:
        self.sent, self.last = (
            self.tracker.forward_metrics(self.metrics, self.sent),
            time.monotonic(),
        )
        if self.board:
            self.board.forward()


def run_all(starts: Sequence[Callable[[], Work[T]]], limit: int, noun: str) -> list[T]:
    """Run programs to their ends, at most `limit` at once; return their results in order.

    Args:
        starts: each starts a program.
        limit: most programs at once.
        noun: name of one in the progress bar, e.g. `fold`.
    """
    waiting, running, done = list(range(len(starts))), dict[int, Work[T]](), dict[int, T]()
    try:
        with polled() as check_stop, bar(f"{noun}s") as progress:
            while waiting or running:
                while waiting and len(running) < limit:
                    number = waiting.pop(0)
                    running[number] = starts[number]()
                time.sleep(POLL_SECONDS)
                check_stop()
                for number, work in list(running.items()):
                    name, finished = f"{noun} {number + 1}", len(done)

                    def show(
                        share: float, text: str, name: str = name, finished: int = finished
                    ) -> None:
                        progress((finished + share) / len(starts), f"{name}  {text}")

                    work.look(show)
                    if work.program.process.poll() is not None:
                        del running[number]
                        done[number] = work.end()
    except BaseException:
        take(SAVE_SECONDS)
        stop(*(work.program.process for work in running.values()))
        raise
    return [done[number] for number in range(len(starts))]


class _Fold:
    """A fold's program; its failure ends the others."""

    def __init__(self, run_dir: Path, declaration: Declaration, tracker: Tracker) -> None:
        self.program = Program(run_dir, declaration, shared_cores(declaration), tracker)
        self.look, self.end = self.program.look, self.program.end


@task(
    name="train folds",
    description=(
        "torchrun for each fold, up to cv.concurrency at once; a cancelled run ends all of them."
    ),
    tags=["train"],
    cache_policy=NO_CACHE,
)
def train_folds(
    specs: Sequence[RunSpec], run_dirs: Sequence[Path], trackers: Sequence[Tracker]
) -> list[TrainReport]:
    """Return the result of each fold's training, in order; the first failure ends the others.

    It runs in the main thread, which alone receives a cancellation, and is not mapped over threads.

    Raises:
        TrainingError: a fold failed; the message gives the failing rank's cause.
        LaunchError: torchrun could not start, or left no result.
    """
    declaration = Declaration.model_validate(specs[0].declaration)
    starts = [
        lambda run_dir=run_dir, tracker=tracker: _Fold(run_dir, declaration, tracker)
        for run_dir, tracker in zip(run_dirs, trackers, strict=True)
    ]
    reports = run_all(starts, declaration.cv.concurrency, "fold")
    for number, (report, run_dir, tracker) in enumerate(
        zip(reports, run_dirs, trackers, strict=True), start=1
    ):
        tracker.log_artifact(run_dir / "train.log")
        tracker.log_artifact(run_dir / "metrics.jsonl")
        tracker.log_record("train.json", report)
        best = f"val {report.metric} {number_text(report.best_metric)} at step {report.best_step:,}"
        say(
            f"fold {number}",
            f"{report.status} after {report.epochs} epochs, {report.seconds:.1f} s; {best}",
        )
    return reports


def shared_cores(declaration: Declaration) -> TrainConfig:
    """Divide the cores among the folds that train at once, unless threads are declared."""
    train = declaration.train
    threads = train.threads or max(
        1,
        (os.cpu_count() or 1)
        // (train.ranks * min(declaration.cv.concurrency, declaration.cv.folds)),
    )
    return train.model_copy(update={"threads": threads})
