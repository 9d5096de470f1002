"""Review one file or many: run the rules, then apply the comments that allow findings."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from training.review.findings import RULES, Finding, Rule, Subject
from training.review.program import Program
from training.review.rules import LOADED
from training.review.sources import (
    RULE_FAILED,
    WHOLE_FILE,
    Source,
    Unreadable,
    allowances_of,
    read_source,
)
from training.uncollected import uncollected

RELEVANT = ("torch", "sklearn", "imblearn", "accelerate", "transformers", "lightning")
PARALLEL_FROM = 40  # files; with fewer, a second process costs more than it saves


def chosen_rules(
    select: Iterable[str] = (), ignore: Iterable[str] = (), strict: bool = False
) -> tuple[Rule, ...]:
    """Return the rules that run.

    Notes run only with `strict`, or if their id or its beginning is selected.

    >>> [r.id for r in chosen_rules(select=["BH10"])][:2]
    ['BH101', 'BH102']
    """
    wanted, unwanted = tuple(select), tuple(ignore)
    found = [
        r
        for r in LOADED.values()
        if (r.id.startswith(wanted) if wanted else strict or r.severity != "note")
    ]
    return tuple(r for r in found if not (unwanted and r.id.startswith(unwanted)))


def review_text(
    text: str, path: str = "<text>", rules: Sequence[Rule] | None = None
) -> list[Finding]:
    """Return the findings in Python text, allowed ones included."""
    return review_source(Source(path, text), chosen_rules() if rules is None else rules)


def review_source(
    source: Source, rules: Sequence[Rule], seen: Sequence[Finding] = ()
) -> list[Finding]:
    """Return the findings in a source and in its allowances, sorted by place.

    Allowed findings are included.

    Args:
        source: the source to read.
        rules: the rules that run.
        seen: findings of a run of the same source; added if reading did not find the mistake.
    """
    # until the tree is freed: memory that is freed early gives its place in the processor's cache
    # to the next file
    with uncollected():
        try:
            found = _found(source, rules)
        except Unreadable as error:
            return [error.finding]
    allowances = allowances_of(source)
    read = {f.rule for f in found}
    found += [f for f in seen if f.rule not in read]
    judged = allowances.judge(found, {r.id for r in rules} | {f.rule for f in seen})
    return sorted(judged, key=lambda f: (f.cell, f.line, f.column, f.rule))


def _found(source: Source, rules: Sequence[Rule]) -> list[Finding]:
    """Return the findings of the rules in a source.

    Raises:
        Unreadable: it is not Python, or nested too deeply.
    """
    tree = source.parse()
    if not any(name in source.text for name in RELEVANT):
        return []
    try:
        subject = Subject(Program(tree, source.path))
        return [f for rule in rules for f in _applied(rule, subject, source)]
    except RecursionError:
        raise Unreadable(
            source.path, 1, 1, "cannot be reviewed: an expression is nested too deeply; break it up"
        ) from None


def _applied(rule: Rule, subject: Subject, source: Source) -> list[Finding]:
    """Return the findings of a rule; a rule that fails is reported as a finding.

    A failure must not hide the findings of other rules, nor look like a file without the mistake.
    """
    try:
        told = list(rule.findings(subject))
        if not told:
            return []
        found: dict[tuple[int, str], Finding] = {}
        for f in told:  # one finding a line, though several places break the rule
            found.setdefault((f.line, f.message), f)
        return [source.placed(f) for f in found.values()]
    except RecursionError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}; {Path(place.filename).name}:{place.lineno}"
        said = (
            f"{rule.id} {rule.name} could not be applied to this file, the other rules were"
            f" ({what}); this is a mistake of bulkhead: please report it with the file"
        )
        return [Finding(RULE_FAILED, subject.program.path, 1, 1, 1, 1, said, "warning", WHOLE_FILE)]


def review_file(
    path: Path, rules: Sequence[Rule], name: str | None = None, seen: Sequence[Finding] = ()
) -> list[Finding]:
    """Return the findings in one file and those of a run; an unreadable file is a finding."""
    try:
        source = read_source(path, name or str(path))
    except Unreadable as error:
        return [error.finding]
    return review_source(source, rules, seen)


def review_files(paths: Sequence[Path], rules: Sequence[Rule]) -> list[Finding]:
    """Return the findings in many files, in the given order; use all cores if there are many."""
    workers = min(os.cpu_count() or 1, 8)
    if len(paths) < PARALLEL_FROM or workers == 1:
        return [f for path in paths for f in review_file(path, rules)]
    ids = tuple(r.id for r in rules)
    with ProcessPoolExecutor(
        workers, initializer=gc.freeze
    ) as pool:  # so that the garbage collector skips what is already loaded
        return [
            f for found in pool.map(_by_ids, paths, [ids] * len(paths), chunksize=16) for f in found
        ]


def _by_ids(path: Path, ids: tuple[str, ...]) -> list[Finding]:
    return review_file(path, tuple(RULES[i] for i in ids))


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Return the Python files and notebooks of files and folders, each once and sorted.

    Hidden folders and virtual environments are left out.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = (
                p
                for p in path.rglob("*")
                if p.suffix in (".py", ".ipynb")
                and p.is_file()
                and not _left_out(p.relative_to(path))
            )
            found |= dict.fromkeys(sorted(inside))
        else:
            found[path] = None
    return list(found)


def _left_out(path: Path) -> bool:
    return any(
        part.startswith(".")
        or part in ("__pycache__", "node_modules", "site-packages", "venv", "build")
        for part in path.parts
    )
