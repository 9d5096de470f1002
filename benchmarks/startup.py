"""Start-up time of commands: python -m benchmarks.startup [--rounds 5]

CPU and wall seconds of commands that do almost nothing, each in its own process. They take turns
with a bare interpreter and one that imports torch. A warm `bulkhead run` and an audit take turns
with scripts that train the same network with MLflow, by hand and with Lightning. Writes its section
of docs/benchmarks.md. Exit code 0 if `bulkhead --help` takes under half a second of CPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.made_up import prepare, variant
from benchmarks.page import PAGE, machine, markdown_table, write_section
from benchmarks.warm_run import jobs, turn
from training.launch.torchrun import command

HELP, ONE_STEP = (
    "bulkhead --help",
    "a training of one step on {ranks}: launch, step, evaluation, checkpoint",
)
MOST_CPU_SECONDS = 0.5  # of --help
ROWS = 1500


class Cost(NamedTuple):
    """Seconds of a command and its children: `cpu` in user and system, and `wall`; `around`: of
    `wall`, without training.
    """

    cpu: float
    wall: float
    around: float | None = None


def cost(
    words: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> Cost:
    """Measure a command, which must succeed."""
    began, before = time.perf_counter(), os.times()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(words, check=True, cwd=folder, env=environment, **quiet)  # type: ignore[call-overload]
    after = os.times()
    used = (
        after.children_user - before.children_user + after.children_system - before.children_system
    )
    return Cost(used, time.perf_counter() - began)


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands by their name in the table; trainings use a new directory."""
    python = [sys.executable]
    ours = [*python, "-m", "flows.cli"]
    found = {
        "a bare interpreter": [*python, "-c", "pass"],
        "import torch": [*python, "-c", "import torch"],
        HELP: [*ours, "--help"],
        "bulkhead schema": [*ours, "schema"],
        "bulkhead review of one file": [*ours, "review", str(Path(__file__).parent / "loops.py")],
    }
    for ranks in (1, 2):
        run_dir = folder / f"run-{ranks}-{time.monotonic_ns()}"
        run_dir.mkdir()
        spec = prepare(run_dir, ROWS)
        config = variant(
            spec,
            run_dir / "resolved.json",
            model={"kind": "linear"},
            train={"epochs": 1, "batch_size": ROWS, "ranks": ranks},
        )
        found[ONE_STEP.format(ranks=f"{ranks} rank{'s' * (ranks > 1)}")] = command(
            ranks, config, run_dir
        )
    return found


def section(found: dict[str, list[Cost]]) -> str:
    """Return the results as Markdown."""
    rows = [
        {
            "": name,
            "CPU s": f"{median(c.cpu for c in costs):.2f}",
            "s": f"{median(c.wall for c in costs):.2f}",
            "s around training": _around(costs),
        }
        for name, costs in found.items()
    ]
    turns = len(next(iter(found.values())))
    return (
        f"## Start-up\n\nMedians of {turns} turns; {machine()}. `--help` may take"
        f" {MOST_CPU_SECONDS} s of CPU.\n\n{markdown_table(rows)}\n"
    )


def _around(costs: list[Cost]) -> str:
    found = [c.around for c in costs if c.around is not None]
    return f"{median(found):.2f}" if found else ""


def measure_jobs(folder: Path, rounds: int, found: dict[str, list[Cost]]) -> None:
    """Measure a warm run, an audit and the scripts that do less, in turns."""
    every = jobs(folder)
    for number in range(rounds):
        for name, job in every.items():
            one = cost(turn(job, number), job.folder, job.environment)
            around = one.wall - job.training() if job.seconds else None
            found.setdefault(name, []).append(one._replace(around=around))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the section; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each command")
    parser.add_argument("--output", type=Path, default=PAGE, help="page whose section is rewritten")
    options = parser.parse_args(arguments)
    found: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
        for _ in range(options.rounds):
            for what, words in commands(Path(name)).items():
                found.setdefault(what, []).append(cost(words))
        measure_jobs(Path(name), options.rounds, found)
    text = section(found)
    print(text)
    write_section("startup", text, options.output)
    return 0 if median(c.cpu for c in found[HELP]) < MOST_CPU_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
