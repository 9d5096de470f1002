"""Runs whose ranks start while data are prepared: each agent is the only one of its model, and
the weights are those of ranks that start when everything is ready.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from schemas.load import declare
from schemas.records import RunSpec
from schemas.seal import read_record
from tests.faults.test_stop_command import LOOK_SECONDS, WAIT_SECONDS, Command, clinic, running
from training.launch.torchrun import start
from training.run.record import RESULT, SPEC

__all__ = ["clinic"]  # a fixture
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
MEMBERS = "[linear, {kind: boosting, max_iter: 20}, {kind: mlp, hidden: [8]}]"
CASES = {
    "two ranks": ("tests/clinic_visits.yaml", ["train.epochs=3"], 1),
    "trees": (
        "tests/clinic_visits.yaml",
        ["model={kind: boosting, max_iter: 20}", "train.ranks=1"],
        0,
    ),
    "members": (
        "examples/clinic_visits.yaml",
        ["train.epochs=3", "train.ranks=1", f"model={{kind: auto, candidates: {MEMBERS}}}"],
        2,
    ),
}


def agents_of(command: Command) -> dict[int, bool]:
    """Follow a command to its end; return its agents, and whether they preceded preflight."""
    found: dict[int, bool] = {}
    deadline = time.monotonic() + 3 * WAIT_SECONDS
    while command.process.poll() is None and time.monotonic() < deadline:
        for pid, text in command.family().items():
            if "training.agent" in text and pid not in found:
                found[pid] = "✓ preflight" not in command.output()
        time.sleep(10 * LOOK_SECONDS)
    return found


def sha256_of(run_dir: Path) -> str:
    return str(json.loads((run_dir / RESULT).read_text())["model_sha256"])


def trained_late(run_dir: Path, folder: Path) -> str:
    """Train a run's inputs again, by ranks that start when all is ready; return the weights'
    SHA-256.
    """
    folder.mkdir()
    (folder / SPEC).write_bytes((run_dir / SPEC).read_bytes())
    declaration = declare(read_record(folder / SPEC, RunSpec, "", required=False).declaration)
    process = start(folder, declaration.train, kind=declaration.model.kind)
    assert process.wait(WAIT_SECONDS) == 0, (folder / "train.log").read_text()[-3000:]
    return sha256_of(folder)


@pytest.mark.parametrize("case", CASES)
def test_early_ranks_are_the_only_ones_and_train_the_same_weights(
    tmp_path: Path, clinic: Path, case: str
) -> None:
    file, overrides, agents = CASES[case]
    with running(tmp_path, clinic, *overrides, file=file) as command:
        found = agents_of(command)
        assert command.process.returncode == 0, command.output()[-3000:]
        assert not command.family() and len(found) == agents
        assert not agents or next(iter(found.values())), "the first one precedes preflight"
        run_dir = command.run_dir()
        assert run_dir is not None and not list(run_dir.rglob("begin"))
    members = sorted((run_dir / "members").glob("[0-9]*")) or [run_dir]
    for number, member in enumerate(members):
        assert trained_late(member, tmp_path / str(number)) == sha256_of(member)
