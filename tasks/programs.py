"""Training programs while they run: their new lines, their results, several of them at once.

`run_all` runs in the main thread, which alone receives a cancellation; it then ends all programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from schemas.config import Declaration, TrainConfig
from schemas.errors import LaunchError, TrainingError
from schemas.model_config import BoostingModel
from schemas.records import TrainReport
from tasks.say import bar
from tasks.stop import SAVE_SECONDS, polled, take
from training.launch.torchrun import failure, forget_causes, start, stop
from training.run.metrics_tail import Tail
from training.run.record import RESULT, read_part
from training.tracking.mlflow import Tracker
from training.tracking.tensorboard import FOLDER, Board

POLL_SECONDS = 0.25
FORWARD_SECONDS = 3.0
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
        self.process = start(run_dir, train, kind=declaration.model.kind)

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


def written(run_dir: Path) -> int:
    """Return the time of `result.json`, 0 without one: an interrupted launch leaves one too."""
    path = run_dir / "result.json"
    return path.stat().st_mtime_ns if path.is_file() else 0


def show_progress(
    tail: Tail,
    declaration: Declaration,
    progress: Callable[[float, str], None],
    append: Callable[[dict[str, Any]], None] = lambda row: None,
) -> None:
    """Show the evaluations since the last call, as the bar's text and as table rows."""
    most, unit = most_epochs(declaration)
    for record in tail.records():
        if record["kind"] == "evaluation":
            values = record["values"]
            metric = declaration.metric
            shown = {
                f"{name}": number_text(values.get(key))
                for name, key in (
                    ("train loss", "train/loss"),
                    ("val loss", "val/loss"),
                    (f"val {metric}", f"val/{metric}"),
                )
            }
            best = "*" if values.get("best") else ""
            text = "  ".join(
                [
                    f"{unit} {record['epoch']}/{most}",
                    *(f"{name} {value}" for name, value in shown.items()),
                    best,
                ]
            ).rstrip()
            progress(min(1.0, record["epoch"] / most), text)
            append({unit: record["epoch"], "step": record.get("step"), **shown, "best": best})


def most_epochs(declaration: Declaration) -> tuple[int, str]:
    """Return the most passes over the train rows, and their name: a tree is fitted in each."""
    if isinstance(declaration.model, BoostingModel):
        return declaration.model.max_iter, "iteration"
    return declaration.train.epochs, "epoch"


def number_text(value: float | None) -> str:
    """Format a metric with four digits; a dash without one."""
    return "–" if value is None else f"{value:.4f}"


def _result(run_dir: Path) -> TrainReport:
    path = run_dir / RESULT
    if not path.is_file():
        raise LaunchError(f"the training program ended without {path}; see {run_dir / 'train.log'}")
    return read_part(run_dir, RESULT, TrainReport)
