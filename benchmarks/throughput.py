"""Rows a second of the training loop, compared with loops written by hand and with common training
libraries.

    python -m benchmarks.throughput [--rows 200000] [--rounds 30] [--no-peers] [--json]

Prepares generated data with the real data pipeline. Then Bulkhead's loop, two loops written by
hand, DataLoaders, Lightning, Accelerate and skorch take turns in one process (`benchmarks.loops`),
so that other work on the machine slows all of them. Each round gives a ratio; their median is the
result, their quartiles the spread. Peers are installed once, into their own environment below the
Bulkhead home. Writes its section of docs/benchmarks.md. Exit code 0 if the required cases hold:
their share of the hand-written loop's rows a second, and under 2 % of an epoch for a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.made_up import prepare, prepare_images, prepare_texts, variant
from benchmarks.page import PAGE, machine, markdown_table, write_section
from benchmarks.peers import PACKAGES, peers
from schemas.home import home
from schemas.records import RunSpec

MOST_SAVING = 0.02  # of an epoch
PAIRS = 8  # of epochs with and without a checkpoint
HAND, BARE = "careful", "bare"


class Case(NamedTuple):
    """One measurement.

    `least`: required share of the careful loop's rows a second; None = for comparison. `of_rows`:
    share of the table's rows in the data. `effort`: share of the rounds to run, with `steps` in
    each. `pairs`: of epochs with and without a checkpoint; none for networks whose epochs take
    minutes.
    """

    name: str
    model: dict[str, Any]
    least: float | None = None
    ranks: int = 1
    batch: int = 1024
    data: Callable[[Path, int], RunSpec] = prepare
    of_rows: float = 1.0
    effort: float = 1.0
    steps: int = 10
    pairs: int = 0


PLAIN = {"kind": "mlp", "numeric_embedding": "none"}
CASES = (
    Case("MLP, batch 1,024", PLAIN, 0.90, pairs=PAIRS),
    Case("MLP with periodic inputs (the default), batch 1,024", {"kind": "mlp"}, 0.90, pairs=PAIRS),
    Case("MLP with periodic inputs, 2 ranks", {"kind": "mlp"}, ranks=2),
    Case(
        "FT-Transformer, batch 128",
        {"kind": "ft_transformer", "width": 64, "heads": 4},
        0.97,
        batch=128,
        of_rows=0.2,
        effort=0.4,
        steps=4,
    ),
    Case(
        "CNN, 28 x 28 images, batch 128",
        {"kind": "cnn"},
        0.97,
        batch=128,
        data=prepare_images,
        of_rows=0.1,
        effort=0.4,
        steps=4,
    ),
    Case(
        "causal transformer, 16 x 128 tokens",
        {"kind": "causal_transformer"},
        0.97,
        batch=16,
        data=prepare_texts,
        of_rows=0.02,
        effort=0.4,
        steps=4,
    ),
)


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and quartiles.

    >>> spread([1.0, 2.0, 3.0])
    {'median': 2.0, 'low': 1.0, 'high': 3.0}
    """
    low, middle, high = quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": middle, "low": low, "high": high}


def ratios(times: list[float], reference: list[float]) -> list[float]:
    """Return `reference / time` round by round: above 1 is faster than the reference."""
    return [there / here for here, there in zip(times, reference, strict=True)]


def measure(
    case: Case, folder: Path, config: Path, rounds: int, python: Path | None = None
) -> dict[str, Any]:
    """Measure one case in its own torchrun.

    Args:
        case: the measurement.
        folder: for its files.
        config: the run.
        rounds: turns of every loop.
        python: of an environment that has the peers; None = without them.
    """
    out, run_dir = folder / "out.json", folder / "run"
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(case.ranks),
        "-m",
        "benchmarks.loops",
    ]
    options = {
        "--config": config,
        "--run-dir": run_dir,
        "--out": out,
        "--rounds": rounds,
        "--steps": case.steps,
        "--pairs": case.pairs,
    }
    command = [
        str(python or sys.executable),
        *launch,
        *(str(part) for pair in options.items() for part in pair),
        *(["--peers"] if python else []),
    ]
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // case.ranks))}
    subprocess.run(command, check=True, env=os.environ | threads)
    found = json.loads(out.read_text())
    segments, epochs = found["segments"], found["epochs"]
    result = {
        "case": case.name,
        "ranks": case.ranks,
        "least": case.least,
        "rows_per_second": {
            name: case.batch * case.steps / median(seconds) for name, seconds in segments.items()
        },
        "of_careful": {
            name: spread(ratios(seconds, segments[HAND])) for name, seconds in segments.items()
        },
        "faster_than": {
            name: spread(ratios(segments["bulkhead"], seconds))
            for name, seconds in segments.items()
        },
    }
    if epochs["save"]:
        result |= {
            "saving": spread(ratios(epochs["without"], epochs["save"])),
            "save_seconds": median(epochs["save"]),
        }
    return result


def holds(result: dict[str, Any]) -> bool:
    """Return whether a required case is fast enough and its checkpoint takes little enough."""
    cheap = "saving" not in result or result["saving"]["median"] < MOST_SAVING
    return cheap and (
        result["least"] is None or result["of_careful"]["bulkhead"]["median"] >= result["least"]
    )


def show(result: dict[str, Any]) -> None:
    """Return one case as lines for a person."""
    verdict = (
        "for comparison"
        if result["least"] is None
        else f"{'holds' if holds(result) else 'DOES NOT HOLD'}, {result['least']:.2f} asked for"
    )
    print(f"{result['case']}: {verdict}")
    for name, share in result["of_careful"].items():
        print(
            f"  {name:<22} {result['rows_per_second'][name]:>10,.0f} rows/s   {share['median']:.3f}"
            f" of careful ({share['low']:.3f} to {share['high']:.3f})"
        )
    if "saving" in result:
        print(
            f"  a checkpoint           {1000 * result['save_seconds']:.1f} ms,"
            f" {100 * result['saving']['median']:.2f} % of an epoch"
        )


def section(results: list[dict[str, Any]], rounds: int) -> str:
    """Return the results as Markdown."""
    names = list(dict.fromkeys(name for result in results for name in result["of_careful"]))
    asked = "required of Bulkhead"
    rows = []
    for result in results:
        shares = {
            name: (
                f"{result['of_careful'][name]['median']:.2f}"
                if name in result["of_careful"]
                else "–"
            )
            for name in names
            if name != HAND
        }
        saving = f"{100 * result['saving']['median']:.2f} %" if "saving" in result else "–"
        least = (
            f"{result['least']:.2f}: {'holds' if holds(result) else 'does not hold'}"
            if result["least"]
            else "–"
        )
        rows.append(
            {"": result["case"]}
            | shares
            | {
                "careful, rows/s": f"{result['rows_per_second'][HAND]:,.0f}",
                "a checkpoint/epoch": saving,
                asked: least,
            }
        )
    return f"""## Training

Rows a second as a share of `careful`, a loop written by hand over tensors in memory that shuffles, clips and follows a schedule, with the same
network, initial weights, optimizer and batch; `bare` does none of these and reads rows in the order of the file. Bulkhead's loop also weighs
rows by the global window, stops all ranks before an update with a value that is not finite, logs, and can be resumed at any step with the same
bits. Medians of {rounds} turns (fewer for the slow networks) in one process; {machine()}; {", ".join(PACKAGES)}.

{markdown_table(rows)}
"""  # noqa: E501


def main(arguments: list[str] | None = None) -> int:
    """Measure every case; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=200_000,
        help="rows of the made-up table; 70 %% of them are trained on",
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="rounds, each with a segment of every loop"
    )
    parser.add_argument("--no-peers", action="store_true", help="loops written by hand alone")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--output", type=Path, default=PAGE, help="page whose section is rewritten")
    options = parser.parse_args(arguments)
    python = None if options.no_peers else peers(home() / "bench-training")
    results = []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
            folder = Path(name)
            spec = case.data(folder, int(options.rows * case.of_rows))
            train = {
                "epochs": 100_000,
                "batch_size": case.batch,
                "patience": 100_000,
                "log_every": 20,
                "ranks": case.ranks,
            }
            config = variant(spec, folder / "resolved.json", model=case.model, train=train)
            results.append(
                measure(case, folder, config, max(2, round(options.rounds * case.effort)), python)
            )
            if not options.json:
                show(results[-1])
    if options.json:
        print(json.dumps(results, indent=1))
    if python:
        write_section("training", section(results, options.rounds), options.output)
    return 0 if all(holds(result) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
