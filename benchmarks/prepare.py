"""Preparation compared with pandas and scikit-learn, with Polars, both by hand, and with a bare
scan.

    python -m benchmarks.prepare [--rows 200000 1000000] [--wide 3000] [--rounds 3] [--full]
    [--page docs/benchmarks.md]

Each tool prepares the same generated table in its own process, in turns; peers are installed into
their own environment. `--wide` adds tables of 2,000 rows with so many columns. Both wall time and
CPU seconds are compared: other work on the machine disturbs the first, and threads that share a
core increase the second. `--full` is 1, 10 and 50 million rows, once.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.environments import environment
from benchmarks.page import PAGE, machine, markdown_table, write_section
from benchmarks.preparation.processes import Peak, sampled
from benchmarks.preparation.rows import COUNTS, WITH_NULLS, write_rows

PEERS = Path(__file__).parent / "preparation" / "peers"
PACKAGES = ("pandas==3.1.1", "scikit-learn==1.9.0", "polars==1.35.2", "pyarrow==25.0.1")
ALIKE, WHOLE = "Bulkhead, the same checks", "Bulkhead, all checks"
SCAN, PANDAS, POLARS = (
    "bare scan of the Parquet file",
    "pandas + scikit-learn by hand",
    "Polars by hand",
)
WIDE = "Polars by hand and an AUROC of each column"
NOT_MEASURES = COUNTS + WITH_NULLS
WIDE_ROWS, LEVELS_AGAIN = 2_000, (3, 10, 50, 10, 3)  # of the categorical columns
FULL, SHORT = (1_000_000, 10_000_000, 50_000_000), (200_000, 1_000_000)


class Run(NamedTuple):
    """One tool over one table."""

    tool: str
    rows: int
    peak: Peak


def commands(python: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return the command of each tool, and the arguments after table and folder."""
    ours = [sys.executable, "-m", "benchmarks.preparation.ours"]
    scripts = {SCAN: "scan.py", PANDAS: "pandas_sklearn.py", POLARS: "polars_by_hand.py"}
    return {
        WHOLE: (ours, []),
        ALIKE: (ours, ["--alike"]),
        **{tool: ([str(python), str(PEERS / script)], []) for tool, script in scripts.items()},
    }


def measure(rows: int, rounds: int, python: Path, folder: Path) -> list[Run]:
    """Run every tool once a round, in turns."""
    source, found = write_rows(folder / "table.parquet", rows), []
    for number in range(rounds):
        for tool, (command, more) in commands(python).items():
            with tempfile.TemporaryDirectory(dir=folder) as out:
                peak = sampled(
                    [*command, str(source), out, *more], dict(os.environ), folder / "log"
                )
            if not peak.ended_well:
                raise SystemExit(f"{tool}: {(folder / 'log').read_text()[-2000:]}")
            print(
                f"{rows:>11,} rows, round {number + 1}: {tool:<32} {peak.cpu_seconds:7.1f} CPU s"
                f" {peak.seconds:7.1f} s {peak.anonymous / 1e6:7,.0f} MB",
                flush=True,
            )
            found.append(Run(tool, rows, peak))
    return found


def measure_wide(columns: int, rounds: int, python: Path, folder: Path) -> list[Run]:
    """Prepare a table of few rows and many columns with all checks, and by hand, in turns."""
    levels = LEVELS_AGAIN * (columns // (5 * len(LEVELS_AGAIN)))
    source = write_rows(
        folder / "wide.parquet", WIDE_ROWS, columns - len(levels) - NOT_MEASURES, levels
    )
    ours, found = [sys.executable, "-m", "benchmarks.preparation.ours"], []
    by_hand = [str(python), str(PEERS / "polars_by_hand.py")]
    tools = {WHOLE: (ours, []), WIDE: (by_hand, ["--columns"])}
    for _ in range(rounds):
        for tool, (command, more) in tools.items():
            with tempfile.TemporaryDirectory(dir=folder) as out:
                peak = sampled(
                    [*command, str(source), out, *more], dict(os.environ), folder / "log"
                )
            if not peak.ended_well:
                raise SystemExit(f"{tool}: {(folder / 'log').read_text()[-2000:]}")
            print(f"{columns:,} columns: {tool:<44} {peak.cpu_seconds:7.1f} CPU s", flush=True)
            found.append(Run(tool, columns, peak))
    return found


def wide_section(runs: list[Run]) -> str:
    """Return the table of wide tables."""
    lines = []
    for columns in sorted({run.rows for run in runs}):
        ours, peer = (_cpu(runs, tool, columns) for tool in (WHOLE, WIDE))
        peaks = [run.peak.anonymous for run in runs if (run.tool, run.rows) == (WHOLE, columns)]
        lines.append(
            {
                "columns": f"{columns:,}",
                f"{WHOLE}, CPU s": f"{ours:.1f}",
                f"{WIDE}, CPU s": f"{peer:.1f}",
                "ratio": f"{ours / peer:.1f}",
                "peak anonymous GB": f"{median(peaks) / 1e9:.2f}",
            }
        )
    return f"{WIDE_ROWS:,} rows of many columns:\n\n{markdown_table(lines)}"


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return the slope of log time over log rows: 1 if time grows as rows do.

    >>> exponent([10, 100], [1.0, 10.0])
    1.0
    """
    xs, ys = [math.log(n) for n in sizes], [math.log(s) for s in seconds]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return round(
        sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs),
        3,
    )


def section(runs: list[Run], rounds: int) -> str:
    """Return the tables of the page."""
    sizes = sorted({run.rows for run in runs})
    parts = ["## Preparation", _how(rounds)]
    for rows in sizes:
        parts += [
            f"{rows:,} rows:",
            markdown_table(_compared([run for run in runs if run.rows == rows])),
        ]
    if len(sizes) > 1:
        grown = [
            {
                "tool": tool,
                "exponent": f"{exponent(sizes, [_cpu(runs, tool, rows) for rows in sizes]):.2f}",
            }
            for tool in (WHOLE, ALIKE, PANDAS, POLARS)
        ]
        parts += [
            (
                f"Growth of CPU seconds from {sizes[0]:,} to {sizes[-1]:,} rows, start-up included"
                " (1: as rows grow):"
            ),
            markdown_table(grown),
        ]
    return "\n\n".join(parts)


def _cpu(runs: list[Run], tool: str, rows: int) -> float:
    return median(run.peak.cpu_seconds for run in runs if (run.tool, run.rows) == (tool, rows))


def _wall(runs: list[Run], tool: str, rows: int) -> float:
    return median(run.peak.seconds for run in runs if (run.tool, run.rows) == (tool, rows))


def _compared(runs: list[Run]) -> list[dict[str, str]]:
    """Return a line for each tool over one table."""
    rows, lines = runs[0].rows, []
    for tool in (WHOLE, ALIKE, PANDAS, POLARS, SCAN):
        peaks, seconds, wall = (
            [run.peak for run in runs if run.tool == tool],
            _cpu(runs, tool, rows),
            _wall(runs, tool, rows),
        )
        lines.append(
            {
                "tool": tool,
                "CPU s": f"{seconds:.1f}",
                "wall s": f"{wall:.1f}",
                "peak anonymous GB": f"{median(p.anonymous for p in peaks) / 1e9:.2f}",
                "wall / the same checks here": f"{wall / _wall(runs, ALIKE, rows):.2f}",
                "CPU / the same checks here": f"{seconds / _cpu(runs, ALIKE, rows):.2f}",
                "wall / scan": f"{wall / _wall(runs, SCAN, rows):.1f}",
                "CPU / scan": f"{seconds / _cpu(runs, SCAN, rows):.1f}",
            }
        )
    return lines


def _how(rounds: int) -> str:
    return (
        f"`python -m benchmarks.prepare` on {machine()}: {rounds} round{'s'[: rounds > 1]} in"
        " turns, medians; start-up and imports are included. 20 numeric and 5 categorical columns,"
        " id, group, time and label. All check nulls, finite numbers, unique ids, two classes,"
        " ids, groups and equal rows across sides; split by group, fit on train, standardise,"
        " fill, encode, write `.npy`. Only Bulkhead also writes the typed table and each side as"
        " files with digests in an order of their own, and asserts on those files that they are"
        " disjoint; “all checks” adds the checks of docs/leaks.md and the poison test."
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and rewrite the section of the page; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prepare", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--rows", type=int, nargs="+", default=SHORT)
    parser.add_argument("--wide", type=int, nargs="*", default=(500, 3000), metavar="COLUMNS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--full",
        action="store_true",
        help="1, 10 and 50 million rows, one round (hours on a busy machine)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path.home() / ".cache" / "bulkhead-bench" / "prepare",
        help="the peers' environment",
    )
    parser.add_argument(
        "--folder", type=Path, help="where tables are written (default: a temporary folder)"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    sizes, rounds = (FULL, 1) if options.full else (tuple(options.rows), options.rounds)
    python, runs = environment(options.cache, PACKAGES), []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="bulkhead-bench-", dir=options.folder) as name:
            runs += measure(rows, rounds, python, Path(name))
    wide: list[Run] = []
    for columns in options.wide:
        with tempfile.TemporaryDirectory(prefix="bulkhead-bench-", dir=options.folder) as name:
            wide += measure_wide(columns, rounds, python, Path(name))
    text = "\n\n".join([section(runs, rounds), *([wide_section(wide)] if wide else [])])
    write_section("preparation", text, options.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
