"""Leftovers of a kill are removed; files of a living process never are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.scratch import SUFFIX, remove_abandoned, scratch_folder
from tasks import store
from tests.distributed.launch import ROOT

OWNER = (
    "import sys, time\nfrom pathlib import Path\nfrom schemas.scratch import scratch_folder\nwith"
    " scratch_folder(Path(sys.argv[1]), 'step') as folder:\n    (folder / 'half').write_text('x')\n"
    "    print(folder, flush=True)\n    time.sleep(60)\n"
)


@pytest.mark.req("S5")
def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path,
) -> None:
    killed, living = (
        subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    )
    with killed, living:
        assert killed.stdout is not None and living.stdout is not None
        left, used = Path(killed.stdout.readline().strip()), Path(living.stdout.readline().strip())
        assert remove_abandoned(tmp_path) == []
        killed.kill()
        killed.wait()
        assert (left / "half").is_file(), "a kill leaves it"
        assert remove_abandoned(tmp_path) == [left]
        assert (used / "half").is_file() and not left.exists()
        living.kill()


@pytest.mark.req("S5")
def test_nothing_but_our_own_folders_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"step{SUFFIX}").mkdir()
    (tmp_path / f".file{SUFFIX}").write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f".link{SUFFIX}").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.iterdir())
    assert (
        remove_abandoned(tmp_path, tmp_path / "absent") == []
        and sorted(tmp_path.iterdir()) == before
    )


@pytest.mark.req("S5")
def test_a_folder_in_use_is_kept_by_this_process_too_and_gone_after_it(tmp_path: Path) -> None:
    with scratch_folder(tmp_path, "step") as folder:
        assert remove_abandoned(tmp_path) == [] and folder.is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("S5")
def test_a_step_is_made_in_a_folder_that_is_swept_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_HOME", str(tmp_path))
    script = (
        "import os, signal\nfrom tasks import store\nstore.save('validate', 'k' * 64, lambda"
        " folder: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    left = list((tmp_path / "prepared").iterdir())
    assert len(left) == 1 and left[0].name.startswith(".validate-kkkk")
    assert remove_abandoned(tmp_path / "prepared") == left
    assert store.folder("validate", "k" * 64).parent.is_dir()
