"""Join a run that another machine has started."""

from __future__ import annotations

from pathlib import Path

from schemas.load import declare
from schemas.records import TrainReport
from tasks.ranks import require_gpus
from tasks.say import say
from tasks.stop import SAVE_SECONDS, take
from training.launch.nodes import claim, wait_for_launch
from training.launch.torchrun import leave_cause, start, stop
from training.main import read_spec
from training.run.record import RESULT, read_part


def join_run(run_dir: Path, wait_seconds: float) -> int:
    """Run this machine's ranks of a run to its end; return exit code 0 if the run finished, else 1.

    Args:
        run_dir: directory of the run, on a file system shared with the first machine.
        wait_seconds: longest wait for the first machine to start it.

    Raises:
        LaunchError: it was not started in time, or has all its machines.
        ConfigError: this machine's software differs from the first one's, or it has too few GPUs.
    """
    run_dir = run_dir.absolute()
    say(
        "join",
        f"waiting up to {wait_seconds:.0f} s for the first machine to start {run_dir}",
        "info",
    )
    launch = wait_for_launch(run_dir, wait_seconds)
    node = claim(run_dir, launch)
    spec = read_spec(run_dir / "resolved.json")
    train = declare(spec.declaration, str(run_dir / "resolved.json")).train
    require_gpus(train)
    first = node.number * launch.ranks_per_node
    log = run_dir / f"train-node-{node.number}.log"
    say(
        "join",
        f"{launch.run_id}: machine {node.number} of {launch.nodes}, ranks {first} to"
        f" {first + launch.ranks_per_node - 1}; log {log}",
        "info",
    )
    process = start(run_dir, train, node)
    try:
        code = process.wait()
    except BaseException:
        take(SAVE_SECONDS)
        stop(process)
        raise
    leave_cause(run_dir, node, code)
    finished = code == 0 and _finished(run_dir)
    say(
        "join",
        f"{launch.run_id}:"
        f" {'done' if finished else f'ended before its end (torchrun: exit code {code});'}"
        f"{'' if finished else f' see the first machine and {log}'}",
        "done" if finished else "fail",
    )
    return 0 if finished else 1


def _finished(run_dir: Path) -> bool:
    """Return True if the training finished: an interrupted one also leaves a result."""
    return (run_dir / RESULT).is_file() and read_part(
        run_dir, RESULT, TrainReport
    ).status != "interrupted"
