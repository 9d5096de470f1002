"""Checks in a copy of this process: what it found passed is taken, all else is found here, and
nothing of it stays behind.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from schemas.records import CheckResult, Verdict
from training.preflight import side_process as aside
from training.preflight.side_process import checked_aside
from training.preflight.verdict import passed

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="needs fork and a second core",
)
HERE = os.getpid()


def finds(name: str, seconds: float = 0.0, verdict: Verdict = "pass") -> Callable[[], CheckResult]:
    """A check that tells which process made it."""

    def check() -> CheckResult:
        time.sleep(seconds)
        return CheckResult(
            name=name,
            verdict=verdict,
            summary=str(os.getpid()),
            figures={"third": 1 / 3, "rows": 3},
        )

    return check


def children() -> set[str]:
    """Processes that this one began and has not waited for."""
    return {
        pid
        for file in Path("/proc/self/task").glob("*/children")
        for pid in file.read_text().split()
    }


def wait_for_the_copy(before: set[str]) -> None:
    """Until it has come to its end."""
    while any(
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        for pid in children() - before
    ):
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before, threads = children(), torch.get_num_threads()
    yield
    assert children() <= before and torch.get_num_threads() == threads


@pytest.mark.req("M4")
def test_results_of_the_copy_are_taken_in_order_and_to_the_bit() -> None:
    threads, before = torch.get_num_threads(), children()
    with checked_aside({name: finds(name) for name in "abc"}) as tried:
        assert torch.get_num_threads() == max(1, threads - 1)
        wait_for_the_copy(before)
        found = tried()
    assert [r.name for r in found] == ["a", "b", "c"] and len(
        {r.summary for r in found} | {str(HERE)}
    ) == 2
    assert all(r.figures == {"third": 1 / 3, "rows": 3} for r in found)


@pytest.mark.req("M4")
def test_what_the_copy_has_not_come_to_is_done_here() -> None:
    with checked_aside({"a": finds("a", 1.0), "b": finds("b", 5.0), "c": finds("c", 0.1)}) as tried:
        a, b, c = tried()
    assert a.summary != str(HERE) and b.summary == c.summary == str(HERE)


@pytest.mark.req("M4")
@pytest.mark.parametrize("verdict", ["warn", "fail"])
def test_what_did_not_pass_in_the_copy_is_found_again(verdict: Verdict) -> None:
    before = children()
    with checked_aside({"a": finds("a", verdict=verdict), "b": finds("b")}) as tried:
        wait_for_the_copy(before)
        a, b = tried()
    assert (a.verdict, a.summary) == (verdict, str(HERE)) and b.summary != str(HERE)


@pytest.mark.req("M4")
def test_a_copy_that_ends_or_hangs_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "PATIENCE", 0.5)

    def ends() -> CheckResult:
        return passed("a", "here") if os.getpid() == HERE else os._exit(3)

    def hangs() -> CheckResult:
        return passed("b", "here") if os.getpid() == HERE else time.sleep(600)  # type: ignore[return-value, func-returns-value]

    def raises() -> CheckResult:
        raise ValueError("of the check")

    for check in (ends, hangs):
        with checked_aside({"a": check, "last": finds("last")}) as tried:
            assert [r.summary for r in tried()] == ["here", str(HERE)]
    with (
        pytest.raises(ValueError, match="of the check"),
        checked_aside({"a": raises, "b": finds("b")}) as tried,
    ):
        tried()


@pytest.mark.req("M4")
def test_a_copy_is_silent_and_gone_when_nobody_asks_for_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def loud() -> CheckResult:
        if os.getpid() != HERE:
            os.write(1, b"of the copy")
            print("of the copy")
            logging.getLogger("copy").error("of the copy")
        return passed("a", str(os.getpid()))

    with checked_aside({"a": loud}) as tried:
        assert tried()[0].summary != str(HERE)
    with checked_aside({"a": finds("a", 600.0)}):
        pass
    assert "of the copy" not in "".join(capfd.readouterr())


@pytest.mark.req("M4")
def test_on_one_core_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    threads = torch.get_num_threads()
    with checked_aside({name: finds(name) for name in "ab"}) as tried:
        assert torch.get_num_threads() == threads
        assert [r.summary for r in tried()] == [str(HERE)] * 2


@pytest.mark.req("M4")
def test_where_no_copy_can_be_made_or_waited_for_all_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = children()
    with checked_aside({"a": finds("a")}) as tried:
        monkeypatch.setattr(os, "waitpid", lambda *_: (_ for _ in ()).throw(ChildProcessError()))
        assert tried()[0].summary != str(HERE)
        left = children()
    monkeypatch.undo()
    for pid in left - before:
        os.waitpid(int(pid), 0)

    def refused() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", refused)
    with checked_aside({"a": finds("a")}) as tried:
        assert tried()[0].summary == str(HERE)
