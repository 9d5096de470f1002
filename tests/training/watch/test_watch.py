"""A program run under watch: each planted mistake is told by the rule that names it, and sound
programs by none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.watch.programs import BASES, OF_RANKS, PLANTED, SOUND, Planted
from training.review.rules import KNOWN, RUN_RULES
from training.watch import launch
from training.watch.events import Listener
from training.watch.record import Watch, guarded

Reports = dict[str, dict[str, Any]]
# one of each listener; the others are long
ALWAYS = ("BH101", "BH121", "BH133", "BH201", "BH207", "BH422", "BH503", "BH523", "BH801", "BH802")

FIRST = {p.rule: p for p in reversed(PLANTED) if p.rule in ALWAYS}
ALWAYS_SOUND = ("table", "sequences", "regression", "heads", "pictures", "readings")


def name_of(planted: Planted) -> str:
    return f"{planted.rule}_{PLANTED.index(planted)}"


def watched(programs: dict[str, str], folder: Path) -> Reports:
    for name, text in programs.items():
        (folder / f"{name}.py").write_text(text)
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "tests.training.watch.forking", str(folder)],
        check=True,
        env=env,
        capture_output=True,
        timeout=1800,
    )
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in programs}


def with_planted(always: bool) -> dict[str, str]:
    return {
        name_of(p): BASES[p.base].replace(p.old, p.new)
        for p in PLANTED
        if (FIRST.get(p.rule) is p) is always
    }


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return watched(
        {b: BASES[b] for b in ALWAYS_SOUND} | with_planted(True), tmp_path_factory.mktemp("watched")
    )


@pytest.fixture(scope="module")
def more_reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return watched(
        {b: text for b, text in (SOUND | BASES).items() if b not in ALWAYS_SOUND}
        | with_planted(False),
        tmp_path_factory.mktemp("watched"),
    )


def nothing_told(report: dict[str, Any]) -> None:
    assert report["found"] == [] and report["failures"] == [] and report["error"] == ""
    assert report["complete"] and report["steps"] > 10


def told(planted: Planted, report: dict[str, Any]) -> None:
    assert planted.rule in {f["rule"] for f in report["found"]}, report
    assert report["failures"] == []
    assert all(
        f["path"].endswith(f"{name_of(planted)}.py") and f["line"] > 1 for f in report["found"]
    )


@pytest.mark.req("M5")
@pytest.mark.timeout(900)  # the first one runs all programs
@pytest.mark.parametrize("base", ALWAYS_SOUND)
def test_nothing_is_told_of_a_sound_program(reports: Reports, base: str) -> None:
    nothing_told(reports[base])


@pytest.mark.req("M5")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("planted", FIRST.values(), ids=name_of)
def test_a_planted_mistake_is_told_by_its_rule(reports: Reports, planted: Planted) -> None:
    told(planted, reports[name_of(planted)])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [n for n in SOUND | BASES if n not in ALWAYS_SOUND])
def test_nothing_is_told_of_a_sound_program_that_looks_wrong(
    more_reports: Reports, name: str
) -> None:
    nothing_told(more_reports[name])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("planted", [p for p in PLANTED if FIRST.get(p.rule) is not p], ids=name_of)
def test_every_other_planted_mistake_is_told_by_its_rule(
    more_reports: Reports, planted: Planted
) -> None:
    told(planted, more_reports[name_of(planted)])


def test_an_error_of_the_watch_is_kept_and_does_not_reach_the_program(tmp_path: Path) -> None:
    class Broken(Listener):
        def __init__(self, watch: Watch) -> None:
            self.watch = watch

        @guarded
        def looks(self) -> int:
            raise ValueError("of its own")

        def stepped(self, optimizer: torch.optim.Optimizer) -> None:
            raise KeyError("column")

    watch = Watch(tmp_path / "program.py", 60.0)
    listener = Broken(watch)
    watch.listeners.append(listener)
    assert listener.looks() is None
    watch.emit(Listener.stepped, torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
    assert [f.split(": ")[-2:] for f in watch.failures] == [
        ["ValueError", "of its own"],
        ["KeyError", "'column'"],
    ]


def test_a_program_that_never_ends_its_process_is_reported_when_it_has_been_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of its own keeps the process; so does a group of ranks that hangs where it is taken
    down.
    """
    program = tmp_path / "program.py"
    program.write_text(
        BASES["regression"]
        + "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()\n"
    )
    monkeypatch.setattr(launch, "ENDS_IN", 0.5)
    nothing_told(launch.run_watched(program, [], 60.0, 1, tmp_path))


def test_every_rule_that_only_a_run_can_tell_of_is_planted() -> None:
    assert set(RUN_RULES) <= {p.rule for p in PLANTED} | {rule for rule, _, _ in OF_RANKS}
    assert {p.rule for p in PLANTED} <= set(KNOWN)
    assert all(p.old in BASES[p.base] for p in PLANTED)
