"""Processes that a program starts with `torch.multiprocessing`, each watched as a separate rank."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from schemas.digest import write_atomic
from training.distributed.parallel import LAST_TENSOR_SECONDS
from training.watch.events import Listener
from training.watch.patches import REPLACED, around
from training.watch.record import Watch


class Spawned(Listener):
    """Listener for `torch.multiprocessing.start_processes`, which `spawn` also calls."""

    def __init__(self, watch: Watch, folder: Path) -> None:
        self.watch, self.folder = watch, folder
        self.groups = 0

    def install(self) -> None:
        """Install hooks for both names of the function."""
        for owner in (
            importlib.import_module("torch.multiprocessing.spawn"),
            torch.multiprocessing,
        ):
            around(owner, "start_processes", self._start)

    def _start(
        self,
        original: Callable[..., Any],
        fn: Any,
        args: Any = (),
        nprocs: int = 1,
        *more: Any,
        **options: Any,
    ) -> Any:
        if self.watch.quiet:
            return original(fn, args, nprocs, *more, **options)
        self.groups += 1
        report = self.folder / f"spawned-{self.groups}"
        return original(
            rank,
            (fn, str(report), nprocs, str(self.watch.program), self.watch.seconds, args),
            nprocs,
            *more,
            **options,
        )


def rank(
    index: int,
    fn: Callable[..., Any],
    report: str,
    ranks: int,
    program: str,
    seconds: float,
    args: tuple[Any, ...],
) -> None:
    """Run the program's function in one process under watch, and write a report next to the others.

    A forked process still has the silent listeners of its parent, and gets its own around them.
    """
    from training.watch.main import quieten, watched  # main imports this module

    path = Path(f"{report}-{index}.json")
    quieten()

    def run() -> dict[str, Any]:
        # the program imported these names before the hooks existed
        known = getattr(fn, "__globals__", {})
        for name, value in list(known.items()):
            if id(value) in REPLACED:
                known[name] = REPLACED[id(value)][1]
        fn(index, *args)
        return {}

    told, raised = watched(
        Path(program),
        seconds,
        path.with_suffix(".calls") if ranks > 1 else None,
        run,
        leads=not index,
    )
    write_atomic(path, json.dumps(told))
    # the threads of gloo must release the last tensor before Python ends
    time.sleep(LAST_TENSOR_SECONDS)
    if raised is not None:
        raise raised
