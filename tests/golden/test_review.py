"""`bulkhead review` finds in a fixed corpus what was recorded, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.corpus import canonical, changes, digest, findings, programs, rules
from tests.golden.record import differences, load, load_findings

FEWEST = 300  # programs that must still be there to compare


@pytest.mark.timeout(600)
def test_findings_are_the_recorded_ones(tmp_path: Path) -> None:
    """A program that is not in the tree any more is gone; one that is has the recorded findings, of
    recorded rules alone.
    """
    recorded = load_findings()
    there = {key: text for key, text in programs().items() if key in recorded}
    assert len(there) >= FEWEST
    assert changes(recorded, findings(there, tmp_path / "programs")) == []


def test_the_rules_keep_their_ids_and_names() -> None:
    assert differences(load()["rules"], rules(), "rule") == []


def test_the_record_holds_sound_and_faulty_programs_of_many_rules() -> None:
    recorded = load_findings()
    found = {entry.partition(":")[0] for entries in recorded.values() for entry in entries}
    assert found <= set(load()["rules"]) and len(found) >= 120
    assert sum(not entries for entries in recorded.values()) >= 300 and len(recorded) >= 700


def test_a_finding_that_came_or_went_or_moved_is_named() -> None:
    recorded = {"sound/gan": [], "a 12": ["BH101:7"], "gone 34": ["BH102:1"]}
    assert changes(
        recorded, {"sound/gan": ["BH999:3"], "a 12": ["BH101:8"], "unrecorded 5": ["BH1:1"]}
    ) == [
        "a 12: new finding BH101:8",
        "a 12: BH101:7 is no longer found",
        "sound/gan: new finding BH999:3",
    ]


def test_a_key_outlives_the_formatter_and_another_text_has_another_key(tmp_path: Path) -> None:
    wide = "def f(a, b): return g(a, b)  # why\n"
    assert canonical(wide) == canonical(
        "def f(\n    a,\n    b,\n):\n    return g(\n        a, b\n    )\n"
    )
    assert digest(wide) != digest(wide.replace("a, b)", "a, c)"))
    planted = {
        "planted": (
            "import torch\n\ndef train(model, opt, loader, loss_fn):\n    for x, y in loader:\n    "
            "    loss_fn(model(x), y).backward()\n        opt.step()\n"
        )
    }
    assert findings(planted, tmp_path / "programs") == {"planted": ["BH101:6"]}
