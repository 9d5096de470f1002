"""A small `bulkhead run` leaves the records, digests, verdicts and weights that were recorded."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.golden import whole_run
from tests.golden.pinned import recorded_elsewhere
from tests.golden.record import differences, load

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(recorded_elsewhere()), reason=recorded_elsewhere()),
]


@pytest.mark.long
def test_a_whole_run_is_the_recorded_one(tmp_path: Path) -> None:
    assert differences(load()["run"], whole_run.run(tmp_path / "run"), "run") == []


def test_keys_are_dotted_paths_with_lists_taken_together() -> None:
    tree = {
        "a": {"b": 1, "c": [{"d": 1}, {"e": [], "d": None}]},
        "provenance": {"git": {"sha": "x"}},
    }
    assert whole_run.keys(tree) == {"a.b", "a.c[].d", "a.c[].e", "provenance.git"}


def test_a_key_and_a_verdict_that_differ_are_named() -> None:
    recorded = load()["run"]
    assert len(recorded["keys of evidence.json"]) > 100 and len(recorded["checks"]) > 20
    found = copy.deepcopy(recorded)
    found["keys of evidence.json"].remove("gate.passed")
    found["keys of checklist.json"].append("made_up")
    found["checks"]["id_overlap"] = "warn"
    assert differences(recorded, found, "run") == [
        "run: checks: id_overlap: recorded 'pass', found 'warn'",
        "run: keys of checklist.json: made_up is new",
        "run: keys of evidence.json: gate.passed is gone",
    ]
