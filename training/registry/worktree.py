"""Temporary work tree of a commit of this repository."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import RegistryError
from training.run.provenance import GIT

COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@contextmanager
def checked_out(repo: Path, commit: str, diff: str, folder: Path) -> Iterator[None]:
    """Check out a commit's files in a folder, with its uncommitted changes; remove them afterwards.

    Args:
        repo: a folder inside the checkout that has the commit; its files and branch do not change.
        commit: full hash.
        diff: as `git diff` wrote it; empty for none.
        folder: created.

    Raises:
        RegistryError: the commit is not in this repository, or the changes cannot be applied to it.
    """
    if (
        not COMMIT.fullmatch(commit)
        or _git(repo, "cat-file", "-e", f"{commit}^{{commit}}") is not None
    ):
        raise RegistryError(
            f"commit {commit!r} is not in the repository at {repo}: only its own code is run; fetch"
            " it (git fetch --all), or go where it is"
        )
    try:
        _require(
            _git(repo, "worktree", "add", "--detach", str(folder), commit),
            f"commit {commit[:12]} could not be checked out",
        )
        if diff:
            _require(
                _git(folder, "apply", "--whitespace=nowarn", text=diff),
                f"the changes next to commit {commit[:12]} could not be applied",
            )
        yield
    finally:
        _git(repo, "worktree", "remove", "--force", str(folder))
        _git(repo, "worktree", "prune")


def _require(problem: str | None, what: str) -> None:
    if problem is not None:
        raise RegistryError(f"{what}: {problem}")


def _git(folder: Path, *arguments: str, text: str = "") -> str | None:
    """Run a git command without the repository's hooks; return its error, or None if it worked."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [*GIT, "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, check=False, env=environment
        )
    except OSError as error:
        return f"git cannot be run ({error})"
    return (
        None
        if done.returncode == 0
        else done.stderr.decode(errors="replace").strip()[:500] or f"exit code {done.returncode}"
    )
