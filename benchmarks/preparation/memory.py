"""Memory and CPU of a run under `data.memory_limit`, from table to report, over all its processes.

    python -m benchmarks.preparation.memory [--rows 1000000 10000000 50000000] [--limit 1GB]
    [--folder DIR] [--page docs/memory.md]

Anonymous memory is what the processes hold. Pages of mapped files (programs, training arrays) are
counted apart, since the kernel can take them back. The table has 8 numeric columns and one
categorical.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.page import machine, markdown_table, write_section
from benchmarks.preparation.processes import Peak, Step, sampled
from benchmarks.preparation.rows import write_rows
from benchmarks.prepare import exponent

PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"
SIZES = (1_000_000, 10_000_000, 50_000_000)
FIRST, PREPARED = "source", "poison"  # steps of the preparation
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
"""  # noqa: E501


class Measured(NamedTuple):
    """Measurement of a command over a table of `rows` rows."""

    rows: int
    limit: str
    command: str
    peak: Peak

    @property
    def prepared(self) -> Step:
        """Return the preparation as one step, without the first, in which the program starts."""
        names = [step.name for step in self.peak.steps]
        steps = [
            step for step in self.peak.steps[: names.index(PREPARED) + 1] if step.name != FIRST
        ]
        sums, peaks = (
            sum(s.cpu_seconds for s in steps),
            (
                max(s.anonymous for s in steps),
                max(s.file for s in steps),
            ),
        )
        return Step("preparing, from validate on", sums, *peaks)


def measure(rows: int, limit: str, command: str, folder: Path) -> Measured:
    """Run the command on a new table."""
    table = write_rows(folder / "table.parquet", rows, measures=2, levels=(50,))
    declaration = folder / "memory.yaml"
    declaration.write_text(DECLARATION.format(table=table, limit=limit))
    environment = os.environ | {"BULKHEAD_HOME": str(folder / "home"), "TMPDIR": str(folder)}
    log = folder / f"{command}.log"
    peak = sampled([sys.executable, "-m", "flows.cli", command, str(declaration)], environment, log)
    print(f"{rows:,} rows, {limit}, {command}: {json.dumps(peak._asdict())}", flush=True)
    if not peak.ended_well:
        raise SystemExit(f"{command} failed:\n{log.read_text()[-3000:]}")
    return Measured(rows, limit, command, peak)


def section(found: list[Measured]) -> str:
    """Return the section of the page, from runs of one command over tables of several sizes."""
    found = sorted(found, key=lambda m: m.rows)
    largest = found[-1].peak
    processes = [
        {
            "processes": role,
            "peak anonymous GB": _gigabytes(a),
            "pages of files at most, GB": _gigabytes(f),
        }
        for role, a, f in largest.roles
    ]
    return "\n\n".join(
        [
            "## Figures",
            (
                f"`python -m benchmarks.preparation.memory` on {machine()}, which other work may"
                f" have shared: `bulkhead {found[0].command}` with `data.memory_limit:"
                f" {found[0].limit}` on 8 numeric columns, one categorical, id, group, time and"
                " label; split by group, a linear model, one epoch, one rank. Memory is that of"
                " all processes together, Prefect's server among them, sampled ten times a second."
            ),
            markdown_table([_whole(measured) for measured in found]),
            (
                f"Step by step; peaks are those of {found[-1].rows:,} rows, the exponent is the"
                " slope of log CPU over log rows, start-up included (1: as rows grow):"
            ),
            markdown_table(_by_step(found)),
            f"By process, at {found[-1].rows:,} rows:",
            markdown_table(processes),
        ]
    )


def _whole(measured: Measured) -> dict[str, str]:
    return {
        "rows": f"{measured.rows:,}",
        "peak anonymous GB, preparing": _gigabytes(measured.prepared.anonymous),
        "peak anonymous GB, whole run": _gigabytes(measured.peak.anonymous),
        "pages of files at most, GB": _gigabytes(measured.peak.file),
        "CPU s": f"{measured.peak.cpu_seconds:,.0f}",
        "wall s": f"{measured.peak.seconds:,.0f}",
    }


def _by_step(found: list[Measured]) -> list[dict[str, str]]:
    """Return a line for each step that was sampled in every run, the preparation, and the whole."""
    sizes, steps = (
        [m.rows for m in found],
        [{s.name: s for s in m.peak.steps if s.anonymous} for m in found],
    )
    lines: list[tuple[str, list[float], Step | Peak]] = [
        (name, [s[name].cpu_seconds for s in steps], steps[-1][name])
        for name in steps[-1]
        if all(name in s for s in steps)
    ]
    prepared = [m.prepared for m in found]
    lines.append((prepared[-1].name, [step.cpu_seconds for step in prepared], prepared[-1]))
    lines.append(("all", [m.peak.cpu_seconds for m in found], found[-1].peak))
    return [
        {
            "step": name,
            **{
                f"CPU s, {rows:,} rows": f"{cpu:.1f}"
                for rows, cpu in zip(sizes, seconds, strict=True)
            },
            **(
                {"exponent": f"{exponent(sizes, seconds):.2f}" if min(seconds) > 0 else ""}
                if len(sizes) > 1
                else {}
            ),
            "peak anonymous GB": _gigabytes(peak.anonymous),
            "pages of files GB": _gigabytes(peak.file),
        }
        for name, seconds, peak in lines
    ]


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Measure and rewrite the section of the page; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preparation.memory", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--rows", type=lambda text: int(float(text)), nargs="+", default=SIZES)
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--command", choices=("prepare", "run"), default="run")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where table, runs and spilled rows go (default: a temporary folder)",
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    found = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="bulkhead-memory-", dir=options.folder) as name:
            found.append(measure(rows, options.limit, options.command, Path(name)))
    write_section("memory", section(found), options.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
