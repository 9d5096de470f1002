"""The GPU check on the CPU: every check passes on sound code, and each finds its planted fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import check
from tests.training.runs import keep_torch_settings
from training.engine.step import Gate, Step
from training.engine.trainer import Trainer

QUICK = [
    "equals the CPU",
    "exact twice",
    "stop before NaN",
]
HEAVY = ["kill and resume", "fsdp equals ddp", "fp16 overflow", "resident equals streamed"]


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")


def run(folder: Path, *names: str) -> list[check.Row]:
    return check.run_checks("cpu", folder, list(names), lambda row: None)


@pytest.mark.req("G2")
@pytest.mark.parametrize("name", QUICK)
def test_sound_code_passes(tmp_path: Path, name: str) -> None:
    (row,) = run(tmp_path, name)
    assert row.verdict == "pass", row.words


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [*HEAVY, "compile equals eager", "device tests", "default example"]
)
def test_sound_code_passes_the_long_checks(tmp_path: Path, name: str) -> None:
    (row,) = run(tmp_path, name)
    assert row.verdict == "pass", row.words


def _drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the update from the second trainer on, as a device with other arithmetic would."""
    build, made = Trainer._build, []

    def altered(self: Trainer) -> None:
        build(self)
        made.append(self)
        if len(made) % 2 == 0:
            with torch.no_grad():
                next(iter(self.model.parameters())).add_(0.5)

    monkeypatch.setattr(Trainer, "_build", altered)


def _schedule_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the update although the scaled loss overflowed."""
    update = Step.update

    def always(self: Step, gate: Any) -> Any:
        made = update(self, gate)
        if gate.overflowed:
            for state in self.optimizer.state.values():
                state["step"] += 1
        return made

    monkeypatch.setattr(Step, "update", always)


def _no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test for a finite gradient."""
    monkeypatch.setattr(Gate, "finite", property(lambda self: True))


@pytest.mark.req("G2")
@pytest.mark.parametrize(
    ("name", "plant", "words"),
    [
        ("equals the CPU", _drift, r"linear fp32: \S+ from the CPU, at most 0.0001"),
        ("exact twice", _drift, "SHA-256 .* and "),
        ("resident equals streamed", _drift, "SHA-256 .* and "),
        ("fp16 overflow", _schedule_moves, "the optimizer counted"),
        ("stop before NaN", _no_gate, "weights changed in the step that was stopped"),
    ],
)
def test_a_planted_fault_fails_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, plant: Any, words: str
) -> None:
    with keep_torch_settings():
        plant(monkeypatch)
        (row,) = run(tmp_path, name)
    assert row.verdict == "FAIL"
    assert re.search(words, row.words), row.words


def test_no_device_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([]) == 2
    assert "no CUDA device here" in capsys.readouterr().err
