"""Work of the ranks in tests of steps that are decided on the device; call on every rank."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from schemas.errors import NonFiniteError
from schemas.records import RunSpec
from tests.distributed.layout_work import state_digest, stop_at
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal


def both_ways(parallel: Parallel, folder: str, stop: int) -> dict[str, Any]:
    """Run everything below the folder twice; return the results by name.

    First each step waits for its gate; then the next step is launched before. The last rank stops
    the second run at a step, and it resumes. Runs with a bad row end in an error, which is
    returned.
    """
    outcomes: dict[str, Any] = {}
    for config in sorted(Path(folder).glob("*/resolved.json")):
        ways = {"waits": (False, (None,)), "ahead": (True, (stop, None))}
        outcomes[config.parent.name] = {
            way: _one(parallel, config, config.parent / way, *options)
            for way, options in ways.items()
        }
    return outcomes


def _one(
    parallel: Parallel, config: Path, run_dir: Path, ahead: bool, stops: tuple[int | None, ...]
) -> dict[str, Any]:
    spec, steps, told = RunSpec.model_validate_json(config.read_text()), [], ""
    for last in stops:
        trainer = Trainer(spec, run_dir, parallel, StopSignal())
        trainer.step.ahead = ahead
        stop_at(trainer, last)
        try:
            steps.append(trainer.run().steps)
        except NonFiniteError as error:
            told = str(error).replace(str(run_dir), "")
    dumps = [
        hashlib.sha256(path.parent.name.encode()).hexdigest()
        for path in sorted(run_dir.glob("dumps/*/dump.pt"))
    ]
    return {
        "steps": steps[-1:],
        "stopped": steps[:-1],
        "told": told,
        "dumps": dumps,
        "state": state_digest(trainer),
    }
