"""Death at every operation on files, and a full disk; short form of `python -m
tests.faults.storage`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import ROOT, environment
from tests.faults.full_disk import fill
from tests.training.runs import make_run

STRIDE = 40

pytestmark = pytest.mark.long  # tries every operation of a save


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | str]:
    """Mount a file system of 1 MiB; return the reason if that fails."""
    folder = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        yield f"a small file system cannot be mounted here ({mounted.stderr.strip()})"
        return
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, small_disk: Path | str) -> dict[str, Any]:
    """Return the findings of one process that forks a child for each death."""
    folder = tmp_path_factory.mktemp("storage")
    command = [
        sys.executable,
        "-m",
        "tests.faults.storage_work",
        str(STRIDE),
        str(folder),
        *([str(small_disk)] if isinstance(small_disk, Path) else []),
    ]
    done = subprocess.run(
        command,
        env=environment(OMP_NUM_THREADS="1"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.req("C3")
def test_a_death_at_any_operation_leaves_a_checkpoint_that_loads_and_the_run_ends_the_same(
    told: dict[str, Any],
) -> None:
    assert [one["failures"] for one in told["sweeps"]] == [[]] * 5
    *saves, run = told["sweeps"]
    assert all(one["operations"] > 35 and one["deaths"] >= 9 for one in saves)
    assert run["operations"] > 200 and run["deaths"] >= 5
    assert {"write", "fsync", "rename", "unlink"} <= {
        kind for one in told["sweeps"] for kind in one["by_kind"]
    }


@pytest.mark.req("C3")
def test_the_sweep_finds_a_commit_that_gives_the_name_first(told: dict[str, Any]) -> None:
    assert any(
        "after the next save there are" in failure and ".damaged" in failure
        for failure in told["broken"]
    )


@pytest.mark.req("C3")
def test_a_full_disk_is_told_with_the_remedy_and_the_run_goes_on_after_space_was_made(
    told: dict[str, Any], small_disk: Path | str
) -> None:
    if isinstance(small_disk, str):
        pytest.skip(small_disk)
    found = told["full_disk"]
    assert found["refused"].startswith(
        f"CheckpointError: {small_disk / 'run' / 'checkpoints'}: No space left on device while"
        " saving; about "
    )
    assert (
        "bytes are needed, " in found["refused"]
        and "Earlier checkpoints are intact: free space, then start again to go on"
        in found["refused"]
    )
    assert found["unsound"] == [] and any(name.startswith("step-") for name in found["left"])
    assert not [name for name in found["left"] if name.startswith(".")], (
        "temporary files are removed"
    )
    assert found["status"] == "finished" and found["same"]
    assert "resumed from step-" in found["events"] and "is nearly full: about " in found["events"]


@pytest.mark.req("C3")
def test_no_space_for_anything_at_all_is_told_too(
    tmp_path: Path, told: dict[str, Any], small_disk: Path | str
) -> None:
    if isinstance(small_disk, str):
        pytest.skip(small_disk)
    make_run(tmp_path)
    fill(small_disk, 0)
    command = [
        sys.executable,
        "-m",
        "training.main",
        "--config",
        str(tmp_path / "resolved.json"),
        "--run-dir",
        str(small_disk / "other"),
    ]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        "No space left on device" in done.stderr
        and "free space, then start again: training goes on from the newest checkpoint"
        in done.stderr
    )
