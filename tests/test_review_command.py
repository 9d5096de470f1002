"""The command line of the review: forms, exit codes, what differs from a revision."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.review.changed import changed_files

ROOT = Path(__file__).resolve().parent.parent
SOUND = """import torch


def train(model, optimizer, loader, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
"""
CLEARED = "        optimizer.zero_grad()\n"
PICKLED = "\n\ndef save(model):\n    torch.save(model, 'model.pt')\n"


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "TERM": "dumb"}
    command = [sys.executable, "-m", "flows.cli", "review", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=60, check=False)


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").write_text(SOUND)
    (tmp_path / "old.py").write_text("import torch\n" + PICKLED)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "Begin")
    return tmp_path


@pytest.mark.req("M5")
def test_exit_codes_and_text(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOUND)
    sound = call(tmp_path, "train.py")
    assert sound.returncode == 0 and "nothing found" in sound.stdout
    (tmp_path / "train.py").write_text(SOUND.replace(CLEARED, ""))
    found = call(tmp_path, ".")
    assert found.returncode == 1
    assert "train.py:7:9: BH101 [zero-grad-missing] error:" in found.stdout and "call `optimizer.zero_grad" in found.stdout
    for wrong in (["absent.py"], [], ["--select", "XX1", "train.py"], ["--explain", "BH999"], ["--format", "xml", "train.py"], ["--diff"]):
        done = call(tmp_path, *wrong)
        assert done.returncode == 2 and "Traceback" not in done.stderr, wrong
    assert call(tmp_path, "--ignore", "BH101", "train.py").returncode == 0
    assert call(tmp_path, "--select", "BH2", "train.py").returncode == 0
    explained = call(tmp_path, "--explain", "BH101")
    assert explained.returncode == 0 and "# wrong" in explained.stdout and "# right" in explained.stdout


def test_json_and_sarif(tmp_path: Path) -> None:
    allowed = "    torch.save(model, 'model.pt')  # bulkhead: allow[BH702] loaded by the same commit only\n"
    (tmp_path / "train.py").write_text(SOUND.replace(CLEARED, "") + "\n\ndef save(model):\n" + allowed)
    told = json.loads(call(tmp_path, "train.py", "--json").stdout)
    assert [(f["rule"], f["line"], f["path"]) for f in told["findings"]] == [("BH101", 7, "train.py")]
    assert [(f["rule"], f["reason"]) for f in told["allowed"]] == [("BH702", "loaded by the same commit only")]
    log = json.loads(call(tmp_path, "train.py", "--format", "sarif").stdout)
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and [r["id"] for r in run["tool"]["driver"]["rules"]] == ["BH101", "BH702"]
    first, second = run["results"]
    region = first["locations"][0]["physicalLocation"]["region"]
    assert (first["ruleId"], first["level"], region["startLine"], region["startColumn"]) == ("BH101", "error", 7, 9)
    assert "suppressions" not in first and second["suppressions"][0]["kind"] == "inSource"


@pytest.mark.req("M5")
def test_diff_tells_only_what_a_change_brought(repository: Path) -> None:
    assert call(repository, "--diff").returncode == 0
    assert call(repository, ".").returncode == 1  # what was there before
    (repository / "train.py").write_text(SOUND.replace(CLEARED, "") + PICKLED)
    (repository / "new.py").write_text("import torch\n" + PICKLED)
    changed = call(repository, "--diff")
    assert changed.returncode == 1
    assert {line.split(" ")[1] for line in changed.stdout.splitlines() if "BH" in line and ".py:" in line} == {"BH101", "BH702"}
    assert "old.py" not in changed.stdout and "new.py" in changed.stdout
    below = call(repository, "--diff", "HEAD", "new.py")
    assert below.returncode == 1 and "train.py" not in below.stdout
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Change")
    assert call(repository, "--diff").returncode == 0
    assert "BH101" in call(repository, "--diff", "HEAD~1").stdout
    unknown = call(repository, "--diff", "no-such-branch")
    assert unknown.returncode == 2 and "neither a path nor a revision" in unknown.stderr


def test_changes_of_files_with_spaces_and_letters_beyond_ascii(repository: Path) -> None:
    (repository / "ein Lauf ä.py").write_text("x = 1\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Add")
    (repository / "ein Lauf ä.py").write_text("x = 1\ny = 2\n")
    (changes,) = [c for p, c in changed_files("HEAD", repository).items() if p.name == "ein Lauf ä.py"]
    assert changes.added == ((2, 2),)


def test_nothing_heavy_is_loaded() -> None:
    code = "import sys, tasks.review; print([m for m in ('torch', 'prefect', 'mlflow', 'numpy', 'duckdb', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "[]", done.stderr
