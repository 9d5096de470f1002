"""Ranks that are started early: they wait, train as others do, and never outlive a refusal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.load import declare
from schemas.records import RunSpec
from tests.distributed.launch import ROOT
from tests.faults.launches import processes_of
from tests.training.runs import make_run
from training.launch import prestart
from training.launch.torchrun import start

pytestmark = pytest.mark.long
SECONDS = 120.0


def until(done: object, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.05)
    assert done()  # type: ignore[operator]


def ready(folder: Path, kind: str = "mlp") -> tuple[Path, RunSpec]:
    """Return the directory of a run that is about to start."""
    spec = make_run(folder, model={"kind": kind}) if kind != "mlp" else make_run(folder)
    return folder / "run", spec


def sha(run_dir: Path) -> str:
    return str(json.loads((run_dir / "result.json").read_text())["model_sha256"])


@pytest.mark.parametrize(("kind", "processes"), [("mlp", 2), ("boosting", 1)])
def test_a_rank_that_waited_trains_the_same_weights_from_what_is_declared_at_the_word(
    tmp_path: Path, kind: str, processes: int
) -> None:
    found = []
    for early in (True, False):
        folder = tmp_path / str(early)
        run_dir, spec = ready(folder, kind)
        run_dir.mkdir(exist_ok=True)
        resolved = (folder / "resolved.json").read_bytes()
        train = declare(spec.declaration).train
        if early:
            (run_dir / "resolved.json").unlink(missing_ok=True)
            prestart.prestart(run_dir, train, kind)
            until(lambda folder=folder: len(processes_of(folder)) == processes)
            time.sleep(1.0)
            assert not (run_dir / "metrics.jsonl").exists()
        (run_dir / "resolved.json").write_bytes(resolved)  # only now
        taken = prestart.taken(run_dir, train, None, kind)
        assert (taken is not None) == early
        process = taken or start(run_dir, train, kind=kind)
        assert process.wait(SECONDS) == 0, (run_dir / "train.log").read_text()
        found.append(sha(run_dir))
    assert found[0] == found[1]


def test_another_declaration_ends_the_waiting_ranks(tmp_path: Path) -> None:
    run_dir, spec = ready(tmp_path)
    train = declare(spec.declaration).train
    prestart.prestart(run_dir, train, "mlp")
    until(lambda: len(processes_of(tmp_path)) == 2)
    other = train.model_copy(update={"threads": 7})
    assert prestart.taken(run_dir, other, None, "mlp") is None
    assert not processes_of(tmp_path)
    assert not (run_dir / "train.log").exists() and not list(run_dir.glob("error*.json"))


def test_a_refusal_ends_the_waiting_ranks(tmp_path: Path) -> None:
    run_dir, spec = ready(tmp_path)
    prestart.prestart(run_dir, declare(spec.declaration).train, "mlp")
    until(lambda: len(processes_of(tmp_path)) == 2)
    prestart.end_waiting()
    assert not processes_of(tmp_path) and not (run_dir / "train.log").exists()


CALLER = """
import sys, time
from pathlib import Path
from schemas.config import TrainConfig
from training.launch import prestart
prestart.prestart(Path(sys.argv[1]), TrainConfig(ranks=1), "mlp")
time.sleep(600)
"""


@pytest.mark.parametrize("at", [0.0, 8.0], ids=["at once", "while they wait"])
def test_no_waiting_rank_outlives_a_killed_launcher(tmp_path: Path, at: float) -> None:
    run_dir = tmp_path / "run"
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(run_dir)], cwd=ROOT)
    until(lambda: len(processes_of(tmp_path)) > 1)
    time.sleep(at)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    until(lambda: not processes_of(tmp_path), 20.0)
