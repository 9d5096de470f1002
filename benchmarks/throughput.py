"""What Bulkhead's guarantees cost: rows a second against loops written by hand, and the price of checkpoints.

    python -m benchmarks.throughput [--rows 200000] [--rounds 30] [--json]

Prepares a made-up table with the real data pipeline, then lets Bulkhead's loop and two loops written by hand take
turns in one process (`benchmarks.loops`), so that whatever else the machine does meets all of them. Each round gives
a ratio; their median is the result, their quartiles the spread. Exit code 0 where the required cases hold:
at least 0.90 of the careful loop's rows a second, and under 2 % of an epoch for a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.table import prepare, variant

LEAST_SHARE = 0.90  # of the hand-written loop's rows a second
MOST_SAVING = 0.02  # of an epoch
BATCH = 1024
PAIRS = 8  # of epochs with and without a checkpoint


class Case(NamedTuple):
    """One measurement: ranks, sections of the declaration, and whether the result decides the exit code."""

    name: str
    ranks: int
    model: dict[str, Any]
    required: bool


CASES = (
    Case("default MLP", 1, {"kind": "mlp"}, True),
    Case("default MLP, 2 ranks", 2, {"kind": "mlp"}, False),
    Case("MLP without periodic inputs", 1, {"kind": "mlp", "numeric_embedding": "none"}, False),
)


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles.

    >>> spread([1.0, 2.0, 3.0])
    {'median': 2.0, 'low': 1.0, 'high': 3.0}
    """
    low, middle, high = quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": middle, "low": low, "high": high}


def ratios(times: list[float], reference: list[float]) -> list[float]:
    """`reference / time` round by round: above 1 is faster than the reference."""
    return [there / here for here, there in zip(times, reference, strict=True)]


def measure(case: Case, folder: Path, config: Path, rounds: int, steps: int) -> dict[str, Any]:
    """One case in a torchrun of its own."""
    out, run_dir = folder / "out.json", folder / case.name.replace(" ", "-")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks), "-m", "benchmarks.loops"]
    options = {"--config": config, "--run-dir": run_dir, "--out": out, "--rounds": rounds, "--steps": steps, "--pairs": PAIRS}
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // case.ranks))}
    subprocess.run([sys.executable, *launch, *(str(part) for pair in options.items() for part in pair)], check=True, env=os.environ | threads)
    found = json.loads(out.read_text())
    segments, epochs = found["segments"], found["epochs"]
    return {
        "case": case.name,
        "ranks": case.ranks,
        "required": case.required,
        "rows_per_second": {name: BATCH * steps / median(seconds) for name, seconds in segments.items()},
        "of_careful": spread(ratios(segments["bulkhead"], segments["careful"])),
        "of_bare": spread(ratios(segments["bulkhead"], segments["bare"])),
        "saving": spread(ratios(epochs["without"], epochs["save"])),
        "with_against_without": spread(ratios(epochs["without"], epochs["with"])),
        "save_seconds": median(epochs["save"]),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether a required case is fast enough, and saves cheaply enough."""
    return not result["required"] or (result["of_careful"]["median"] >= LEAST_SHARE and result["saving"]["median"] < MOST_SAVING)


def show(result: dict[str, Any]) -> None:
    """One case as lines for a person."""
    speed = ", ".join(f"{name} {rows:,.0f}" for name, rows in result["rows_per_second"].items())
    verdict = ("holds" if holds(result) else "DOES NOT HOLD") if result["required"] else "for comparison"
    print(f"{result['case']}: {verdict}")
    print(f"  rows/s              {speed}")
    for key, title in (
        ("of_careful", "of the careful loop"),
        ("of_bare", "of the bare loop"),
        ("saving", "a checkpoint/epoch"),
        ("with_against_without", "with / without"),
    ):
        found = result[key]
        print(f"  {title:<19} {found['median']:.4f}   (quartiles {found['low']:.4f} to {found['high']:.4f})")
    print(f"  a checkpoint        {1000 * result['save_seconds']:.1f} ms")


def main(arguments: list[str] | None = None) -> int:
    """Measure every case; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the made-up table; 70 %% of them are trained on")
    parser.add_argument("--rounds", type=int, default=30, help="rounds, each with a segment of every loop")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of a segment")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
        folder = Path(name)
        spec = prepare(folder, options.rows)
        train = {"epochs": 100_000, "batch_size": BATCH, "patience": 100_000, "log_every": 20}
        for case in CASES:
            config = variant(spec, folder / "resolved.json", model=case.model, train=train | {"ranks": case.ranks})
            results.append(measure(case, folder, config, options.rounds, options.steps))
            if not options.json:
                show(results[-1])
    if options.json:
        print(json.dumps(results, indent=1))
    return 0 if all(holds(result) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
