"""Start the training program with torchrun, watch it, and end it whole.

The program runs in its own session and writes to `train.log`; this process tails `metrics.jsonl` for the
progress bar and for MLflow, so that the program itself needs neither Prefect nor a tracking server.
On cancellation (a BaseException in the main thread) the agent is told to stop, given time to save at the
step boundary, and killed only after that; where this process is killed itself, the agent follows it (training.agent).
The failing rank's cause becomes this task's error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas import errors
from schemas.config import Declaration
from schemas.errors import BulkheadError, LaunchError, TrainingError
from schemas.records import RunSpec, TrainReport
from tasks.say import bar, say
from training.guard import LAUNCHER
from training.tracking import Tracker

POLL_SECONDS = 0.25
FORWARD_SECONDS = 3.0
RANK_GRACE_SECONDS = 15  # for a checkpoint at the step boundary, before the agent kills its ranks
GRACE_SECONDS = 20.0  # before the agent is killed; Prefect kills 30 s after it has asked


def command(ranks: int, resolved: Path, run_dir: Path) -> list[str]:
    """The torchrun call; port 0 lets concurrent runs on one host choose free ports."""
    launch = ["-m", "training.agent", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--max-restarts", "0"]
    return [sys.executable, *launch, "--shutdown-timeout", str(RANK_GRACE_SECONDS), "-m", "training.main", "--config", str(resolved), "--run-dir", str(run_dir)]


@task(
    name="train model",
    description="torchrun: one process per device, validation, early stop, best weights; resumes from the newest verified checkpoint.",
    tags=["train"],
    cache_policy=NO_CACHE,
)
def train_model(spec: RunSpec, run_dir: Path, tracker: Tracker) -> TrainReport:
    """The outcome of the training program, after it ended well.

    Raises:
        TrainingError: the program failed; the message holds the failing rank's cause.
        LaunchError: torchrun could not start, or left no result.
    """
    declaration = Declaration.model_validate(spec.declaration)
    report = launch(run_dir, declaration, tracker)
    tracker.log_artifact(run_dir / "train.log")
    tracker.log_artifact(run_dir / "metrics.jsonl")
    tracker.log_record("train.json", report)
    say("train", f"{report.status} after {report.epochs} epochs, {report.steps:,} steps, {report.seconds:.1f} s, {report.rows_per_second:,.0f} rows/s")
    say("best", f"val {report.metric} {_number(report.best_metric)} at step {report.best_step:,}; model sha256 {report.model_sha256[:12]}")
    for note in report.instabilities:
        say("", note, "warn")
    return report


def launch(run_dir: Path, declaration: Declaration, tracker: Tracker) -> TrainReport:
    """Run the training program on `resolved.json` to its end and read its result.

    Args:
        run_dir: the run directory.
        declaration: for ranks, threads and the length of the progress bar.
        tracker: gets the metrics while they are written.
    """
    error_file = run_dir / "error.json"
    error_file.unlink(missing_ok=True)
    before = written(run_dir)
    with (run_dir / "train.log").open("ab") as log:
        process = subprocess.Popen(
            command(declaration.train.ranks, run_dir / "resolved.json", run_dir),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(declaration, error_file),
            start_new_session=True,
        )
    try:
        _watch(process, run_dir / "metrics.jsonl", declaration, tracker)
    except BaseException:
        stop(process)
        raise
    return outcome(run_dir, process.returncode, before)


def outcome(run_dir: Path, code: int, before: int) -> TrainReport:
    """The result of a launch that ended with `code`, given when `result.json` was written before it.

    Raises:
        BulkheadError: the launch left no result of its own; of the class and with the cause of the rank that failed.
        TrainingError: it was interrupted from outside.
    """
    if code != 0 and written(run_dir) == before:
        raise failure(run_dir, code)
    report = _result(run_dir)
    if report.status == "interrupted":
        raise TrainingError(
            f"training was interrupted from outside after step {report.steps:,}; it saved its state at the step boundary in {run_dir / 'checkpoints'}"
        )
    return report


def written(run_dir: Path) -> int:
    """When `result.json` was written, 0 where there is none: an earlier, interrupted launch leaves one too."""
    path = run_dir / "result.json"
    return path.stat().st_mtime_ns if path.is_file() else 0


def environment(declaration: Declaration, error_file: Path) -> dict[str, str]:
    """The parent's environment with threads per rank, the place for a cause, and this project on the path."""
    threads = declaration.train.threads or max(1, (os.cpu_count() or 1) // declaration.train.ranks)
    ours = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": path,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def _watch(process: subprocess.Popen[bytes], metrics: Path, declaration: Declaration, tracker: Tracker) -> None:
    """Until the program ends: progress for a person, metrics to MLflow every few seconds."""
    tail, sent, last = Tail(metrics), 0, time.monotonic()
    with bar("train") as progress:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            _progress(tail, declaration, progress)
            if metrics.exists() and time.monotonic() - last > FORWARD_SECONDS:
                sent, last = tracker.forward_metrics(metrics, sent), time.monotonic()
        _progress(tail, declaration, progress)
    if metrics.exists():
        tracker.forward_metrics(metrics, sent)


class Tail:
    """The records that are added to `metrics.jsonl` from now on; a resumed run that rewrites the file starts it anew.

    Args:
        path: the file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.since = path, time.time()
        self.number, self.position = self._stat()

    def records(self) -> list[dict[str, Any]]:
        """Those of whole lines since the last call."""
        number, size = self._stat()
        if number != self.number or size < self.position:
            self.number, self.position = number, 0
        if not size:
            return []
        with self.path.open("rb") as file:
            file.seek(self.position)
            block = file.read()
        whole = block[: block.rfind(b"\n") + 1]
        self.position += len(whole)
        return [record for record in map(_parsed, whole.splitlines()) if record.get("time", 0) >= self.since]

    def _stat(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size


def _parsed(line: bytes) -> dict[str, Any]:
    """The record of a line; nothing of one that a kill cut off."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _progress(tail: Tail, declaration: Declaration, progress: Callable[[float, str], None]) -> None:
    """Show the evaluations that were made since the last call."""
    for record in tail.records():
        if record["kind"] == "evaluation":
            values = record["values"]
            metric = declaration.metric
            text = f"epoch {record['epoch']}/{declaration.train.epochs}  train loss {_number(values.get('train/loss'))}  val loss {_number(values.get('val/loss'))}  val {metric} {_number(values.get(f'val/{metric}'))}"
            progress(min(1.0, record["epoch"] / declaration.train.epochs), text + ("  *" if values.get("best") else ""))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """End torchrun and its ranks: ask, wait for the checkpoint at the step boundary, then kill the session."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failure(run_dir: Path, code: int) -> BulkheadError:
    """The error of a training program that ended with `code`, of the class that the failing rank raised."""
    cause = _cause(run_dir / "error.json")
    log = run_dir / "train.log"
    if cause is None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""
        return LaunchError(f"the training program ended with exit code {code} and left no cause; last lines of {log}:\n{tail}")
    kind, _, text = cause.partition(": ")
    known = getattr(errors, kind.rsplit(".", 1)[-1], None)
    if isinstance(known, type) and issubclass(known, BulkheadError):
        return known(f"{text}\nWhole log: {log}")
    return TrainingError(f"{cause}\nWhole log: {log}")


def _cause(path: Path) -> str | None:
    """The failing rank's message from torch's error file, or None where there is none."""
    try:
        found = json.loads(path.read_text())["message"]
    except (OSError, ValueError, KeyError):
        return None
    text = found.get("message", found) if isinstance(found, dict) else found
    return str(text)


def _result(run_dir: Path) -> TrainReport:
    path = run_dir / "result.json"
    if not path.is_file():
        raise LaunchError(f"the training program ended without {path}; see {run_dir / 'train.log'}")
    return TrainReport.model_validate_json(path.read_bytes())
