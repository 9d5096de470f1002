"""Kill runs anywhere and compare their ends: SHA-256 of model, optimizer, schedule, scaler,
position and best weights.

    python -m tests.faults.kill --trials 200
    python -m tests.faults.kill --trials 100 --mode elastic

Every trial is a small run under the real torchrun agent: two gloo ranks, dropout, running
statistics, augmentation, accumulation, fp16 with a loss scale that overflows repeatedly,
checkpoints within epochs, evaluations. SIGKILL ends it up to three times: agent, one worker or all,
at a random moment or at a named crash point. It is restarted at once. Mode exact: two ranks, every
fourth trial sharded (FSDP2). Mode elastic: each launch on 1, 2 or 4 ranks. Exit code 1 if a trial
ended unlike the undisturbed run, a targeted crash point was not hit, or nothing could be killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.trials import WORLDS, Reference, Trial, make_reference, plan, points_of, run

SHARDED_EVERY = 4
DRAWS = 5  # draws of kills, until one lands


def setup_of(number: int, mode: str) -> str:
    """Return the setup of a trial."""
    return "sharded" if mode == "exact" and number % SHARDED_EVERY == SHARDED_EVERY - 1 else mode


def aims(trials: int, mode: str) -> list[str]:
    """Return the target of each trial's first kill.

    Every second trial of a setup targets its crash points in turn, the others a random moment.
    """
    seen: Counter[str] = Counter()
    found = []
    for number in range(trials):
        setup = setup_of(number, mode)
        points = points_of(setup)
        found.append(points[seen[setup] // 2 % len(points)] if seen[setup] % 2 == 0 else "")
        seen[setup] += 1
    return found


def run_trials(
    folder: Path, trials: int, mode: str, seed: int, parallel: int, tell: Callable[[str], None]
) -> list[Trial]:
    """Run the trials, `parallel` at once; keep the folders of failed ones."""
    setups = sorted({setup_of(number, mode) for number in range(trials)})
    references = {
        setup: make_reference(folder / "undisturbed", setup, WORLDS[setup]) for setup in setups
    }
    for setup, reference in references.items():
        tell(
            f"undisturbed {setup}: {reference.start_seconds:.1f} s to start,"
            f" {reference.training_seconds:.1f} s to train; model {reference.state['model'][:12]}"
        )
    todo = [
        partial(_trial, folder, number, mode, seed, aim, references)
        for number, aim in enumerate(aims(trials, mode))
    ]
    done = []
    with ThreadPoolExecutor(parallel) as pool:
        for future in as_completed([pool.submit(one) for one in todo]):
            trial = future.result()
            done.append(trial)
            told = trial.failure or "same"
            tell(
                f"[{len(done)}/{trials}] trial {trial.number} {trial.setup}:"
                f" {'; '.join(trial.killed)} -> {told}"
            )
    return sorted(done, key=lambda t: t.number)


def _trial(
    folder: Path, number: int, mode: str, seed: int, aim: str, references: dict[str, Reference]
) -> Trial:
    """Draw the trial's kills and run it; draw again if no kill landed, since that shows nothing."""
    setup = setup_of(number, mode)
    for draw in range(DRAWS):
        dice = random.Random(f"{seed}/{mode}/{number}" + (f"/{draw}" if draw else ""))
        done = run(
            plan(number, setup, aim, dice, references[setup]), folder, references[setup], dice
        )
        if aim and aim not in done.hits and not done.failure:
            done.failure = f"{aim} was aimed at and not hit"
        if done.killed or done.failure:
            return done
    done.failure = f"nothing was killed in {DRAWS} draws: every moment came after the end"
    return done


def summary(done: list[Trial], seconds: float) -> dict[str, Any]:
    """Return the figures of all trials."""
    hits = Counter(hit for trial in done for hit in trial.hits)
    points = {point for trial in done for point in points_of(trial.setup)}
    return {
        "trials": len(done),
        "same": sum(not trial.failure for trial in done),
        "kills": sum(len(trial.killed) for trial in done),
        "launches": sum(trial.launches for trial in done),
        "kills_by_target": dict(
            Counter(
                "point" if kill.startswith("at ") else kill.split()[0]
                for trial in done
                for kill in trial.killed
            )
        ),
        "hits": {point: hits[point] for point in sorted(points)},
        "seconds": round(seconds, 1),
        "failures": [asdict(trial) for trial in done if trial.failure],
    }


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--mode", choices=("exact", "elastic"), default="exact")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the choice of kills; the moments themselves depend on the machine",
    )
    parser.add_argument(
        "--parallel-trials",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="trials at once (default: the cores)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="the summary as JSON on standard output, progress on standard error",
    )
    options = parser.parse_args(arguments)
    folder, begun = Path(tempfile.mkdtemp(prefix="bulkhead-kill-")), time.monotonic()
    tell = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    found = summary(
        run_trials(
            folder, options.trials, options.mode, options.seed, options.parallel_trials, tell
        ),
        time.monotonic() - begun,
    )
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(
            f"{found['same']} of {found['trials']} trials ({options.mode}) ended as the undisturbed"
            f" run: {found['kills']} kills {found['kills_by_target']}, ",
            end="",
        )
        print(f"{found['launches']} launches, {found['seconds']:.0f} s")
        print(
            "crash points hit: "
            + ", ".join(f"{point} {count}" for point, count in found["hits"].items())
        )
    if found["failures"]:
        tell(f"failed trials {[t['number'] for t in found['failures']]}; their folders: {folder}")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
