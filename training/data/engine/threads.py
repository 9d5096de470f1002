"""Columns, batches and files worked on at once, in threads: NumPy, Arrow, hashing and writing let
go of the interpreter while they work.

What comes out does not depend on the number of threads: each takes a whole piece, and the pieces
keep their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

MOST = 8  # threads: each may hold a column or a batch of its own, and memory is no faster for more
Item = TypeVar("Item")
Found = TypeVar("Found")


def num_threads() -> int:
    """As many as this process has cores, within `MOST`."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(MOST, cores)


def at_once(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """What work makes of each item, in their order; all are ended before an error, that of the
    first item that has one, is raised.
    """
    with ThreadPoolExecutor(num_threads(), thread_name_prefix="data") as pool:
        # tables are held in a context variable
        futures = [pool.submit(copy_context().run, work, item) for item in items]
    return [future.result() for future in futures]


def one_by_one(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """As `at_once`, where memory does not allow for several."""
    return [work(item) for item in items]


@contextmanager
def beside(work: Callable[[Item], object]) -> Iterator[Callable[[Item], None]]:
    """A function that hands an item to work in another thread, one after the other, and comes back
    while the last one is still worked on.

    An error of work is raised by the next call, or at the end of the block; nothing is worked on
    after it.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="data") as pool:
        last: Future[object] | None = None

        def hand_over(item: Item) -> None:
            nonlocal last
            if last is not None:
                last.result()  # one waits at most: memory does not grow
            last = pool.submit(copy_context().run, work, item)

        yield hand_over
        if last is not None:
            last.result()
