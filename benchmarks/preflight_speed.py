"""Duration of preflight for each built-in model.

    python -m benchmarks.preflight_speed

Each model runs with its defaults in its own process, on generated rows: a table of 30 numeric and
4 categorical columns, images of 28 x 28, texts in sequences of 128 letters. The start of torch's
compiler is included. Exit code 0 if each takes under ten seconds. The duration of a plain Python
loop is printed too, since machines differ more than versions of preflight.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.made_up import prepare, prepare_images, prepare_texts
from schemas.records import RunSpec

MOST_SECONDS = 10.0
ROWS, ROUNDS = 4000, 10_000_000
MODELS = {
    prepare: ("linear", "mlp", "resmlp", "ft_transformer"),
    prepare_images: ("cnn",),
    prepare_texts: ("causal_transformer",),
}


def seconds_of(run: RunSpec) -> float:
    """Return the seconds of a preflight, which must pass.

    Raises:
        PreflightError: it did not.
    """
    from training.preflight.run import preflight, require_passed

    report = preflight(run)
    require_passed(report)
    return report.seconds


def main() -> int:
    """Measure and print; return 0 if each was fast enough."""
    slowest = 0.0
    with tempfile.TemporaryDirectory() as name:
        for made, kinds in MODELS.items():
            folder = Path(name, made.__name__)
            folder.mkdir()
            run = made(folder, ROWS)
            for kind in kinds:
                declared = run.model_copy(
                    update={"declaration": run.declaration | {"model": {"kind": kind}}}
                )
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                    seconds = alone.submit(seconds_of, declared).result()
                print(f"{kind:20}{seconds:5.1f} s", flush=True)
                slowest = max(slowest, seconds)
    started, total = time.perf_counter(), 0
    for number in range(ROUNDS):
        total += number * number & 7
    print(f"{ROUNDS:,} rounds of a loop: {time.perf_counter() - started:.1f} s")
    return 0 if slowest < MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
