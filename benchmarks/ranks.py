"""What a second rank costs on one machine, and why: python -m benchmarks.ranks [--rounds 5]

Four ways to make the same steps take turns, each in processes of its own: one process with half the batch on one core;
two such processes that know nothing of each other; two ranks, which exchange gradients; and one process with the whole batch
on all cores. The second less the first is what two cores take from each other (memory, caches, clock); the third less the
second is what the ranks exchange and wait for each other. Writes its section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.made_up import prepare, variant
from benchmarks.page import PAGE, machine, markdown_table, write_section
from schemas.records import RunSpec

BATCH, SEGMENTS, STEPS = 1024, 12, 10
WAYS = {  # processes that know nothing of each other, ranks of each, share of the batch
    "one process, half the batch, one core": (1, 1, 0.5),
    "two such processes": (2, 1, 0.5),
    "two ranks": (1, 2, 1.0),
    "one process, the batch, two cores": (1, 1, 1.0),
}
HALF, PAIR, RANKS, WHOLE = WAYS


def seconds_a_step(way: str, spec: RunSpec, folder: Path) -> float:
    """Median over the segments; of the slowest, where there are several processes."""
    processes, ranks, share = WAYS[way]
    threads = 2 if way == WHOLE else 1
    train = {"epochs": 100_000, "batch_size": int(BATCH * share), "patience": 100_000, "ranks": ranks}
    running = []
    for number in range(processes):
        own = folder / f"{way} {number}".replace(" ", "-")
        own.mkdir(exist_ok=True)
        config = variant(spec, own / "resolved.json", model={"kind": "mlp"}, train=train)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "benchmarks.loops", "--alone"]
        options = {"--config": config, "--run-dir": own / "run", "--out": own / "out.json", "--rounds": SEGMENTS, "--steps": STEPS}
        command = [*launch, *(str(part) for pair in options.items() for part in pair)]
        running.append((subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": str(threads)}), own / "out.json"))
    if any(process.wait() for process, _ in running):
        raise RuntimeError(f"{way}: a process failed; see above")
    return max(float(median(json.loads(out.read_text())["segments"]["bulkhead"])) / STEPS for _, out in running)


def section(found: dict[str, list[float]]) -> str:
    """The results as Markdown."""
    one = found[HALF]
    rows = [{"": way, "ms a step": f"{1000 * median(times):.1f}", "of the first": f"{ratio(times, one):.2f}"} for way, times in found.items()]
    shared, exchanged = ratio(found[PAIR], one) - 1, ratio(found[RANKS], one) - ratio(found[PAIR], one)
    faster = ratio(found[WHOLE], found[RANKS])
    return f"""## Two ranks on one machine

The default MLP, batch {BATCH:,} in all; {machine()}; medians of {len(one)} turns. What two cores take from each other adds {100 * shared:.0f} % to a
step; exchanging gradients and waiting for each other adds {100 * exchanged:.0f} %. Two ranks make {faster:.2f} times the steps of one process with as
many threads as there are cores.

{markdown_table(rows)}
"""


def ratio(times: list[float], reference: list[float]) -> float:
    """Median of `time / reference`, turn by turn."""
    return median(here / there for here, there in zip(times, reference, strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the made-up table")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way")
    parser.add_argument("--output", type=Path, default=PAGE, help="page whose section is rewritten")
    options = parser.parse_args(arguments)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bulkhead-bench-") as name:
        spec = prepare(Path(name), options.rows)
        for _ in range(options.rounds):
            for way in WAYS:
                found[way].append(seconds_a_step(way, spec, Path(name)))
    text = section(found)
    print(text)
    write_section("ranks", text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
