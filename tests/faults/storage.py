"""Die at every write, fsync, rename and unlink; whatever is left must load, and the run must end
the same.

    python -m tests.faults.storage                 every operation of single saves and of a small run
    python -m tests.faults.storage --stride 10     every tenth

Everything runs in forked children of this process, which only loads the modules. A child counts its
operations on files (tests.faults.interpose) and kills itself at one of them, a write after half of
its bytes. Then every committed checkpoint verifies and the newest of them is used. Another child
ends the run with the SHA-256 of the undisturbed one, with nothing left over. Exit code 1 otherwise.
"""  # noqa: E501

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.faults.final_state import final_state, unsound
from tests.faults.interpose import Interposer
from tests.faults.saved_runs import STEPS, opened, save
from tests.training.runs import make_run
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal

SECTIONS: dict[str, Any] = {
    "model": {"kind": "mlp", "hidden": [8], "dropout": 0.2},
    "train": {
        "epochs": 2,
        "batch_size": 16,
        "checkpoint_every": 2,
        "keep": 2,
        "log_every": 2,
        "threads": 1,
    },
}
# loaded once here, not in each child
LOADED_LATE = ("training.objectives.metrics", "torch._dynamo")
MEMORY = (  # a file system on which a flush costs nothing; there are thousands of them here
    "/dev/shm"
)
KILLED = -9


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Do the work in a forked child.

    Return its exit code, negative for a signal, and as JSON what it returned or raised.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        code, answer = 0, None
        try:
            answer = work()
        except Exception as error:  # reported to the parent
            code, answer = 1, f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), json.loads(told or b"null")


def sweep(
    what: str, work: Callable[[int], list[str]], check: Callable[[int], str], stride: int = 1
) -> dict[str, Any]:
    """Die at every `stride`-th operation of some work; return the number of deaths by kind, and the
    errors after them.

    Args:
        what: name in words.
        work: dies at the operation of that number (0: at none) and returns the names of all; each
            number starts from scratch.
        check: takes a number after the death; returns an error, or nothing.
        stride: 1 = every operation.
    """
    code, names = in_child(lambda: work(0))
    if code != 0:
        raise RuntimeError(f"{what} without a death failed: {names}")
    died, failures = Counter[str](), list[str]()
    for fatal in range(1, len(names) + 1, stride):
        code, answer = in_child(partial(work, fatal))
        failure = (
            _checked(check, fatal) if code == KILLED else f"expected a death, got {code}: {answer}"
        )
        died[names[fatal - 1]] += code == KILLED
        failures += (
            [f"{what}, operation {fatal} ({names[fatal - 1]}): {failure}"] if failure else []
        )
    return {
        "what": what,
        "operations": len(names),
        "deaths": sum(died.values()),
        "by_kind": dict(sorted(died.items())),
        "failures": failures,
    }


def _checked(check: Callable[[int], str], fatal: int) -> str:
    try:
        return check(fatal)
    except Exception as error:  # a state that cannot be checked is a finding
        return f"{type(error).__name__}: {error}"


# whole runs


def sweep_run(folder: Path, stride: int) -> dict[str, Any]:
    """Die in a run from its start to its end."""

    def run(fatal: int, dies: bool) -> list[str]:
        spec = make_run(folder / f"data-{fatal}", rows=(80, 24), **SECTIONS)
        interposer = Interposer(fatal if dies else 0).install()
        train(spec, folder / f"run-{fatal}", Parallel(), StopSignal())
        return interposer.names

    def check(fatal: int) -> str:
        run_dir = folder / f"run-{fatal}"
        wrong = unsound(run_dir)
        newest = max((path.name for path in run_dir.glob("checkpoints/step-*")), default="")
        finished = (run_dir / "result.json").exists()
        code, answer = in_child(lambda: run(fatal, dies=False))
        if wrong or code != 0:
            return f"not whole: {wrong}" if wrong else f"cannot go on: {answer}"
        if (
            newest
            and not finished
            and f"resumed from {newest}" not in (run_dir / "metrics.jsonl").read_text()
        ):
            return f"{newest} was not used"
        differing = [
            name
            for name, value in final_state(run_dir).items()
            if value != final_state(folder / "run-0")[name]
        ]
        return (
            f"other {differing}"
            if differing
            else ", ".join(f"left over: {path.name}" for path in run_dir.rglob(".*"))
        )

    return sweep("a run", lambda fatal: run(fatal, dies=True), check, stride)


# single saves


def sweep_save(
    folder: Path, layout: str, before: tuple[int, ...], stride: int = 1
) -> dict[str, Any]:
    """Die while the last step and its best weights are committed and the oldest are pruned.

    The commit writes new files, or replaces the same ones.
    """
    made = folder / f"{layout}-{len(before)}"
    save(made, layout, before)

    def work(fatal: int) -> list[str]:
        root = folder / f"{made.name}-{fatal}"
        shutil.copytree(made, root)
        interposer = Interposer(fatal).install()
        save(root, layout, STEPS[-1:], keep=2)
        return interposer.names

    def check(fatal: int) -> str:
        root = folder / f"{made.name}-{fatal}"
        newest = opened(root).newest()
        expected = (STEPS[-1],) if STEPS[-1] in before else STEPS[-2:]
        if newest not in expected:
            return f"step {newest} is the newest, expected {expected}"
        save(root, layout, STEPS[-1:], keep=2)
        names = sorted(path.name for path in root.iterdir())
        wanted = [f"{kind}-{step:08d}" for kind in ("best", "step") for step in STEPS[-2:]]
        return (
            ""
            if names == wanted and opened(root).newest() == STEPS[-1]
            else f"after the next save there are {names}"
        )

    return sweep(
        f"a {layout} save {'over itself' if STEPS[-1] in before else 'of a new step'}",
        work,
        check,
        stride,
    )


def sweep_all(folder: Path, stride: int) -> list[dict[str, Any]]:
    """Die at every `stride`-th operation of a run, and ten times as often in single saves of both
    layouts.
    """
    torch.set_num_threads(1)  # a process must have no threads before it forks
    logging.disable(logging.WARNING)
    for module in LOADED_LATE:
        importlib.import_module(module)
    saves = [
        sweep_save(folder, layout, before, -(-stride // 10))
        for layout in ("whole", "sharded")
        for before in (STEPS[:-1], STEPS)
    ]
    return [*saves, sweep_run(folder, stride)]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.storage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--stride",
        type=int,
        default=1,
        help="of the operations of the run; of single saves a tenth of it",
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="bulkhead-storage-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as folder:
        done = sweep_all(Path(folder), options.stride)
    if options.json:
        print(json.dumps(done, indent=1))
    for one in done if not options.json else ():
        print(
            f"{one['what']}: {one['deaths']} deaths in {one['operations']} operations"
            f" {one['by_kind']}, {len(one['failures'])} failures"
        )
        print("".join(f"  FAILED {failure}\n" for failure in one["failures"][:10]), end="")
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 1 if any(one["failures"] for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
