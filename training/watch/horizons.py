"""Over how many of its steps a schedule is made to go, as far as it tells."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.review.direction import direction
from training.review.program import Program
from training.review.syntax import keyword, parsed

DEPTH = 3  # functions within functions
WINDOW, AROUND = 1.9, 0.02  # backward passes a step that make a window; of a number
LONG = 40  # steps of a run, below which it only tries out
SHORTEST = 20  # steps, below which numbers are equal by chance
HIGH, DROP, EARLY, CLOSE = 0.9, 0.35, 0.5, 0.02  # of the largest rate; of the steps; of a rate
STOPPING = (
    "stop",
    "patience",
    "limit",
    "islice",
    "max_steps",
    "max_iter",
    "debug",
    "smoke",
    "fast",
)
TRYING = ("debug", "smoke", "fast_dev", "dry_run", "dry-run")
SWINGING = ("cycl", "snapshot", "restart", "swa_", "averagedmodel", "ensembl", "oscillat")


def numbers_of(function: Any, depth: int = DEPTH) -> Iterator[int]:
    """Whole numbers that a function computes with: of its closure, defaults, arguments given
    beforehand, globals, or the object that is called.

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
        known = [
            *_closed_over(function),
            *(function.__globals__[n] for n in names if n in function.__globals__),
        ]
        settings = [
            vars(owner)
            for owner in known
            if hasattr(owner, "__dict__")
            and not isinstance(owner, type | types.ModuleType | types.FunctionType)
        ]
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


def rises_again(rates: list[float]) -> int:
    """The step at which a rate falls at once from its height, to rise from there to the end; 0
    where it does not, or only by straight lines.

    >>> warm = [0.25, 0.5, 0.75, 1.0]
    >>> curve = [1 - math.cos(math.pi * i / 20) for i in range(20)]
    >>> (rises_again([*warm, *(0.1 + 0.45 * c for c in curve)]),
    ...     rises_again([*warm, *(1 - 0.45 * c for c in curve)]))
    (4, 0)
    """
    most, pairs = max(rates), list(itertools.pairwise(rates))
    at = next((i + 1 for i, (a, b) in enumerate(pairs) if a >= HIGH * most and b <= DROP * most), 0)
    before, after = rates[:at], rates[at:]
    if len(after) < SHORTEST or at > EARLY * len(rates) or rates[-1] < (1 - EARLY) * most:
        return 0
    if before != sorted(before) or after != sorted(after) or (at > 1 and before[0] >= before[-1]):
        return 0
    low, high = after[0], after[-1]
    half = [
        low + (high - low) * (1 - math.cos(math.pi * i / (len(after) - 1))) / 2
        for i in range(len(after))
    ]
    return (
        at if all(abs(a - h) <= 2 * CLOSE * most for a, h in zip(after, half, strict=True)) else 0
    )


def warms_to_the_end(rates: list[float]) -> bool:
    """Whether a rate rises by equal steps through a whole run, as a warm-up does; a search for a
    rate multiplies it.

    >>> (warms_to_the_end([0.01 * (i + 1) for i in range(60)]),
    ...     warms_to_the_end([0.01 * 1.1**i for i in range(60)]))
    (True, False)
    """
    if len(rates) < LONG or rates[-1] <= rates[0]:
        return False
    step = (rates[-1] - rates[0]) / (len(rates) - 1)
    return (
        all(abs((b - a) - step) <= 1e-6 * rates[-1] for a, b in itertools.pairwise(rates))
        and rates[0] <= CLOSE * rates[-1] + 2 * step
    )


def tries_out(program: Path) -> bool:
    """Whether a program can be told to make a few steps only."""
    text = program.read_text(encoding="utf-8", errors="replace").lower()
    return any(word in text for word in TRYING)


def counts_steps(scheduler: Any, steps: int) -> int:
    """A number that a factor of the rate reads and that is about the number of steps of its
    optimizer, though those may have ended early; 0 where none is.
    """
    numbers = [n for function in scheduler.lr_lambdas for n in numbers_of(function)]
    return next(
        (
            n
            for n in numbers
            if n >= SHORTEST and (1 - AROUND) * steps <= n <= (1 + 2 * AROUND) * steps
        ),
        0,
    )


def never_stops(program: Path) -> bool:
    """Whether a program leaves no loop early, as far as its text tells: neither by a break nor by
    anything that is named so.
    """
    tree = parsed(program.read_text(encoding="utf-8", errors="replace"))
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }
    named = names | {a.arg or "" for a in ast.walk(tree) if isinstance(a, ast.keyword | ast.arg)}
    leaving = any(isinstance(n, ast.Break | ast.While) for n in ast.walk(tree))
    return not leaving and not any(word in name.lower() for word in STOPPING for name in named)


def swings_on_purpose(program: Path) -> bool:
    """Whether a program speaks of cycles, snapshots or averages of weights, for which a cosine goes
    up and down many times.
    """
    text = program.read_text(encoding="utf-8", errors="replace").lower()
    return any(word in text for word in SWINGING)


def better(program: Path, line: int) -> str:
    """`max` or `min` where what a schedule is stepped with in a line of the program says in which
    direction it gets better; else empty.
    """
    text = program.read_text(encoding="utf-8", errors="replace")
    read = Program(parsed(text), str(program))
    stepped = [c for c in read.methods_of("step") if c.lineno == line and (c.args or c.keywords)]
    said = {direction(read, keyword(c, "metrics", 0), read.scope(c)) for c in stepped}
    return said.pop() if len(said) == 1 else ""
