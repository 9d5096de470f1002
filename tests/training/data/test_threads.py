"""Work in threads: in the order of its items, with the first error, and never more than one piece
ahead.
"""

from __future__ import annotations

import threading
import time

import pytest

from training.data.engine import in_memory
from training.data.engine.in_memory import holding
from training.data.engine.threads import at_once, beside


@pytest.mark.req("D9")
def test_what_is_found_keeps_the_order_of_the_items() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 / (1 + number))
        return number * number

    assert at_once(slow_first, range(20)) == [n * n for n in range(20)]
    assert at_once(slow_first, []) == []


@pytest.mark.req("D9")
def test_the_error_of_the_first_item_is_raised_after_all_have_ended() -> None:
    ended = set()

    def work(number: int) -> None:
        time.sleep(0.02 if number == 1 else 0.0)
        ended.add(number)
        if number in (1, 2):
            raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item 1"):
        at_once(work, range(5))
    assert ended == set(range(5))


@pytest.mark.req("D9")
def test_threads_see_the_tables_that_are_held() -> None:
    with holding():
        found = at_once(lambda _: in_memory._held.get() is not None, range(3))
        with beside(lambda _: found.append(in_memory._held.get() is not None)) as hand_over:
            hand_over(0)
    assert found == [True] * 4


@pytest.mark.req("D9")
def test_items_are_worked_on_in_order_by_one_thread_and_one_waits_at_most() -> None:
    done, most, going = [], [], threading.Lock()

    def work(number: int) -> None:
        assert going.acquire(blocking=False), "two at once"
        time.sleep(0.002)
        done.append(number)
        going.release()

    with beside(work) as hand_over:
        for number in range(10):
            hand_over(number)
            most.append(number + 1 - len(done))
    assert done == list(range(10))
    assert max(most) <= 2


@pytest.mark.req("D9")
@pytest.mark.parametrize("last", [False, True])
def test_an_error_beside_is_raised_and_nothing_is_worked_on_after_it(last: bool) -> None:
    done = []

    def work(number: int) -> None:
        if number == 3:
            raise OSError("disk full")
        done.append(number)

    with pytest.raises(OSError, match="disk full"), beside(work) as hand_over:
        for number in range(4 if last else 9):
            hand_over(number)
    assert done == [0, 1, 2]
