"""How much memory preparing and training take under `data.memory_limit`, over the whole tree of processes.

    python -m benchmarks.preparation.memory [--rows 50000000] [--limit 1GB] [--folder DIR] [--json FILE]

Anonymous memory is what the processes hold; pages of mapped files (programs, training arrays) are the kernel's to take
back, and are told apart from it. The table has 8 numeric columns and one categorical.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.preparation.rows import write_rows

POLL_SECONDS = 0.1
DECLARATION = """
name: memory
data:
  uri: {table}
  memory_limit: {limit}
  columns: {{row_id: id, patient: group, seen_at: time, outcome: label, "c*": categorical, "*": feature}}
task: {{kind: binary}}
split: {{kind: group}}
model: {{kind: linear}}
train: {{epochs: 1, batch_size: 65536, ranks: 1}}
evaluate: {{baselines: [], bootstrap: 20}}
"""


class Peak(NamedTuple):
    """A command's peaks over its processes, in bytes, with its wall and CPU seconds and whether it ended well."""

    anonymous: int
    file: int
    seconds: float
    cpu_seconds: float
    ended_well: bool


def sampled(command: list[str], environment: dict[str, str], log: Path) -> Peak:
    """Run a command and look at its processes ten times a second."""
    started, before = time.perf_counter(), os.times()
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        anonymous = file = 0
        while process.poll() is None:
            found = [_resident(pid) for pid in _tree(process.pid)]
            anonymous, file = max(anonymous, sum(a for a, _ in found)), max(file, sum(f for _, f in found))
            time.sleep(POLL_SECONDS)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Peak(anonymous, file, time.perf_counter() - started, cpu, process.returncode == 0)


def _tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [p for child in children.read_text().split() for p in _tree(int(child))]
    except OSError:  # it ended meanwhile
        pass
    return found


def _resident(pid: int) -> tuple[int, int]:
    """Anonymous and file-backed resident bytes of a process; nothing of one that has ended."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return 0, 0
    return tuple(1024 * int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssFile"))  # type: ignore[return-value]


def measure(rows: int, limit: str, folder: Path) -> dict[str, object]:
    """Prepare and train for one epoch; peaks of both, and what the preparation found."""
    table = write_rows(folder / "table.parquet", rows, measures=2, levels=(50,))
    declaration = folder / "memory.yaml"
    declaration.write_text(DECLARATION.format(table=table, limit=limit))
    environment = os.environ | {"BULKHEAD_HOME": str(folder / "home"), "TMPDIR": str(folder)}
    found: dict[str, object] = {"rows": rows, "limit": limit}
    for name in ("prepare", "train"):
        log = folder / f"{name}.log"
        peak = sampled([sys.executable, "-m", "flows.cli", name, str(declaration)], environment, log)
        found[name] = peak._asdict()
        print(f"{name}: {json.dumps(peak._asdict())}", flush=True)
        if not peak.ended_well:
            raise SystemExit(f"{name} failed:\n{log.read_text()[-3000:]}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preparation.memory", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=50_000_000)
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--folder", type=Path, help="where table, runs and spilled rows go (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bulkhead-memory-", dir=options.folder) as name:
        found = measure(options.rows, options.limit, Path(name))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
