"""The pipeline reviews a user's own network before it is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.config import Declaration
from schemas.errors import PreflightError
from schemas.records import CheckResult
from tests.training.toys import declare, write_run
from training.preflight.run import preflight, require_passed
from training.review.own_module import review_own_module, source_file

SOUND = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, shape, width=64):
        super().__init__()
        self.hidden = nn.Linear(shape.numeric, width)
        self.head = nn.Linear(width, shape.outputs)

    def forward(self, batch):
        return self.head(self.hidden(batch["numeric"]).relu())
"""
ALWAYS_ON = SOUND.replace(
    "self.head(self.hidden", "self.head(torch.nn.functional.dropout(self.hidden"
).replace(".relu())", ".relu(), 0.1))")
EXPLODING = "raise RuntimeError('this module was imported')\n"
REASON = "predictions are sampled on purpose here"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "their_models"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "their_models")
    return folder


def declared(name: str, **sections: Any) -> Declaration:
    return declare("binary", {"kind": "custom", "path": f"their_models.{name}:Net"}, **sections)


def results(name: str, **sections: Any) -> dict[str, CheckResult]:
    return {r.name: r for r in review_own_module(declared(name, **sections))}


@pytest.mark.req("M5")
def test_a_sound_module_passes_and_says_what_was_read(package: Path) -> None:
    (package / "sound.py").write_text(SOUND)
    found = results("sound")["review"]
    assert (
        found.verdict == "pass"
        and "Net in sound.py" in found.summary
        and found.figures["lines"] == 8
    )


@pytest.mark.req("M5")
def test_an_error_fails_and_an_allowance_with_a_reason_lets_it_through(package: Path) -> None:
    (package / "noisy.py").write_text(ALWAYS_ON)
    found = results("noisy")["BH403"]
    assert found.verdict == "fail" and "noisy.py:13" in found.summary and "training" in found.remedy
    assert found.evidence[0]["place"].startswith("noisy.py:13")
    allowed = results("noisy", checks={"allow": [{"check": "BH403", "reason": REASON}]})["BH403"]
    assert allowed.verdict == "allowed" and allowed.reason == REASON
    (package / "commented.py").write_text(
        ALWAYS_ON.replace("0.1))", f"0.1))  # bulkhead: allow[BH403] {REASON}")
    )
    assert results("commented")["BH403"].reason == REASON


def test_a_warning_warns(package: Path) -> None:
    (package / "loose.py").write_text(
        SOUND.replace(
            "self.head =", "self.shift = torch.zeros(width)\n        self.head ="
        ).replace(".relu()", ".relu() + self.shift")
    )
    assert results("loose")["BH408"].verdict == "warn"


def test_only_the_class_and_what_it_uses_are_reviewed(package: Path) -> None:
    other = ALWAYS_ON.replace("class Net", "class Other").partition("class")[2]
    (package / "two.py").write_text(f"{SOUND}\n\nclass{other}")
    assert results("two")["review"].verdict == "pass"
    base = ALWAYS_ON.replace("class Net", "class Base")
    (package / "derived.py").write_text(f"{base}\n\nclass Net(Base):\n    pass\n")
    assert results("derived")["BH403"].verdict == "fail"


def test_nothing_is_imported(package: Path) -> None:
    (package / "__init__.py").write_text(EXPLODING)
    (package / "sound.py").write_text(EXPLODING + SOUND)
    assert results("sound")["review"].verdict == "pass"
    assert source_file("their_models.sound") == package / "sound.py"
    assert source_file("their_models") == package / "__init__.py"
    assert (
        source_file("their_models.absent") is None and source_file("no_such_package.module") is None
    )


def test_what_cannot_be_read_is_said(package: Path) -> None:
    (package / "broken.py").write_text("class Net(:\n")
    assert (
        results("broken")["review"].verdict == "warn"
        and "cannot be parsed" in results("broken")["review"].summary
    )
    assert "no source file" in results("absent")["review"].summary
    assert review_own_module(declare("binary", {"kind": "mlp"})) == ()


@pytest.mark.req("M5")
def test_preflight_stops_on_it_and_the_result_is_part_of_the_report(
    package: Path, tmp_path: Path
) -> None:
    (package / "noisy.py").write_text(ALWAYS_ON)
    report = preflight(write_run(tmp_path / "run", declared("noisy")))
    assert next(r for r in report.checks.results if r.name == "BH403").verdict == "fail"
    with pytest.raises(
        PreflightError, match=r"BH403: noisy\.py:13: dropout is on in evaluation too"
    ):
        require_passed(report)
