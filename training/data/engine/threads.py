"""Threads for columns, batches and files; NumPy, Arrow, hashing and writing use them.

These release the interpreter while they work. The result does not depend on the number of threads:
each takes a whole piece, and the pieces keep their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

MOST = 8  # threads: each may hold a separate column or batch, and memory is no faster for more
BLOCKS = 16  # of many items, that each thread takes one after the other
Item = TypeVar("Item")
Found = TypeVar("Found")


def num_threads() -> int:
    """Return the number of cores of this process, at most `MOST`."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(MOST, cores)


def at_once(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """Return the results of work for each item, in order.

    Nothing runs any more when an error is raised; it is that of the first item that has one.
    """
    every, threads = list(items), num_threads()
    # thousands of columns of few rows each: handing them over one by one takes longer than the work
    size = max(1, len(every) // (BLOCKS * threads))

    def work_on(block: list[Item]) -> list[Found]:
        """Return the results of some items."""
        return [work(item) for item in block]

    with ThreadPoolExecutor(threads, thread_name_prefix="data") as pool:
        # tables are held in a context variable
        futures = [
            pool.submit(copy_context().run, work_on, every[start : start + size])
            for start in range(0, len(every), size)
        ]
    return [found for future in futures for found in future.result()]


def one_by_one(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """Do the same as `at_once`, if memory does not allow for several items."""
    return [work(item) for item in items]


@contextmanager
def beside(work: Callable[[Item], object]) -> Iterator[Callable[[Item], None]]:
    """Yield a function that passes items to work in another thread, one after the other.

    It returns while the last item is still being processed. An error of work is raised by the next
    call, or at the end of the block; no later item is processed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="data") as pool:
        last: Future[object] | None = None

        def hand_over(item: Item) -> None:
            """Wait for the last item, then start work on this one."""
            nonlocal last
            if last is not None:
                last.result()  # one waits at most: memory does not grow
            last = pool.submit(copy_context().run, work, item)

        yield hand_over
        if last is not None:
            last.result()
