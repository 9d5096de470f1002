"""Start the processes that watch a program, wait for them and merge their reports."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError
from training.watch.ranks_compared import compared, read_calls

PATIENCE, STARTS_IN = 3.0, 60.0  # time limit: factor on the program's seconds, and added seconds
# longest seconds without activity; seconds after a rank has failed or all have reported
STALLED, ENDS_IN = (60.0, 10.0)
STARTS = re.compile(r"\b(?:spawn|start_processes)\(")


def starts_ranks(text: str) -> bool:
    """Check that a program starts its own process group."""
    return bool(STARTS.search(text))


def run_watched(
    program: Path, arguments: list[str], seconds: float, ranks: int, folder: Path
) -> dict[str, Any]:
    """Run a program under watch on all ranks and merge the reports into one.

    Args:
        program: a Python file; what it prints goes to standard error.
        arguments: command line arguments of the program.
        seconds: time after which the program ends at an optimizer step.
        ranks: number of processes, in one group.
        folder: empty folder for their files.

    Raises:
        ConfigError: the program ended without a report, or was killed before its first step.
    """
    reports = [folder / f"{rank}.json" for rank in range(ranks)]
    processes = [
        _start(program, arguments, seconds, rank, ranks, report)
        for rank, report in enumerate(reports)
    ]
    try:
        in_time = _wait(processes, reports, seconds)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # kills its child processes too
            process.wait()
    told = [json.loads(r.read_text(encoding="utf-8")) if r.exists() else None for r in reports]
    seen = (
        compared(told, [read_calls(r.with_suffix(".calls")) for r in reports]) if ranks > 1 else []
    )
    for group in groups_in(folder):
        spawned = [json.loads(r.read_text(encoding="utf-8")) if r.exists() else None for r in group]
        seen += (
            compared(spawned, [read_calls(r.with_suffix(".calls")) for r in group])
            if len(group) > 1
            else []
        )
        told += spawned
    first = next((t for t in told if t is not None), None)
    if first is None and not seen:
        if in_time:
            raise ConfigError(
                f"{program} ended its process itself (exit code {processes[0].returncode}), so that"
                " nothing could be told; see its messages above"
            )
        raise ConfigError(
            f"{program} made no optimizer step for so long that it was ended; give --seconds more,"
            " or --args for a smaller run"
        )
    merged = first or {
        "found": [],
        "steps": 0,
        "backwards": 0,
        "complete": False,
        "error": "",
        "failures": [],
        "even_windows": None,
    }
    for other in told[ranks:]:
        merged |= {
            name: max(merged[name], (other or merged)[name]) for name in ("steps", "backwards")
        }
        merged["complete"] = merged["complete"] and other is not None and other["complete"]
        merged["failures"] = sorted({*merged["failures"], *(other or merged)["failures"]})
    for other in told:
        merged["found"] += [
            f for f in (other or {"found": []})["found"] if f not in merged["found"]
        ]
        merged["error"] = (
            merged["error"]
            or (other or {"error": "a rank that waited for the others without end"})["error"]
        )
    windows = {(other or {"even_windows": False})["even_windows"] for other in told}
    merged["even_windows"] = True in windows and False not in windows
    known = {f["rule"] for f in merged["found"]}
    merged["found"] += [
        {"rule": s.rule, "path": s.place.path, "line": s.place.line, "message": s.message}
        for s in seen
        if s.rule not in known
    ]
    return merged


def _start(
    program: Path, arguments: list[str], seconds: float, rank: int, ranks: int, report: Path
) -> subprocess.Popen[bytes]:
    env = dict(os.environ)
    if ranks > 1:
        if not rank:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                report.with_name("port").write_text(str(free.getsockname()[1]))
        port = report.with_name("port").read_text()
        group = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        env |= {name: str(value) for name, value in group.items()}
        env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    command = [
        sys.executable,
        "-m",
        "training.watch.main",
        str(report),
        str(seconds),
        str(program),
        *arguments,
    ]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, start_new_session=True)


def _wait(processes: list[subprocess.Popen[bytes]], reports: list[Path], seconds: float) -> bool:
    """Wait for all processes. Return False if they must be killed."""
    started = time.monotonic()
    failed_at = told_at = None
    while any(p.poll() is None for p in processes):
        now = time.monotonic()
        done = [r for r, p in zip(reports, processes, strict=True) if p.poll() is not None]
        if failed_at is None and any(
            not r.exists() or json.loads(r.read_text(encoding="utf-8"))["error"] for r in done
        ):
            failed_at = now
        if told_at is None and all(r.exists() for r in reports):
            told_at = now
        if told_at is not None and now - told_at > ENDS_IN:
            return True  # all reports exist; a process group may hang at shutdown
        signs = list(reports[0].parent.glob("*.calls"))
        quiet = time.time() - max((s.stat().st_mtime for s in signs), default=time.time())
        if (
            now - started > seconds * PATIENCE + STARTS_IN
            or quiet > STALLED
            or (failed_at is not None and now - failed_at > ENDS_IN)
        ):
            return False
        time.sleep(0.05)
    return True


def groups_in(folder: Path) -> list[list[Path]]:
    """Return the report paths of spawned processes, written or not, group by group."""
    groups: dict[str, set[Path]] = {}
    for path in (*folder.glob("spawned-*.json"), *folder.glob("spawned-*.calls")):
        groups.setdefault(path.stem.rpartition("-")[0], set()).add(path.with_suffix(".json"))
    return [sorted(groups[name]) for name in sorted(groups)]
