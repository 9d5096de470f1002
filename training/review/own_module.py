"""Review of a user's own network before its import: the declared class and the code it uses."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from schemas.config import CustomModel, Declaration
from schemas.records import CheckResult
from training.data.leakage.verdict import judged
from training.review.engine import chosen_rules, review_source
from training.review.findings import Finding
from training.review.rules import LOADED
from training.review.sources import Unreadable, read_source
from training.review.syntax import identifiers

NAME = "review"
SHOWN = 10  # evidence rows of one rule


def review_own_module(declaration: Declaration) -> tuple[CheckResult, ...]:
    """Return one result for each rule with a finding, or `review` if there is none.

    Errors fail, unless the declaration allows the rule with a reason (`checks.allow: [{check:
    BH402, reason: …}]`) or a comment in the file does; warnings warn. A module without a source
    file is not reviewed; the result says so. A built-in model has no result.
    """
    if not isinstance(declaration.model, CustomModel):
        return ()
    module, _, class_name = declaration.model.path.partition(":")
    path = source_file(module)
    if path is None:
        return (
            CheckResult(
                name=NAME,
                verdict="warn",
                summary=f"{module} has no source file that could be reviewed.",
                remedy="install it with its sources",
            ),
        )
    rules = chosen_rules()
    try:
        source = read_source(path, path.name)
        used = lines_of(source.parse(), class_name)
    except Unreadable as error:
        return (
            CheckResult(
                name=NAME,
                verdict="warn",
                summary=f"{path.name} {error.finding.message}.",
                remedy="save it as UTF-8 Python",
            ),
        )
    found = [
        f
        for f in review_source(source, rules)
        if any(first <= f.line <= last for first, last in used)
    ]
    if not found:
        lines = sum(last - first + 1 for first, last in used)
        figures: dict[str, float | int | str | None] = {"lines": lines, "rules": len(rules)}
        return (
            CheckResult(
                name=NAME,
                verdict="pass",
                summary=(
                    f"{class_name} in {path.name}: {lines} lines, {len(rules)} rules, nothing"
                    " found."
                ),
                figures=figures,
            ),
        )
    return tuple(
        judged(_result(rule, [f for f in found if f.rule == rule]), declaration)
        for rule in sorted({f.rule for f in found})
    )


def source_file(module: str) -> Path | None:
    """Find the source file of a module without running any of its packages."""
    package, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        origin = Path(spec.origin or "")
        return origin if origin.suffix == ".py" and origin.is_file() else None
    for folder in spec.submodule_search_locations or ():
        for candidate in (
            Path(folder, *rest).with_suffix(".py"),
            Path(folder, *rest, "__init__.py"),
        ):
            if candidate.is_file():
                return candidate
    return None


def lines_of(tree: ast.Module, class_name: str) -> list[tuple[int, int]]:
    """Return the first and last lines of a class and of the code of its file that it uses.

    That code is classes and functions, used directly or through others.
    """
    known = {
        n.name: n
        for n in tree.body
        if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    }
    wanted, pending = set[str](), [class_name]
    while pending:
        name = pending.pop()
        if name in known and name not in wanted:
            wanted.add(name)
            pending += identifiers(known[name])
    starts = {
        name: min([known[name].lineno, *(d.lineno for d in known[name].decorator_list)])
        for name in wanted
    }
    return [(starts[name], known[name].end_lineno or starts[name]) for name in sorted(wanted)]


def _result(id: str, found: list[Finding]) -> CheckResult:
    """Return the result of one rule."""
    rule = LOADED.get(id)
    open_findings = [f for f in found if not f.allowed]
    first = (open_findings or found)[0]
    rows = tuple(
        {"place": f"{f.path}:{f.line}:{f.column}", "found": f.message} for f in found[:SHOWN]
    )
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    summary = f"{first.path}:{first.line}: {first.message}{more}."
    remedy = rule.remedy if rule else "correct the comment"
    if not open_findings:
        return CheckResult(
            name=id,
            verdict="allowed",
            summary=summary,
            evidence=rows,
            remedy=remedy,
            reason=first.allowed,
        )
    worst = any(f.severity == "error" for f in open_findings)
    return CheckResult(
        name=id,
        verdict="fail" if worst else "warn",
        summary=summary,
        evidence=rows,
        remedy=remedy,
        figures={"found": len(found)},
    )
