"""Cost of more ranks on one machine, and its causes: python -m benchmarks.ranks [--rounds 3]   (under 4 minutes on 2 cores)

Four ways to make the same steps take turns, each in its own processes: (1) one process with a part
of the batch on one core; (2) as many such processes as ranks, which do not communicate; (3) the
ranks, which exchange gradients; (4) one process with the whole batch on all cores. Way 2 less way 1
is what processes take from each other (cores, memory, caches, clock). Way 3 less way 2 is exchange
and waiting. The table also shows the exchange alone. Writes its section of docs/benchmarks.md.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.made_up import prepare, variant
from benchmarks.page import PAGE, machine, markdown_table, write_section
from schemas.records import RunSpec

BATCH, SEGMENTS, STEPS = 1024, 8, 8


class Way(NamedTuple):
    """A way to run: `processes` that do not communicate, `ranks` of each, a process's `share` of
    the batch, and `threads` of each rank.
    """

    processes: int
    ranks: int
    share: float
    threads: int = 1


WAYS = {
    "one process, the batch, two cores": Way(1, 1, 1.0, 2),
    "one process, half the batch, one core": Way(1, 1, 0.5),
    "two such processes": Way(2, 1, 0.5),
    "two ranks": Way(1, 2, 1.0),
    "one process, a quarter of the batch, one core": Way(1, 1, 0.25),
    "four such processes": Way(4, 1, 0.25),
    "four ranks": Way(1, 4, 1.0),
}
WHOLE, HALF, PAIR, TWO, QUARTER, FOURFOLD, FOUR = WAYS


class Turn(NamedTuple):
    """One turn of a way: seconds of a step, and of an exchange of gradients alone."""

    step: float
    exchange: float


def take_turn(way: str, spec: RunSpec, folder: Path) -> Turn:
    """Return the median over the segments, of the slowest process if there are several."""
    found = WAYS[way]
    train = {
        "epochs": 100_000,
        "batch_size": int(BATCH * found.share),
        "patience": 100_000,
        "ranks": found.ranks,
    }
    running = []
    for number in range(found.processes):
        own = folder / f"{way} {number}".replace(" ", "-")
        own.mkdir(exist_ok=True)
        config = variant(spec, own / "resolved.json", model={"kind": "mlp"}, train=train)
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(found.ranks),
            "-m",
            "benchmarks.loops",
            "--alone",
        ]
        options = {
            "--config": config,
            "--run-dir": own / "run",
            "--out": own / "out.json",
            "--rounds": SEGMENTS,
            "--steps": STEPS,
        }
        command = [*launch, *(str(part) for pair in options.items() for part in pair)]
        running.append(
            (
                subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": str(found.threads)}),
                own / "out.json",
            )
        )
    codes = [process.wait() for process, _ in running]
    if any(codes):
        raise RuntimeError(f"{way}: a process failed; see above")
    outs = [json.loads(out.read_text()) for _, out in running]
    return Turn(
        max(median(out["segments"]["bulkhead"]) for out in outs) / STEPS,
        max(out["exchange"] for out in outs),
    )


def explained(found: dict[str, list[Turn]], alone: str, beside: str, ranks: str) -> str:
    """Explain in words what a neighbour and the exchange add to a step."""
    one = steps(found[alone])
    shared, whole = ratio(steps(found[beside]), one) - 1, ratio(steps(found[ranks]), one)
    sent = median(turn.exchange / turn.step for turn in found[ranks])
    return (
        f"{ranks[0].upper()}{ranks[1:]}: what processes take from each other adds"
        f" {100 * shared:.0f} % to a step; exchanging gradients and waiting for each other adds"
        f" {100 * (whole - 1 - shared):.0f} %. Adding a gradient over the ranks, with nothing else"
        f" to do, takes {100 * sent:.0f} % of such a step."
    )


def section(found: dict[str, list[Turn]]) -> str:
    """Return the results as Markdown."""
    one, whole = steps(found[HALF]), steps(found[WHOLE])
    rows = [
        {
            "": way,
            "ms a step": f"{1000 * median(steps(turns)):.1f}",
            "of half the batch": f"{ratio(steps(turns), one):.2f}",
            "the exchange alone, ms": (
                f"{1000 * median(turn.exchange for turn in turns):.2f}"
                if WAYS[way].ranks > 1
                else "–"
            ),
        }
        for way, turns in found.items()
    ]
    return f"""## Ranks on one machine

`python -m benchmarks.ranks`: the default MLP, batch {BATCH:,} in all; {machine()}; medians of {len(one)} turns.
{explained(found, HALF, PAIR, TWO)}
{explained(found, QUARTER, FOURFOLD, FOUR)}
One process with two threads makes the step of the whole batch in {ratio(whole, steps(found[TWO])):.2f} of the two ranks' time.

{markdown_table(rows)}
"""  # noqa: E501


def steps(turns: list[Turn]) -> list[float]:
    """Return the seconds of a step, turn by turn."""
    return [turn.step for turn in turns]


def ratio(times: list[float], reference: list[float]) -> float:
    """Return the median of `time / reference`, turn by turn."""
    return median(here / there for here, there in zip(times, reference, strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the section."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ranks", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the made-up table")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way")
    parser.add_argument("--output", type=Path, default=PAGE, help="page whose section is rewritten")
    options = parser.parse_args(arguments)
    found: dict[str, list[Turn]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
        spec = prepare(Path(name), options.rows)
        for _ in range(options.rounds):
            for way in WAYS:
                found[way].append(take_turn(way, spec, Path(name)))
    text = section(found)
    print(text)
    write_section("ranks", text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
