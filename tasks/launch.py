"""Start the training program with torchrun, watch it, and end it with all its processes.

The program runs in its own session and writes to `train.log`. This process reads new lines of
`metrics.jsonl` for the progress bar and MLflow, so the program needs neither Prefect nor a tracking
server. On cancellation (a BaseException in the main thread) the agent is asked to stop and gets
time to save at the step boundary. Only then it is killed. If this process is killed, the agent ends
too (training.agent). The failing rank's cause becomes this task's error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration, TrainConfig
from schemas.errors import counted
from schemas.records import RunSpec, TrainReport
from tasks.live import table
from tasks.programs import (
    FORWARD_SECONDS,
    POLL_SECONDS,
    Program,
    number_text,
    outcome,
    run_all,
    show_progress,
    written,
)
from tasks.say import bar, say
from tasks.stop import SAVE_SECONDS, polled, take
from training.launch.nodes import Node, announce, own_address, withdraw
from training.launch.prestart import begun, taken
from training.launch.torchrun import command, forget_causes, start, stop
from training.run.metrics_tail import Tail
from training.tracking.mlflow import Tracker
from training.tracking.tensorboard import FOLDER, Board

PROFILE = "profile"


@task(
    name="train model",
    description=(
        "torchrun: one process per device, validation, early stop, best weights; resumes from the"
        " newest verified checkpoint."
    ),
    tags=["train"],
    cache_policy=NO_CACHE,
)
def train_model(spec: RunSpec, run_dir: Path, tracker: Tracker) -> TrainReport:
    """Run the training program and return its result; see `train_one`."""
    return train_one(spec, run_dir, tracker)


def train_one(spec: RunSpec, run_dir: Path, tracker: Tracker) -> TrainReport:
    """Train one model in its directory; log its files and print its outcome.

    Trees (`model.kind: boosting`) are fitted in one process, any other model by torchrun.

    Raises:
        TrainingError: the program failed; the message gives its cause.
        LaunchError: it could not start, or left no result.
    """
    report = launch(run_dir, Declaration.model_validate(spec.declaration), tracker)
    if spec.refit:  # its steps and files have the names of the estimate's, which stay
        return report
    tracker.log_artifact(run_dir / "train.log")
    tracker.log_artifact(run_dir / "metrics.jsonl")
    tracker.log_record("train.json", report)
    if (run_dir / PROFILE).is_dir():
        tracker.log_folder(run_dir / PROFILE, PROFILE)
    say(
        "train",
        f"{report.status} after {_length(spec, report)}, {report.seconds:.1f} s,"
        f" {report.rows_per_second:,.0f} rows/s",
    )
    say(
        "best",
        f"val {report.metric} {number_text(report.best_metric)} at step {report.best_step:,}; model"
        f" sha256 {report.model_sha256[:12]}",
    )
    for note in report.instabilities:
        say("", note, "warn")
    return report


def _length(spec: RunSpec, report: TrainReport) -> str:
    """Describe how long a run was, in the terms of its kind of model."""
    if spec.declaration["model"]["kind"] == "boosting":
        return counted(report.steps, "iteration")
    return f"{counted(report.epochs, 'epoch')}, {counted(report.steps, 'step')}"


def launch(run_dir: Path, declaration: Declaration, tracker: Tracker) -> TrainReport:
    """Run the training program on `resolved.json` to its end and read its result.

    Args:
        run_dir: the run directory.
        declaration: for ranks, threads and the length of the progress bar.
        tracker: gets new metrics during training.
    """
    train, before = declaration.train, written(run_dir)
    forget_causes(run_dir)
    node = announce(run_dir, train, run_dir.name)
    kind = declaration.model.kind
    process = taken(run_dir, train, node, kind) or start(run_dir, train, node, kind)
    try:
        with polled() as check_stop:
            if node:
                _invite(run_dir, node)
            _watch(process, run_dir / "metrics.jsonl", declaration, tracker, check_stop)
    except BaseException:
        take(SAVE_SECONDS)
        stop(process)
        raise
    finally:
        withdraw(run_dir)
        begun(run_dir)
    return outcome(run_dir, process.returncode, before, train.nodes)


def _invite(run_dir: Path, node: Node) -> None:
    """Print what to do on the other machines."""
    others = node.launch.nodes - 1
    say(
        "nodes",
        f"waiting at {node.launch.rendezvous} for {others} more; there, on the same shared folders:"
        f" bulkhead join {run_dir}",
        "info",
    )
    plain = command(
        node.launch.ranks_per_node,
        run_dir / "resolved.json",
        run_dir,
        node.model_copy(update={"number": 1}),
    )
    words = [
        word
        for word in plain[1:]
        if word not in ("--local-addr", own_address(node.launch.rendezvous))
    ]
    say(
        "",
        f"or, with the machine's number 1 to {others} as node-rank: python {shlex.join(words)}",
        "info",
    )


def _watch(
    process: subprocess.Popen[bytes],
    metrics: Path,
    declaration: Declaration,
    tracker: Tracker,
    check_stop: Callable[[], None],
) -> None:
    """Forward metrics to MLflow (and TensorBoard) every few seconds until the program ends.

    Also show the progress.
    """
    tail, sent, last = Tail(metrics), 0, time.monotonic()
    board = Board(metrics, metrics.parent / FOLDER) if declaration.tracking.tensorboard else None
    with (
        bar("train") as progress,
        table("metrics", "Evaluations so far; * is the best on validation rows.") as append,
    ):
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            check_stop()
            show_progress(tail, declaration, progress, append)
            if metrics.exists() and time.monotonic() - last > FORWARD_SECONDS:
                sent, last = tracker.forward_metrics(metrics, sent), time.monotonic()
                if board:
                    board.forward()
        show_progress(tail, declaration, progress, append)
    if metrics.exists():
        tracker.forward_metrics(metrics, sent)
    if board:
        board.close()


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
            f"{report.status} after {counted(report.epochs, 'epoch')}, {report.seconds:.1f} s;"
            f" {best}",
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
