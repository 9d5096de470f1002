"""One measurement of benchmarks.cost in its own process; the last line is JSON.

python -m benchmarks.cost_work prepare TABLE OUT
python -m benchmarks.cost_work train SPEC OUT UNITS BATCH      UNITS: of two hidden layers of an MLP
torchrun … -m benchmarks.cost_work exchange NUMBERS,NUMBERS,…
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

WARM, STEPS, REPEATS = 2, 8, 3


def train(spec_path: Path, out: Path, units: int, batch: int) -> dict[str, Any]:
    """Measure CPU seconds of a step and an evaluation in one thread and seconds of a checkpoint;
    add the quantities that they should depend on.
    """
    import logging

    from benchmarks.loops import OwnLoop
    from benchmarks.made_up import variant
    from training.distributed.parallel import Parallel
    from training.engine.trainer import Trainer
    from training.launch.stop_signal import StopSignal
    from training.main import read_spec

    logging.disable(logging.INFO)
    options = {
        "epochs": 100_000,
        "patience": 100_000,
        "batch_size": batch,
        "log_every": 20,
        "threads": 1,
    }
    config = variant(
        read_spec(spec_path),
        out / "resolved.json",
        model={
            "kind": "mlp",
            "hidden": [units, units],
            "numeric_embedding": "none",
            "dropout": 0.0,
        },
        train=options,
    )
    trainer = Trainer(read_spec(config), out / "run", Parallel(), StopSignal())
    own = OwnLoop(trainer)
    own.run(WARM)
    found = {
        "parameters": trainer.num_parameters,
        "units": 2 * units,
        "batch": batch,
        "rows_evaluated": trainer.spec.arrays.val.rows + trainer.validation.train_rows,
        "step_seconds": _median(STEPS, lambda: own.run(1), time.process_time),
        "evaluation_seconds": _median(REPEATS, trainer._evaluate, time.process_time),
    }
    own.run(1)
    found["checkpoint_seconds"] = _median(1, own.save, time.perf_counter)
    folder = max((out / "run" / "checkpoints").glob("step-*"))
    found["checkpoint_bytes"] = sum(path.stat().st_size for path in folder.iterdir())
    return found


def prepare(table: Path, out: Path) -> dict[str, Any]:
    """Do the work alone; the parent process measures its CPU time and memory."""
    from benchmarks.made_up import COLUMNS
    from benchmarks.preparation import ours

    ours.prepare(table, out, columns=COLUMNS, split="random")
    return {"bytes": sum(path.stat().st_size for path in (out / "arrays").rglob("*.npy"))}


def exchange(numbers: list[int]) -> dict[str, Any]:
    """Measure the seconds to add float32 vectors over the ranks, by size. Call on every rank."""
    from benchmarks import loops
    from training.distributed.parallel import Parallel

    with Parallel.open("cpu") as parallel:
        seconds = [loops.exchange(number, parallel) for number in numbers]
        return {"seconds": seconds} if parallel.is_main else {}


def _median(times: int, work: Callable[[], Any], clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(times):
        begun = clock()
        work()
        seconds.append(clock() - begun)
    return median(seconds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train", spec, out, units, batch]:
            result = train(Path(spec), Path(out), int(units), int(batch))
        case ["prepare", table, out]:
            result = prepare(Path(table), Path(out))
        case ["exchange", numbers]:
            result = exchange([int(number) for number in numbers.split(",")])
        case _:
            sys.exit(str(__doc__))
    if result:
        print(json.dumps(result))
