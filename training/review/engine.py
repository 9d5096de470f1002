"""Review one file or many: rules, then the comments that allow their findings."""

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
PARALLEL_FROM = 40  # files; below that a second process costs more than it saves


def chosen_rules(
    select: Iterable[str] = (), ignore: Iterable[str] = (), strict: bool = False
) -> tuple[Rule, ...]:
    """The rules that run: notes only with `strict` or where they are selected by id or by the
    beginning of one.

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
    """The findings in a piece of Python, allowed ones included."""
    return review_source(Source(path, text), chosen_rules() if rules is None else rules)


def review_source(
    source: Source, rules: Sequence[Rule], seen: Sequence[Finding] = ()
) -> list[Finding]:
    """The findings in a source in order of place, allowed ones included, with what is wrong with
    its allowances.

    Args:
        source: to read.
        rules: that run.
        seen: findings of a run of the same source, added where reading did not find the same
            mistake.
    """
    # until the tree is let go: what is freed at once leaves its place in the processor's cache to
    # the next file's
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
    """What the rules find in a source.

    Raises:
        Unreadable: it is no Python, or nested too deeply.
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
    """What a rule finds; its own failure is a finding too, since it must neither hide what the
    others find nor pass for a file without this mistake.
    """
    try:
        told = list(rule.findings(subject))
        if not told:
            return []
        found: dict[tuple[int, str], Finding] = {}
        for f in told:  # one line may break a rule in several places: once is enough
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
    """The findings in one file, with those of a run; a file that cannot be read is one itself."""
    try:
        source = read_source(path, name or str(path))
    except Unreadable as error:
        return [error.finding]
    return review_source(source, rules, seen)


def review_files(paths: Sequence[Path], rules: Sequence[Rule]) -> list[Finding]:
    """The findings in many files, by file in the given order, on all cores where there are many."""
    workers = min(os.cpu_count() or 1, 8)
    if len(paths) < PARALLEL_FROM or workers == 1:
        return [f for path in paths for f in review_file(path, rules)]
    ids = tuple(r.id for r in rules)
    with ProcessPoolExecutor(
        workers, initializer=gc.freeze
    ) as pool:  # what is loaded by now is not gone through again and again
        return [
            f for found in pool.map(_by_ids, paths, [ids] * len(paths), chunksize=16) for f in found
        ]


def _by_ids(path: Path, ids: tuple[str, ...]) -> list[Finding]:
    return review_file(path, tuple(RULES[i] for i in ids))


def python_files(paths: Iterable[Path]) -> list[Path]:
    """The Python files and notebooks of files and folders, each once, in sorted order; hidden and
    virtual-environment folders left out.
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
