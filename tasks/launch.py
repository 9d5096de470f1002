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
from functools import partial
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration, TrainConfig
from schemas.errors import LaunchError, TrainingError
from schemas.records import RunSpec, TrainReport
from tasks.live import table
from tasks.say import bar, say
from tasks.stop import SAVE_SECONDS, polled, take
from training.launch.nodes import Node, announce, own_address, withdraw
from training.launch.torchrun import command, failure, forget_causes, start, stop
from training.run.metrics_tail import Tail
from training.run.record import RESULT, read_part
from training.tracking.mlflow import Tracker
from training.tracking.tensorboard import FOLDER, Board

PROFILE = "profile"
POLL_SECONDS = 0.25
FORWARD_SECONDS = 3.0


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
    """Train one network in its directory; log its files and print its outcome.

    Raises:
        TrainingError: the program failed; the message gives the failing rank's cause.
        LaunchError: torchrun could not start, or left no result.
    """
    declaration = Declaration.model_validate(spec.declaration)
    report = launch(run_dir, declaration, tracker)
    tracker.log_artifact(run_dir / "train.log")
    tracker.log_artifact(run_dir / "metrics.jsonl")
    tracker.log_record("train.json", report)
    if (run_dir / PROFILE).is_dir():
        tracker.log_folder(run_dir / PROFILE, PROFILE)
    say(
        "train",
        f"{report.status} after {report.epochs} epochs, {report.steps:,} steps,"
        f" {report.seconds:.1f} s, {report.rows_per_second:,.0f} rows/s",
    )
    say(
        "best",
        f"val {report.metric} {_number(report.best_metric)} at step {report.best_step:,}; model"
        f" sha256 {report.model_sha256[:12]}",
    )
    for note in report.instabilities:
        say("", note, "warn")
    return report


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
    reports = launch_all(run_dirs, declaration, trackers, declaration.cv.concurrency)
    for number, (report, run_dir, tracker) in enumerate(
        zip(reports, run_dirs, trackers, strict=True), start=1
    ):
        tracker.log_artifact(run_dir / "train.log")
        tracker.log_artifact(run_dir / "metrics.jsonl")
        tracker.log_record("train.json", report)
        best = f"val {report.metric} {_number(report.best_metric)} at step {report.best_step:,}"
        say(
            f"fold {number}",
            f"{report.status} after {report.epochs} epochs, {report.seconds:.1f} s; {best}",
        )
    return reports


def launch_all(
    run_dirs: Sequence[Path], declaration: Declaration, trackers: Sequence[Tracker], limit: int
) -> list[TrainReport]:
    """Run the training program in each directory to its end, at most `limit` at once.

    Args:
        run_dirs: each with its `resolved.json`.
        declaration: for ranks, threads and the length of the progress bar.
        trackers: get new metrics during training.
        limit: most programs at once.
    """
    waiting, running, done = (
        list(range(len(run_dirs))),
        dict[int, _Launch](),
        dict[int, TrainReport](),
    )
    try:
        with polled() as check_stop, bar("folds") as progress:
            while waiting or running:
                while waiting and len(running) < limit:
                    number = waiting.pop(0)
                    running[number] = _Launch(run_dirs[number], declaration, trackers[number])
                time.sleep(POLL_SECONDS)
                check_stop()
                for number, going in list(running.items()):
                    going.look(partial(_shown, progress, number, len(done), len(run_dirs)))
                    if going.process.poll() is not None:
                        del running[number]
                        done[number] = going.end()
    except BaseException:
        take(SAVE_SECONDS)
        stop(*(going.process for going in running.values()))
        raise
    return [done[number] for number in range(len(run_dirs))]


def shared_cores(declaration: Declaration) -> TrainConfig:
    """Divide the cores among the folds that train at once, unless threads are declared."""
    train = declaration.train
    threads = train.threads or max(
        1,
        (os.cpu_count() or 1)
        // (train.ranks * min(declaration.cv.concurrency, declaration.cv.folds)),
    )
    return train.model_copy(update={"threads": threads})


def _shown(
    progress: Callable[[float, str], None],
    number: int,
    finished: int,
    total: int,
    share: float,
    text: str,
) -> None:
    progress((finished + share) / total, f"fold {number + 1}  {text}")


class _Launch:
    """One of several running training programs, and its forwarded metrics."""

    def __init__(self, run_dir: Path, declaration: Declaration, tracker: Tracker) -> None:
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
        self.process = start(run_dir, shared_cores(declaration))

    def look(self, progress: Callable[[float, str], None]) -> None:
        """Show new evaluations, and forward the metrics every few seconds."""
        _progress(self.tail, self.declaration, progress)
        if self.metrics.exists() and time.monotonic() - self.last > FORWARD_SECONDS:
            self._forward()

    def end(self) -> TrainReport:
        """Return the result of a program that has ended; forward the remaining metrics."""
        if self.metrics.exists():
            self._forward()
        if self.board:
            self.board.close()
        return outcome(self.run_dir, self.process.returncode, self.before)

    def _forward(self) -> None:
        self.sent, self.last = (
            self.tracker.forward_metrics(self.metrics, self.sent),
            time.monotonic(),
        )
        if self.board:
            self.board.forward()


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
    process = start(run_dir, train, node)
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
    return outcome(run_dir, process.returncode, before, train.nodes)


def outcome(run_dir: Path, code: int, before: int, nodes: int = 1) -> TrainReport:
    """Return the result of a launch that ended with `code`.

    Args:
        run_dir: the run directory.
        code: exit code of the agent.
        before: time of `result.json` before the launch (see `written`).
        nodes: machines of the launch.

    Raises:
        BulkheadError: the launch left no result; with the class and cause of the failing rank.
        TrainingError: it was interrupted from outside.
    """
    if code != 0 and written(run_dir) == before:
        raise failure(run_dir, code, nodes)
    report = _result(run_dir)
    if report.status == "interrupted":
        raise TrainingError(
            f"training was interrupted from outside after step {report.steps:,}; it saved its state"
            f" at the step boundary in {run_dir / 'checkpoints'}"
        )
    return report


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


def written(run_dir: Path) -> int:
    """Return the time of `result.json`, 0 without one: an interrupted launch leaves one too."""
    path = run_dir / "result.json"
    return path.stat().st_mtime_ns if path.is_file() else 0


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
            _progress(tail, declaration, progress, append)
            if metrics.exists() and time.monotonic() - last > FORWARD_SECONDS:
                sent, last = tracker.forward_metrics(metrics, sent), time.monotonic()
                if board:
                    board.forward()
        _progress(tail, declaration, progress, append)
    if metrics.exists():
        tracker.forward_metrics(metrics, sent)
    if board:
        board.close()


def _progress(
    tail: Tail,
    declaration: Declaration,
    progress: Callable[[float, str], None],
    append: Callable[[dict[str, Any]], None] = lambda row: None,
) -> None:
    """Show the evaluations since the last call, as the bar's text and as table rows."""
    for record in tail.records():
        if record["kind"] == "evaluation":
            values = record["values"]
            metric = declaration.metric
            shown = {
                f"{name}": _number(values.get(key))
                for name, key in (
                    ("train loss", "train/loss"),
                    ("val loss", "val/loss"),
                    (f"val {metric}", f"val/{metric}"),
                )
            }
            best = "*" if values.get("best") else ""
            text = "  ".join(
                [
                    f"epoch {record['epoch']}/{declaration.train.epochs}",
                    *(f"{name} {value}" for name, value in shown.items()),
                    best,
                ]
            ).rstrip()
            progress(min(1.0, record["epoch"] / declaration.train.epochs), text)
            append({"epoch": record["epoch"], "step": record.get("step"), **shown, "best": best})


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _result(run_dir: Path) -> TrainReport:
    path = run_dir / RESULT
    if not path.is_file():
        raise LaunchError(f"the training program ended without {path}; see {run_dir / 'train.log'}")
    return read_part(run_dir, RESULT, TrainReport)
