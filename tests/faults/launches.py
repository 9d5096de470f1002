"""Launches of the training program under the real agent, killed at a moment or at a named crash
point.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.distributed.launch import ROOT, environment
from training.launch.stop_signal import LAUNCHER, children
from training.launch.torchrun import command
from training.run.crash_points import VARIABLE

TRAINING = b"promise: "  # the line that a run prints before its first step
LIMIT_SECONDS = 120.0
ORPHAN_SECONDS = 10.0
LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Kill:
    """The kill that ends a launch.

    `target`: point, agent, worker or all. `point`: as BULKHEAD_CRASH takes it. Otherwise `seconds`
    after the launch, or, with a `step`, after metrics.jsonl contains that step.
    """

    target: str
    point: str = ""
    step: int | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        when = "the launch" if self.step is None else f"step {self.step}"
        return (
            f"at {self.point}" if self.point else f"{self.target} {self.seconds:.2f} s after {when}"
        )


@dataclass(frozen=True)
class Launch:
    """End of a launch.

    `code`: of the agent, negative for a signal. `landed`: the kill met a running process.
    `start_seconds`, `training_seconds`: until the first step, and from there to the end.
    """

    code: int
    landed: bool
    start_seconds: float
    training_seconds: float


def launch(folder: Path, log: Path, ranks: int, kill: Kill | None = None) -> Launch:
    """Start the program on `folder/resolved.json` in `folder/run`, kill it as planned, and wait for
    the agent.

    After a kill of the agent alone its ranks may live on; the next launch must cope with them.
    """
    begun = time.monotonic()
    process = start(folder, log, ranks, **({VARIABLE: kill.point} if kill and kill.point else {}))
    try:
        landed = bool(kill and not kill.point) and _kill(process, folder / "run", kill, log)
        started = (
            time.monotonic() if landed else _wait_for(process, lambda: TRAINING in log.read_bytes())
        )
        code = process.wait(LIMIT_SECONDS)
    except BaseException:
        _kill_all(process.pid)
        raise
    landed = landed or bool(kill and kill.point and reached(log))
    return Launch(code, landed, started - begun, time.monotonic() - started)


def start(folder: Path, log: Path, ranks: int, **extra: str) -> subprocess.Popen[bytes]:
    """Start the program on `folder/resolved.json` in `folder/run` in its own session, as the
    launcher does.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command(ranks, folder / "resolved.json", folder / "run"),
            env=environment(**{"OMP_NUM_THREADS": "1", LAUNCHER: str(os.getpid()), **extra}),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def reached(log: Path) -> list[str]:
    """Return the crash points at which processes of a launch killed themselves."""
    return [
        line.split()[1].split(":")[0]
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith("reached ")
    ]


def processes_of(folder: Path) -> list[int]:
    """Return the processes with the folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if (
            any(word.startswith(os.fsencode(folder)) for word in words)
            and int(path.parent.name) != os.getpid()
        ):
            found.append(int(path.parent.name))
    return found


def wait_until_gone(folder: Path, seconds: float = ORPHAN_SECONDS) -> list[int]:
    """Return the processes of a run that still live after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return left


def _wait_for(process: subprocess.Popen[bytes], seen: Callable[[], bool]) -> float:
    """Return the moment when a condition became true, or when the launch ended before."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and not seen() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return time.monotonic()


def _step(run_dir: Path) -> int:
    """Return the newest step in the metrics of a run."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return max(
        (
            json.loads(line)["step"]
            for line in lines
            if line.startswith(b"{") and line.endswith(b"}")
        ),
        default=0,
    )


def _kill(process: subprocess.Popen[bytes], run_dir: Path, kill: Kill, log: Path) -> bool:
    step = kill.step
    if step is not None:
        _wait_for(process, lambda: TRAINING in log.read_bytes() and _step(run_dir) >= step)
    moment = time.monotonic() + kill.seconds
    _wait_for(process, lambda: time.monotonic() >= moment)
    workers = children(process.pid)
    if process.poll() is not None or (kill.target == "worker" and not workers):
        return False
    for victim in {"agent": [process.pid], "worker": workers[-1:], "all": [*workers, process.pid]}[
        kill.target
    ]:
        _sigkill(victim)
    return True


def _kill_all(agent: int) -> None:
    for victim in (*children(agent), agent):
        _sigkill(victim)


def _sigkill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
