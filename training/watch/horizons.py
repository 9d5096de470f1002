"""Over how many of its steps a schedule is made to go, as far as it tells."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from torch.optim import lr_scheduler

DEPTH = 3  # functions within functions
WINDOW, AROUND = 1.9, 0.02  # backward passes a step that make a window; of a number
SHORTEST = 20  # steps, below which numbers are equal by chance
UNFINISHED = 0.4  # of the largest rate
LENGTHS = ("total_steps", "T_max", "total_iters")


def horizons(scheduler: Any) -> Iterator[int]:
    """Numbers of steps after which a schedule is over, or changes for the last time."""
    yield from (n for name in LENGTHS if isinstance(n := getattr(scheduler, name, None), int))
    if isinstance(scheduler, lr_scheduler.MultiStepLR):
        yield max(scheduler.milestones, default=0)
    parts = getattr(scheduler, "_schedulers", [])
    starts = getattr(scheduler, "_milestones", None)
    if parts and starts:
        yield from (starts[-1] + n for n in horizons(parts[-1]))  # the last part counts from its own beginning
    elif parts:
        for part in parts:
            yield from horizons(part)


def beside_window(scheduler: Any, calls: int, passes: int, rates: list[float]) -> int:
    """The horizon of a schedule that counts the batches of accumulation windows, and is stepped once a window; 0 where it is none.

    Args:
        scheduler: of torch.
        calls: of its `step`.
        passes: backward passes that reached its optimizer.
        rates: one for each step of its optimizer.
    """
    steps = len(rates)
    if passes < WINDOW * steps or not 0.8 * steps <= calls <= (1 + AROUND) * steps:
        return 0
    lengths = list(horizons(scheduler))
    if rates[-1] > UNFINISHED * max(rates):  # a function may count windows by itself, and has come to its end then
        lengths += [n for function in getattr(scheduler, "lr_lambdas", ()) for n in numbers_of(function)]
    return next((n for n in lengths if n >= SHORTEST and abs(n - passes) <= AROUND * passes), 0)


def numbers_of(function: Any, depth: int = DEPTH) -> Iterator[int]:
    """Whole numbers that a function computes with: of its closure, defaults, arguments given beforehand, globals, or the object that is called.

    >>> def cosine(total, warm=10):
    ...     return lambda step: min(step / warm, step / total)
    >>> sorted(numbers_of(cosine(total=300)))
    [10, 300]
    """
    for value in _values(function):
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
        elif depth and callable(value) and not isinstance(value, type):
            yield from numbers_of(value, depth - 1)


def _values(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (function.func, *function.args, *function.keywords.values())
    elif isinstance(function, types.MethodType):
        yield from (function.__func__, *vars(function.__self__).values())
    elif isinstance(function, types.FunctionType):
        names = function.__code__.co_names
        known = [*_closed_over(function), *(function.__globals__[n] for n in names if n in function.__globals__)]
        settings = [vars(owner) for owner in known if hasattr(owner, "__dict__") and not isinstance(owner, type | types.ModuleType | types.FunctionType)]
        yield from (*known, *(held[n] for held in settings for n in names if n in held))
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    elif hasattr(function, "__dict__"):
        yield from vars(function).values()


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            continue
