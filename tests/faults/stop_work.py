"""Runs that are asked to stop in each phase, in forked children of one process: python -m
tests.faults.stop_work FOLDER [PHASE …] (prints JSON).

A child halts itself in the phase (BULKHEAD_CRASH=…:STOP, or in a forward pass of its network). Only
then it gets the signal and continues, so that the signal arrives in that phase.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.faults.final_state import final_state
from tests.faults.storage import LOADED_LATE
from tests.training.runs import make_run
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal
from training.run.crash_points import POINTS, VARIABLE

SECTIONS: dict[str, Any] = {
    "model": {"kind": "custom", "path": "tests.faults.networks:Delicate"},
    "train": {
        "epochs": 2,
        "batch_size": 16,
        "micro_batch_size": 6,
        "checkpoint_every": 2,
        "log_every": 1,
        "keep": 2,
        "threads": 1,
    },
}
# need sharded ranks, or an earlier kill
NOT_HERE = ("checkpoint.shards_agreed", "checkpoint.old_moved")
# halt at the second visit
SECOND = ("step", "checkpoint.begun", "checkpoint.file_written", "checkpoint.renamed")
PHASES = {
    point: (VARIABLE, f"{point}:{2 if point.startswith(SECOND) else 1}::STOP")
    for point in POINTS
    if point not in NOT_HERE
} | {
    "accumulation": ("BULKHEAD_TEST_HOLD", "STOP:0:train:5"),  # the second of three micro-batches
    "scoring": ("BULKHEAD_TEST_HOLD", "STOP:0:eval:2"),
}


def go(folder: Path, run: str, variable: str = "", value: str = "") -> int:
    """Train in a forked child that halts at the variable's point; return its process id."""
    process = os.fork()
    if process == 0:
        if variable:
            os.environ[variable] = value
        spec = make_run(folder / f"data-{run}", rows=(80, 24), **SECTIONS)
        try:
            status = train(spec, folder / run, Parallel(), StopSignal().install_when_ready()).status
        except Exception as error:  # reported to the parent
            status = f"{type(error).__name__}: {error}"
        (folder / f"status-{run}").write_text(status)
        os._exit(0)
    return process


def stop_in(folder: Path, phase: str, number: int, expected: dict[str, str]) -> dict[str, Any]:
    """Send the signal in the phase, check the saved state, and continue to the end."""
    run = f"{phase}-{number}"
    process = go(folder, run, *PHASES[phase])
    halted = os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1])
    os.kill(process, number)
    begun = time.monotonic()
    os.kill(process, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    journal = folder / run / "metrics.jsonl"
    lines = (
        [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    )
    found: dict[str, Any] = {
        "halted": halted,
        "seconds": time.monotonic() - begun,
        "status": (
            f"died of {signal.Signals(-code).name}"
            if code < 0
            else (folder / f"status-{run}").read_text()
        ),
        "applied": max((line["step"] for line in lines if line["kind"] == "step"), default=0),
        "evaluated": max(
            (line["step"] for line in lines if line["kind"] == "evaluation"), default=0
        ),
        "saved": max(
            (int(path.name[5:]) for path in (folder / run / "checkpoints").glob("step-*")),
            default=0,
        ),
        "events": [line["message"] for line in lines if line["kind"] == "event"],
    }
    os.waitpid(go(folder, run), 0)
    return {
        **found,
        "ended": (folder / f"status-{run}").read_text(),
        "same": final_state(folder / run) == expected,
    }


def main() -> None:
    """Stop a run in each phase and print the results as JSON."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)  # a process must have no threads before it forks
    logging.disable(logging.WARNING)
    for module in LOADED_LATE:
        importlib.import_module(module)
    os.waitpid(go(folder, "whole"), 0)
    expected = final_state(folder / "whole")
    numbers, wanted = (signal.SIGTERM, signal.SIGINT), sys.argv[2:] or PHASES
    print(
        json.dumps(
            {
                phase: stop_in(folder, phase, numbers[i % 2], expected)
                for i, phase in enumerate(PHASES)
                if phase in wanted
            }
        )
    )


if __name__ == "__main__":
    main()
