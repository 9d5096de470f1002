"""Process that runs a program under watch: `python -m training.watch.main REPORT SECONDS PROGRAM
[ARGUMENT]…`.

The program runs as with `python PROGRAM`, with all its effects. Its output goes to standard error.
REPORT is a JSON file with the findings, the end of the program, and failed checks.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.digest import write_atomic
from training.watch.copies import Copies
from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.gradients import Gradients
from training.watch.kept import Kept
from training.watch.launch import starts_ranks
from training.watch.lengths import Lengths
from training.watch.loaders import Loaders
from training.watch.losses import Functions
from training.watch.metrics import Metrics
from training.watch.modes import Modes, Wrappers
from training.watch.networks import Networks
from training.watch.operators import Operators
from training.watch.orders import Orders
from training.watch.own_losses import OwnLosses
from training.watch.padding import Padding
from training.watch.ranks import Ranks, log_of
from training.watch.record import Enough, Watch
from training.watch.rows import Fits, Rows
from training.watch.scales import Scales
from training.watch.schedules import Schedules
from training.watch.scopes import Scopes
from training.watch.seeds import Seeds
from training.watch.sets import Sets, Sides, Streams
from training.watch.spawned import Spawned
from training.watch.tables import Tables
from training.watch.targets import Targets, UnseenClasses
from training.watch.updates import Precision, Updates

UNUSED = "find_unused_parameters=True"  # from the error text of DDP


def watch(
    program: Path,
    arguments: list[str],
    seconds: float,
    calls: Path | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Run a program in this process and listen to torch from then on.

    Args:
        program: a Python file.
        arguments: command line arguments of the program.
        seconds: time after which the program ends at its next optimizer step.
        calls: file for the collectives of this rank, if there are several ranks.
        folder: folder for the reports of processes that it starts.

    Returns:
        The report.
    """
    program = program.resolve()

    def run() -> dict[str, Any]:
        sys.argv = [str(program), *arguments]
        sys.path.insert(0, str(program.parent))
        return runpy.run_path(str(program), run_name="__main__")

    return watched(
        program, seconds, calls, run, leads=os.environ.get("RANK", "0") == "0", folder=folder
    )[0]


def watched(
    program: Path,
    seconds: float,
    calls: Path | None,
    run: Callable[[], dict[str, Any]],
    leads: bool,
    folder: Path | None = None,
) -> tuple[dict[str, Any], BaseException | None]:
    """Call a function with all listeners installed.

    Args:
        program: file whose lines appear in findings.
        seconds: time after which it ends at its next optimizer step.
        calls: file for the collectives of this rank, if there are several ranks.
        run: function that returns the objects to keep alive. Networks of a process group may hang
            forever when they are destroyed after the group.
        leads: true for the first rank.
        folder: folder for the reports of processes that it starts; None to not watch them.

    Returns:
        The report, and the exception that was raised.
    """
    seen = Watch(
        program,
        seconds,
        calls.with_name(f"{calls.stem.rpartition('-')[0]}stop") if calls else None,
        leads,
    )
    functions, ranks_told, even_windows = _listen(seen, calls)
    if folder is not None:
        Spawned(seen, folder).install()
    error, error_at = "", None
    left: BaseException | None = None
    with functions:
        try:
            seen.namespace = run()
            seen.complete = True
        except Enough:
            pass
        except SystemExit as ended:
            seen.complete, left = ended.code in (None, 0), ended
            error = "" if seen.complete else f"it exited with {ended.code}"
        except (Exception, KeyboardInterrupt) as raised:
            traceback.print_exc()
            error, left = (
                f"{type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}",
                raised,
            )
            owned = [
                (f.f_code.co_filename, n)
                for f, n in traceback.walk_tb(raised.__traceback__)
                if seen.owns(f.f_code.co_filename)
            ]
            error_at = owned[-1] if owned else None
            if UNUSED in str(raised):
                seen.tell(
                    "BH878",
                    "DDP waits for gradients of parameters that this step did not use",
                    Place(*error_at) if error_at else None,
                )
    seen.emit(Listener.ended)
    report = {
        "found": [
            {"rule": f.rule, "path": f.place.path, "line": f.place.line, "message": f.message}
            for f in seen.found.values()
        ],
        "steps": seen.steps,
        "backwards": seen.backwards + seen.differentiated,
        "complete": seen.complete,
        "error": error,
        "error_at": error_at,
        "failures": sorted(set(seen.failures)),
        "even_windows": even_windows() if seen.complete else False,
        "ranks": ranks_told(),
    }
    return report, left


def _listen(
    seen: Watch, calls: Path | None
) -> tuple[Functions, Callable[[], dict[str, Any]], Callable[[], bool | None]]:
    """Install all listeners. Return the one for functions and two callbacks: the data to compare
    between ranks, and whether accumulation windows are even.
    """
    forwards = Forwards(seen)
    loaders = Loaders(seen, forwards)
    gradients = Gradients(seen, forwards, loaders.draws)
    functions = Functions(seen, forwards)
    schedules = Schedules(seen, forwards, loaders)
    rows, scopes = Rows(seen), Scopes(seen)
    fits, sides = Fits(seen, rows), Sides(seen, calls is not None)
    metrics = Metrics(seen, forwards, loaders, fits.imported)
    ranks = Ranks(seen, forwards, calls)
    gradients.valid = lambda: functions.valid
    schedules.supervised = lambda: functions.values
    schedules.made = lambda optimizer: gradients.held[id(optimizer)].made
    seen.listeners += [
        Sets(seen, loaders),
        Copies(seen, forwards),
        forwards,
        Modes(seen, forwards),
        functions,
        loaders,
        gradients,
        Precision(seen, gradients),
        Kept(seen),
        Networks(seen, loaders),
        rows,
        fits,
        sides,
        schedules,
        ranks,
        Orders(seen, functions),
        metrics,
        Operators(seen, forwards, functions),
        Padding(seen, forwards, functions),
        Streams(seen),
        Lengths(seen),
        scopes,
        Wrappers(seen, forwards),
        Scales(seen, forwards, functions),
        Targets(seen, forwards, functions),
        OwnLosses(seen, functions),
        UnseenClasses(seen, functions),
        Seeds(seen),
        Tables(seen, scopes, rows, loaders),
        Updates(seen, gradients, schedules),
    ]
    for listener in seen.listeners:
        listener.install()
    return (
        functions,
        lambda: ranks.told(
            rows.first(), next((h.made for h in gradients.held.values()), None), sides.told()
        ),
        gradients.even_windows,
    )


def one_rank(program: Path) -> None:
    """Make a program that expects a launcher the only rank of a group."""
    text = program.read_text(encoding="utf-8", errors="replace")
    if "RANK" in os.environ or "init_process_group" not in text or starts_ranks(text):
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for name, value in alone.items():
        os.environ.setdefault(name, value)


def quieten() -> None:
    """Turn off compilation, because compiled kernels hide their operations."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    torch.compiler.set_stance("force_eager")


def main() -> None:
    """Run the program given on the command line."""
    report, seconds, program, *arguments = sys.argv[1:]
    quieten()
    out = os.dup(1)
    os.dup2(2, 1)  # standard output is for the findings only
    one_rank(Path(program))
    told = watch(
        Path(program), arguments, float(seconds), log_of(Path(report)), Path(report).parent
    )
    sys.stdout.flush()
    os.close(out)
    write_atomic(Path(report), json.dumps(told))
    os._exit(0)  # threads of the program must not hold this process


if __name__ == "__main__":
    main()
