"""Review of files or changed lines, shared by the command line and the pre-commit hook.

Only the standard library is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from schemas.errors import ConfigError
from training.review.changed import changed_files, is_revision
from training.review.engine import chosen_rules, python_files, review_files
from training.review.findings import Finding, Rule
from training.review.formats import as_json, as_sarif, as_text
from training.review.retired import RETIRED
from training.review.rules import KNOWN
from training.review.sources import ALLOWS_RETIRED

Form = Literal["text", "json", "sarif"]


@dataclass(frozen=True)
class Reviewed:
    """The findings in some files, allowed ones included.

    After a run of the program, also a line on how it ended, and its figures.
    """

    findings: list[Finding]
    files: int
    told: str = ""
    run: dict[str, Any] | None = None

    @property
    def clean(self) -> bool:
        """Return whether no run failed and nothing was found.

        Allowed findings and comments about removed rules do not count.
        """
        return all(f.allowed or f.rule == ALLOWS_RETIRED for f in self.findings) and not (
            self.run and self.run["error"]
        )

    def render(self, form: Form) -> str:
        """Render the findings as text for a person, JSON for a script, or SARIF for a code host."""
        if form == "text":
            return as_text(self.findings, self.files) + (f"\n{self.told}" if self.told else "")
        if form == "sarif":
            tree = as_sarif(self.findings, _version())
        else:
            tree = as_json(self.findings, self.files) | ({"run": self.run} if self.run else {})
        return json.dumps(tree, indent=2, ensure_ascii=False)


def _version() -> str:
    """Return the version of the installed package; `source` in a working tree without one."""
    try:
        return metadata.version("bulkhead")
    except metadata.PackageNotFoundError:
        return "source"


def review_paths(paths: Sequence[Path], rules: Sequence[Rule]) -> Reviewed:
    """Review files and folders.

    Raises:
        ConfigError: a path does not exist, or there is nothing to review.
    """
    _require_existing(paths)
    files = python_files(paths)
    if not files:
        raise ConfigError(
            f"{', '.join(map(str, paths)) or 'no path given'}: no Python file or notebook; give"
            " files or folders, or --diff"
        )
    return Reviewed(review_files(files, rules), len(files))


def review_changes(revision: str, paths: Sequence[Path], rules: Sequence[Rule]) -> Reviewed:
    """Review the working tree; report findings on changed lines and where lines were removed.

    Args:
        revision: as git names it.
        paths: only below these; none means the whole repository of the current folder.
        rules: the rules that run.

    Raises:
        ConfigError: a path does not exist, there is no repository, or git does not know the
            revision.
    """
    _require_existing(paths)
    changes = changed_files(revision, next((p if p.is_dir() else p.parent for p in paths), Path()))
    wanted = [p.resolve() for p in paths]
    files = [
        p
        for p in sorted(changes)
        if p.exists() and (not wanted or any(p.resolve().is_relative_to(w) for w in wanted))
    ]
    found = [f for f in review_files(files, rules) if changes[Path(f.path)].touch(f)]
    return Reviewed([replace(f, path=relative(f.path)) for f in found], len(files))


def revision_and_paths(given: Sequence[Path]) -> tuple[str, list[Path]]:
    """Split the arguments of `--diff` into its revision and the paths.

    The revision is HEAD unless one argument is not a path.

    Raises:
        ConfigError: an argument is neither a path nor a revision.
    """
    others = [p for p in given if not p.exists()]
    if others and (len(others) > 1 or not is_revision(str(others[0]), Path())):
        raise ConfigError(
            f"{others[-1]} is neither a path nor a revision that git knows here; give --diff [REV]"
            " [PATH]…"
        )
    return str(others[0]) if others else "HEAD", [p for p in given if p.exists()]


def _require_existing(paths: Sequence[Path]) -> None:
    if missing := [str(p) for p in paths if not p.exists()]:
        raise ConfigError(f"{missing[0]} does not exist; give Python files, notebooks or folders")


def relative(path: str) -> str:
    """Return the path relative to the current folder, if it lies below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def choose(select: Sequence[str], ignore: Sequence[str], strict: bool) -> tuple[Rule, ...]:
    """Return the rules that the options select.

    Raises:
        ConfigError: no rule begins with a given id.
    """
    for given in (*select, *ignore):
        if given in RETIRED:
            if given in ignore:  # from the configuration of an earlier version; harmless
                continue
            raise ConfigError(f"{given}: this rule was removed; leave it out")
        if not any(id.startswith(given) for id in KNOWN):
            raise ConfigError(
                f"{given}: no such rule; give an id such as BH101, or the beginning of several,"
                " such as BH1 (--explain all lists them)"
            )
    return chosen_rules(select, ignore, strict)


def rule_ids_in(given: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of options that may be repeated or hold several.

    >>> rule_ids_in(["bh1,BH301", "BH4"])
    ('BH1', 'BH301', 'BH4')
    """
    return tuple(part.strip().upper() for text in given for part in text.split(",") if part.strip())
