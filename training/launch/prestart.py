"""Ranks that start before their inputs exist: they import, and wait for the word to begin.

Starting an agent and a rank takes seconds of a core, most of them imports. A caller that has other
work first starts them early with `prestart` and takes them with `taken`. Ranks read nothing of the
run before `taken`: `resolved.json` is read after the word. A launch that differs in its command or
environment ends the waiting one and starts from scratch, so a changed declaration has its effect.

Waiting ranks follow their agent and the agent its launcher (training.launch.stop_signal), as
training ranks do: a killed launcher leaves none behind.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from schemas.config import TrainConfig
from schemas.digest import write_atomic
from training.launch.nodes import Node
from training.launch.torchrun import environment, forget_causes, program, start, stop

BEGIN = "BULKHEAD_BEGIN"  # name of the file that a waiting rank looks for
FILE, LOG = "begin", "train.log"
LOOK_SECONDS = 0.02
# torch sets them to its defaults when it first compiles, e.g. in preflight; so does a rank
DEFAULTS_OF_TORCH = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class _Waiting(NamedTuple):
    process: subprocess.Popen[bytes]
    asked: tuple[list[str], dict[str, str]]


_waiting: dict[Path, _Waiting] = {}


def prestart(run_dir: Path, train: TrainConfig, kind: str) -> None:
    """Start the ranks of a run on this machine; they wait.

    Args:
        run_dir: of a run that has not trained yet; it is created.
        train: gives ranks and threads.
        kind: of the model. Runs on several machines are not started early.
    """
    if train.nodes > 1 or run_dir in _waiting:
        return
    if (run_dir / LOG).exists():  # it has trained before
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    asked = _asked(run_dir, train, kind)
    process = start(run_dir, train, kind=kind, variables={BEGIN: str(run_dir / FILE)})
    _waiting[run_dir] = _Waiting(process, asked)


def taken(
    run_dir: Path, train: TrainConfig, node: Node | None, kind: str
) -> subprocess.Popen[bytes] | None:
    """Let the waiting ranks of a run begin; None if there are none that were started like this."""
    waiting = _waiting.pop(run_dir, None)
    if waiting is None:
        return None
    if (
        node is not None
        or waiting.process.poll() is not None
        or waiting.asked != _asked(run_dir, train, kind)
    ):
        _end(run_dir, waiting)
        return None
    write_atomic(run_dir / FILE, "")
    return waiting.process


def begun(run_dir: Path) -> None:
    """Remove the word to begin, after the training."""
    (run_dir / FILE).unlink(missing_ok=True)


def end_waiting() -> None:
    """End the ranks that nobody took; they have nothing to save."""
    while _waiting:
        _end(*_waiting.popitem())


def wait_to_begin() -> None:
    """Wait for the word, in a rank that was started early; others go on at once."""
    if name := os.environ.get(BEGIN):
        while not Path(name).exists():
            time.sleep(LOOK_SECONDS)


def _asked(run_dir: Path, train: TrainConfig, kind: str) -> tuple[list[str], dict[str, str]]:
    variables = environment(train, run_dir / "error.json")
    for name in DEFAULTS_OF_TORCH:
        variables.pop(name, None)
    return program(run_dir, train, None, kind), variables


def _end(run_dir: Path, waiting: _Waiting) -> None:
    stop(waiting.process)
    (run_dir / LOG).unlink(missing_ok=True)  # the agent's words on being ended
    forget_causes(run_dir)
