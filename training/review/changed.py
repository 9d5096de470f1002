"""Lines of files that differ from a git revision."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ConfigError
from training.review.findings import Finding

HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
EVERY_LINE = 1 << 30


@dataclass(frozen=True)
class Changes:
    """New or changed lines of a file as ranges, and the lines after which lines were removed."""

    added: tuple[tuple[int, int], ...] = ()
    removed_after: tuple[int, ...] = ()

    def touch(self, finding: Finding) -> bool:
        """Return whether a finding is on a changed line, or its region lost lines."""
        first, last = finding.span
        on_line = any(a <= finding.end_line and finding.line <= b for a, b in self.added)
        return (
            on_line or finding.cell > 0 or any(first <= line <= last for line in self.removed_after)
        )


def is_revision(text: str, folder: Path) -> bool:
    """Return whether git knows a revision of that name in a folder."""
    return (
        _git(
            folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"
        ).returncode
        == 0
    )


def changed_files(revision: str, folder: Path) -> dict[Path, Changes]:
    """Return the Python files and notebooks that differ from a revision, untracked ones too.

    Raises:
        ConfigError: there is no git, no repository, or no such revision.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top.returncode:
        raise ConfigError(
            f"--diff needs a git repository, found none at {folder}; give paths without --diff"
        )
    root = Path(top.stdout.decode().strip())
    if not is_revision(revision, root):
        raise ConfigError(
            f"--diff {revision}: git knows no such revision in {root}; name a branch, a tag or a"
            " commit"
        )
    suffixes = ("*.py", "*.ipynb")
    diff = _git(
        root,
        "-c",
        "core.quotePath=false",
        "diff",
        "--no-color",
        "--no-ext-diff",
        "--unified=0",
        "--no-renames",
        "--diff-filter=AMT",
        revision,
        "--",
        *suffixes,
    )
    found = {
        root / name: changes
        for name, changes in _parse(diff.stdout.decode(errors="replace")).items()
    }
    new = _git(
        root,
        "-c",
        "core.quotePath=false",
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
        "--",
        *suffixes,
    )
    return found | {
        root / name: Changes(((1, EVERY_LINE),))
        for name in new.stdout.decode(errors="replace").split("\0")
        if name
    }


def _parse(diff: str) -> dict[str, Changes]:
    r"""Return the changed lines of each file of a diff without context.

    >>> _parse("+++ b/a.py\n@@ -3 +3,2 @@\n+x\n+y\n@@ -9,2 +10,0 @@\n-z\n")
    {'a.py': Changes(added=((3, 4),), removed_after=(10,))}
    """
    found: dict[str, Changes] = {}
    for part in re.split(r"^\+\+\+ b/", diff, flags=re.MULTILINE)[1:]:
        name, _, hunks = part.partition("\n")
        ranges = [(int(start), int(count) if count else 1) for start, count in HUNK.findall(hunks)]
        added = tuple((start, start + count - 1) for start, count in ranges if count)
        removed = tuple(start for start, count in ranges if not count)
        found[name.rstrip("\t")] = Changes(added, removed)
    return found


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError(
            "--diff needs git, which is not installed; give paths without --diff"
        ) from error
