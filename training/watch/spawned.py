"""Processes that a program starts by `torch.multiprocessing.spawn`: each is watched as a rank of its own."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from schemas.digest import write_atomic
from training.parallel import LAST_TENSOR_SECONDS
from training.watch.patches import REPLACED, around
from training.watch.record import Watch


class Spawned:
    """Listens to `torch.multiprocessing.start_processes`, which `spawn` calls, too."""

    def __init__(self, watch: Watch, folder: Path) -> None:
        self.watch, self.folder = watch, folder
        self.groups = 0

    def install(self) -> None:
        """Listen."""
        for owner in (importlib.import_module("torch.multiprocessing.spawn"), torch.multiprocessing):
            around(owner, "start_processes", self._start)

    def _start(self, original: Callable[..., Any], fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> Any:
        method = options.pop("start_method", None) or (more[2:] or ("spawn",))[0]
        more = more[:2]
        if self.watch.quiet or not _can_be_sent(fn, args):
            return original(fn, args, nprocs, *more, start_method=method, **options)
        self.groups += 1
        report = self.folder / f"spawned-{self.groups}"
        given = (fn, str(report), nprocs, str(self.watch.program), self.watch.seconds, args)
        # a fork of this process would hold what is listened to twice over; a new one knows what it is sent, and what the file makes when it is imported
        return original(rank, given, nprocs, *more, start_method="spawn", **options)


def _can_be_sent(*given: Any) -> bool:
    """Whether a new process can be told of these."""
    try:
        ForkingPickler.dumps(given)
    except Exception:  # what a program's own class raises there, too
        return False
    return True


def rank(index: int, fn: Callable[..., Any], report: str, ranks: int, program: str, seconds: float, args: tuple[Any, ...]) -> None:
    """One process: what the program wanted to run there, under watch, and a report beside the program's own."""
    from training.watch.main import quieten, watched  # which imports this module

    path = Path(f"{report}-{index}.json")
    quieten()

    def run() -> dict[str, Any]:
        known = getattr(fn, "__globals__", {})  # the program has imported its names before anything was listened to
        for name, value in list(known.items()):
            if id(value) in REPLACED:
                known[name] = REPLACED[id(value)][1]
        fn(index, *args)
        return {}

    told, raised = watched(Path(program), seconds, path.with_suffix(".calls") if ranks > 1 else None, run, leads=not index)
    write_atomic(path, json.dumps(told))
    time.sleep(LAST_TENSOR_SECONDS)  # gloo's threads drop the tensor of the last collective while Python is still there
    if raised is not None:
        raise raised
