"""Output of a running command: one plain line per step, and a bar on a terminal.

Lines go to standard error, so that `--json` on standard output stays clean, and to the Prefect
run's log.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tasks.live import progress

MARKS = {"done": "✓", "cached": "↺", "warn": "!", "fail": "✗", "info": " ", "unknown": "?"}
PREPARATION = (
    "source",
    "validate",
    "split",
    "disjoint",
    "statistics",
    "leakage",
    "arrays",
    "poison",
    "preflight",
    "train",
)
FIRST_LINES, LINE_SECONDS = 20, 5.0  # of progress, where there is no terminal
STEPS = {
    "train": PREPARATION,
    "pipeline": (*PREPARATION, "evaluate", "export", "gate", "register", "report"),
}
_reached: ContextVar[tuple[tuple[str, ...], Callable[[float, str], None]]] = ContextVar(
    "reached", default=((), lambda done, text: None)
)
STYLES = {
    "done": "green",
    "cached": "cyan",
    "warn": "yellow",
    "fail": "red",
    "info": "dim",
    "unknown": "yellow",
}


def console() -> Console:
    """Return the terminal's console, created again so that a redirected stderr is used."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(step: str, text: str, kind: str = "done") -> None:
    """Print one line for a person and log it with the Prefect run.

    Args:
        step: the finished step, at most 14 characters.
        text: the result in figures.
        kind: done, cached, warn, fail, info or unknown.
    """
    out = console()
    with suppress(OSError):  # the reader of the lines is gone, e.g. a worker: the run continues
        if out.is_terminal:
            out.print(f"[{STYLES[kind]}]{MARKS[kind]}[/] [bold]{step:<14}[/] ", end="")
            out.print(text, markup=False)
        else:
            print(f"{MARKS[kind]} {step:<14} {text}", file=sys.stderr, flush=True)
    _phase(step, text)
    try:
        get_run_logger().log({"warn": 30, "fail": 40}.get(kind, 20), "%s: %s", step, text)
    except MissingContextError:
        return  # outside a run there is only the terminal


@contextmanager
def phases(kind: str) -> Iterator[None]:
    """Show a bar in Prefect's UI over the steps of a run, moved by `say`; none without a fixed
    order.
    """
    steps = STEPS.get(kind, ())
    with progress("run") as show:
        entered = _reached.set((steps, show))
        try:
            yield
        finally:
            _reached.reset(entered)


def _phase(step: str, text: str) -> None:
    steps, show = _reached.get()
    if step in steps:
        show((steps.index(step) + 1) / len(steps), f"{step}: {text}")


class Bar(Protocol):
    """Progress of one long step."""

    def __call__(self, done: float, text: str) -> None:
        """Set the fraction done (0 to 1) and the text next to the bar."""


@contextmanager
def bar(step: str) -> Iterator[Bar]:
    """Show a progress bar on the terminal and one in Prefect's UI."""
    with _line(step) as shown, progress(step) as told:

        def both(done: float, text: str) -> None:
            shown(done, text)
            told(done, text)

        yield both


@contextmanager
def _line(step: str) -> Iterator[Bar]:
    """Show a progress bar on a terminal; elsewhere plain lines when the text changes.

    After the first lines one in a few seconds is enough for a log.
    """
    out = console()
    if not out.is_terminal:
        shown: list[str] = []
        last = time.monotonic()

        def line(done: float, text: str) -> None:
            nonlocal last
            is_due = len(shown) < FIRST_LINES or time.monotonic() - last > LINE_SECONDS or done >= 1
            if text and shown[-1:] != [text] and is_due:
                shown.append(text)
                last = time.monotonic()
                with suppress(OSError):
                    print(f"  {step:<14} {done:4.0%}  {text}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        TextColumn(f"  [bold]{step:<14}"),
        BarColumn(24),
        TextColumn("{task.percentage:3.0f}%  {task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True) as progress:
        row = progress.add_task("", total=1.0)
        yield lambda done, text: progress.update(row, completed=done, description=text)
