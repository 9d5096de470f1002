"""Only a commit of this very repository is checked out, next to the checkout and for a while."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from schemas.errors import RegistryError
from training.registry.worktree import checked_out
from training.run.provenance import dirty_diff, git_state


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two commits, a hook that would leave a trace, and a change that was not committed."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    for text in ("one\n", "two\n"):
        (folder / "code.py").write_text(text)
        git(folder, "add", "code.py")
        git(folder, "commit", "-q", "-m", text)
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'hooked'}\n")
    hook.chmod(0o755)
    (folder / "code.py").write_text("two and a half\n")
    return folder


@pytest.mark.req("R3")
def test_a_commit_stands_beside_the_checkout_for_a_while(repo: Path, tmp_path: Path) -> None:
    first, second, place = (
        git(repo, "rev-parse", "HEAD~1"),
        git(repo, "rev-parse", "HEAD"),
        tmp_path / "place",
    )
    with checked_out(repo, first, "", place):
        assert (place / "code.py").read_text() == "one\n" and git_state(place)["sha"] == first
    with checked_out(repo, second, dirty_diff(repo), place):
        assert (place / "code.py").read_text() == "two and a half\n"
        assert dirty_diff(place) == dirty_diff(repo)
    assert not place.exists() and not (tmp_path / "hooked").exists()
    assert (repo / "code.py").read_text() == "two and a half\n" and git(
        repo, "symbolic-ref", "--short", "HEAD"
    ) == "trunk"
    assert len(git(repo, "worktree", "list").splitlines()) == 1


@pytest.mark.req("S1")
def test_code_of_no_commit_of_ours_is_not_run(repo: Path, tmp_path: Path) -> None:
    blob = git(repo, "rev-parse", "HEAD:code.py")
    for commit in ("0" * 40, blob, "HEAD", "trunk", "--help", "", "../elsewhere"):
        with (
            pytest.raises(
                RegistryError, match=r"is not in the repository at .* only its own code is run"
            ),
            checked_out(repo, commit, "", tmp_path / "place"),
        ):
            raise AssertionError("never here")
    with (
        pytest.raises(RegistryError, match="is not in the repository"),
        checked_out(tmp_path, "0" * 40, "", tmp_path / "place"),
    ):
        raise AssertionError("never here")
    assert not (tmp_path / "place").exists()


@pytest.mark.req("S1")
def test_changes_that_do_not_fit_or_reach_outside_are_refused(repo: Path, tmp_path: Path) -> None:
    commit = git(repo, "rev-parse", "HEAD")
    outside = (
        "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1"
        " @@\n+x\n"
    )
    for diff in ("nonsense\n", outside, dirty_diff(repo).replace("-two", "-three")):
        with (
            pytest.raises(
                RegistryError, match=r"the changes next to commit .* could not be applied"
            ),
            checked_out(repo, commit, diff, tmp_path / "place"),
        ):
            raise AssertionError("never here")
    assert not (tmp_path / "place").exists() and not (tmp_path / "x").exists()
