"""CPU seconds and resident memory of a command and its descendants, by step and by process."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

POLL_SECONDS = 0.1
TICKS = os.sysconf("SC_CLK_TCK")
MARKS = "✓↺!✗"  # first letter of a line of `bulkhead` at the end of a step
# part of a command line → its name
ROLES = {"training.main": "torchrun and its ranks", "uvicorn": "Prefect's server"}
OTHERS = "command and its tasks"


class Process(NamedTuple):
    """A live process: role, anonymous and file-backed resident bytes, and CPU seconds, those of
    ended children included.
    """

    role: str
    anonymous: int
    file: int
    cpu_seconds: float


class Step(NamedTuple):
    """A step from one line of a command's log to the next: CPU seconds, and peaks in bytes over all
    processes.
    """

    name: str
    cpu_seconds: float
    anonymous: int
    file: int


class Peak(NamedTuple):
    """A command's peaks over its processes, in bytes, its wall and CPU seconds, and its success.

    `steps`: the same by step; `roles`: peaks (anonymous, file) of each kind of process.
    """

    anonymous: int
    file: int
    seconds: float
    cpu_seconds: float
    ended_well: bool
    steps: tuple[Step, ...] = ()
    roles: tuple[tuple[str, int, int], ...] = ()


class _Watch:
    """Peaks since the command's start, since the last step, and by role."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.roles: dict[str, tuple[int, int]] = {}
        self.cpu = self._cpu_before = 0.0
        self._anonymous = self._file = self._lines = 0

    def look(self, found: list[Process], log: Path) -> None:
        """Record the current processes, and end each step whose line is in the log."""
        self._anonymous, self._file = (
            max(self._anonymous, sum(p.anonymous for p in found)),
            max(self._file, sum(p.file for p in found)),
        )
        self.cpu = max(self.cpu, sum(p.cpu_seconds for p in found))
        for role in {p.role for p in found}:
            anonymous, file = (
                sum(p.anonymous for p in found if p.role == role),
                sum(p.file for p in found if p.role == role),
            )
            before = self.roles.get(role, (0, 0))
            self.roles[role] = (max(before[0], anonymous), max(before[1], file))
        lines = log.read_text(errors="replace").splitlines()
        for line in lines[self._lines :]:
            if line[:1] in MARKS and line[2:3].strip():
                self.close(line.split()[1])
        self._lines = len(lines)

    def close(self, name: str) -> None:
        """End a step here."""
        self.steps.append(Step(name, self.cpu - self._cpu_before, self._anonymous, self._file))
        self._cpu_before, self._anonymous, self._file = self.cpu, 0, 0


def sampled(command: list[str], environment: dict[str, str], log: Path) -> Peak:
    """Run a command and sample its processes ten times a second.

    Args:
        command: program and arguments.
        environment: environment variables.
        log: file for its output.
    """
    started, before, watch = time.perf_counter(), os.times(), _Watch()
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                watch.look(
                    [p for pid in _tree(process.pid) if (p := _process(pid)) is not None], log
                )
                time.sleep(POLL_SECONDS)
        finally:  # end the command also on an interrupt
            process.terminate()
            process.wait()
    after = os.times()
    watch.look([], log)  # lines printed at the end
    watch.cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    watch.close("end")
    peaks = (max(step.anonymous for step in watch.steps), max(step.file for step in watch.steps))
    roles = tuple((role, *found) for role, found in sorted(watch.roles.items()))
    return Peak(
        *peaks,
        time.perf_counter() - started,
        watch.cpu,
        process.returncode == 0,
        tuple(watch.steps),
        roles,
    )


def _tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [p for child in children.read_text().split() for p in _tree(int(child))]
    except OSError:  # it ended meanwhile
        pass
    return found


def _process(pid: int) -> Process | None:
    """Return a process as it is now; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        times = (folder / "stat").read_text().rpartition(")")[2].split()[11:15]
        words = (folder / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    anonymous, file = (
        1024 * int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile")
    )
    role = next((role for part, role in ROLES.items() if part in words), OTHERS)
    return Process(role, anonymous, file, sum(map(int, times)) / TICKS)
