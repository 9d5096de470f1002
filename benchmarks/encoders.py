"""Rows a second with each encoder, compared with a loop written by hand over the same arrays.

    python -m benchmarks.encoders [--rows 4000] [--rounds 28] [--only NAME]   (3 minutes on 2 cores)

Prepares a generated table for each encoder of texts, sets, molecules, pictures and series with the
real data pipeline. Bulkhead's loop and the careful loop of `benchmarks.loops` then take turns, in
segments of 0.15 s: the same network, initial weights, optimizer and batch. The
hand-written loop has windows of series written out in memory. Writes its section of
docs/benchmarks.md. Exit code 0 if Bulkhead has 0.95 of the other's rows a second with each.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.loops import HandWritten, OwnLoop, Segment, take_turns
from benchmarks.made_up import variant
from benchmarks.made_up_kinds import prepare_kind
from benchmarks.page import PAGE, machine, markdown_table, write_section
from benchmarks.throughput import ratios, spread
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.main import read_spec

LEAST, SEGMENT_SECONDS = 0.95, 0.15
LARGE, BATCH = 1024, 64  # of networks whose step takes a millisecond, and of others


class Case(NamedTuple):
    """One encoder: the kind of its column, the encoder as declared, and rows of a batch."""

    name: str
    kind: str
    encoder: dict[str, Any] | None = None
    batch: int = BATCH


CASES = (
    Case("text, bag", "text", batch=LARGE),
    Case("text, transformer", "text", {"kind": "transformer"}),
    Case("set, bag", "set", batch=LARGE),
    Case("molecule, fingerprint", "smiles", {"kind": "fingerprint"}, LARGE),
    Case("molecule, graph", "smiles", {"kind": "graph"}),
    Case("molecule, transformer", "smiles", {"kind": "transformer"}),
    Case("picture, cnn", "image", {"kind": "cnn"}),
    Case("picture, resnet", "image", {"kind": "resnet", "channels": [16, 32]}),
    Case("windows, tcn", "windows", {"kind": "tcn"}),
    Case("windows, gru", "windows", {"kind": "gru"}),
    Case("windows, transformer", "windows", {"kind": "transformer"}),
)


class Result(NamedTuple):
    """Rows a second of both loops, and Bulkhead's share of the other's by round."""

    case: Case
    own: float
    careful: float
    share: dict[str, float]

    @property
    def holds(self) -> bool:
        """Return True if Bulkhead is fast enough."""
        return self.share["median"] >= LEAST


def measure(case: Case, folder: Path, rows: int, rounds: int) -> Result:
    """Prepare a table and let both loops take turns in this process."""
    folder.mkdir(exist_ok=True)
    train = {"epochs": 100_000, "batch_size": case.batch, "patience": 100_000, "log_every": 20}
    config = variant(
        prepare_kind(folder, rows, case.kind, case.encoder),
        folder / "resolved.json",
        model={"kind": "mlp", "hidden": [128]},
        train=train,
    )
    spec, parallel = read_spec(config), Parallel()
    loops: dict[str, Segment] = {
        "bulkhead": OwnLoop(Trainer(spec, folder / "run", parallel, StopSignal())).run,
        "careful": HandWritten(spec, parallel, careful=True).run,
    }
    loops["careful"](2)
    begun = time.perf_counter()
    loops["careful"](2)
    steps = max(2, round(SEGMENT_SECONDS * 2 / (time.perf_counter() - begun)))
    seconds = take_turns(loops, rounds, steps, parallel)
    own, careful = (case.batch * steps / median(seconds[name]) for name in loops)
    return Result(case, own, careful, spread(ratios(seconds["bulkhead"], seconds["careful"])))


def section(results: list[Result], rounds: int) -> str:
    """Return the results as Markdown."""
    rows = [
        {
            "encoder": result.case.name,
            "batch": str(result.case.batch),
            "Bulkhead, rows/s": f"{result.own:,.0f}",
            "by hand, rows/s": f"{result.careful:,.0f}",
            "Bulkhead / by hand": "{median:.2f} [{low:.2f}, {high:.2f}]".format(**result.share),
            f"{LEAST} asked": "holds" if result.holds else "does not hold",
        }
        for result in results
    ]
    return (
        f"## Encoders\n\n`python -m benchmarks.encoders` on {machine()}: the encoder and a hidden"
        " layer of 128, against the loop `careful` of the section on training, over the same"
        f" arrays in memory. Medians and quartiles of {rounds} turns.\n\n{markdown_table(rows)}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure every encoder; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encoders", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=4000, help="rows of each table")
    parser.add_argument("--rounds", type=int, default=28, help="turns of both loops")
    parser.add_argument("--only", help="encoders whose name holds this; the page stays")
    parser.add_argument("--output", type=Path, default=PAGE, help="page whose section is rewritten")
    options = parser.parse_args(arguments)
    logging.disable(logging.INFO)
    results = []
    for case in CASES:
        if options.only and options.only not in case.name:
            continue
        with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
            results.append(measure(case, Path(name), options.rows, options.rounds))
        own, careful, share = results[-1][1:]
        print(
            f"{case.name:<22} {own:>9,.0f} rows/s, by hand {careful:>9,.0f}:"
            f" {share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})",
            flush=True,
        )
    if not options.only:
        write_section("encoders", section(results, options.rounds), options.output)
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
