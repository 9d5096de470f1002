"""Findings as text, JSON and SARIF 2.1.0."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from training.review.findings import Finding, Rule
from training.review.rules import KNOWN
from training.review.sources import ABOUT_FILES

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def as_text(found: Sequence[Finding], files: int) -> str:
    """Write a line for each finding, the remedy below it, and the number of findings."""
    lines = []
    for finding in _open(found):
        rule = KNOWN.get(finding.rule)
        name = f" [{rule.name}]" if rule else ""
        lines.append(
            f"{place(finding)}: {finding.rule}{name} {finding.severity}: {finding.message}"
        )
        if rule:
            lines.append(f"    {rule.remedy}  (bulkhead review --explain {rule.id})")
    return "\n".join([*lines, summary(found, files)])


def place(finding: Finding) -> str:
    """Return `path:line:column`; in a notebook also the cell, counted from 1 over all cells."""
    cell = f":cell {finding.cell}" if finding.cell else ""
    return f"{finding.path}{cell}:{finding.line}:{finding.column}"


def summary(found: Sequence[Finding], files: int) -> str:
    """Return how much was found in how many files."""
    counted = Counter(f.severity for f in _open(found))
    parts = [
        f"{n} {severity}{'s' if n > 1 else ''}"
        for severity in ("error", "warning", "note")
        if (n := counted[severity])
    ]
    allowed = sum(bool(f.allowed) for f in found)
    told = ", ".join(parts) or "nothing found"
    return f"{'✗' if parts else '✓'} {files} file{'s' if files != 1 else ''}: {told}" + (
        f"; {allowed} allowed with a reason" if allowed else ""
    )


def as_json(found: Sequence[Finding], files: int) -> dict[str, Any]:
    """Return the findings for a script, with the names and remedies of their rules.

    Allowed findings are in their own list.
    """
    return {
        "files": files,
        "findings": [_entry(f) for f in _open(found)],
        "allowed": [_entry(f) | {"reason": f.allowed} for f in found if f.allowed],
    }


def _entry(finding: Finding) -> dict[str, Any]:
    rule = KNOWN.get(finding.rule)
    told = {
        "rule": finding.rule,
        "name": rule.name if rule else ABOUT_FILES[finding.rule][0],
        "severity": finding.severity,
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "message": finding.message,
        "why": rule.why if rule else ABOUT_FILES[finding.rule][1],
        "remedy": rule.remedy if rule else "",
    }
    return told | ({"cell": finding.cell} if finding.cell else {})


def as_sarif(found: Sequence[Finding], version: str) -> dict[str, Any]:
    """Return the SARIF log of one run: rules with findings; allowed findings as suppressed."""
    ids = sorted({f.rule for f in found})
    driver = {
        "name": "bulkhead review",
        "version": version,
        "rules": [_descriptor(rule) for rule in ids],
    }
    results = [_result(f, ids.index(f.rule)) for f in found]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
        ],
    }


def _descriptor(id: str) -> dict[str, Any]:
    rule = KNOWN.get(id)
    if rule is None:
        name, told = ABOUT_FILES[id]
        return {"id": id, "name": name, "shortDescription": {"text": told}}
    return {
        "id": id,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\nWhat to do: {rule.remedy}.", "markdown": explain(rule)},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": PurePath(finding.path).as_posix()}}
    if not finding.cell:
        place["region"] = {
            "startLine": finding.line,
            "startColumn": finding.column,
            "endLine": finding.end_line,
            "endColumn": finding.end_column,
        }
    location: dict[str, Any] = {"physicalLocation": place}
    if finding.cell:
        location["logicalLocations"] = [
            {"name": f"cell {finding.cell}, line {finding.line}", "kind": "module"}
        ]
    mark = hashlib.sha256(f"{finding.rule}:{finding.path}:{finding.message}".encode()).hexdigest()[
        :32
    ]
    result = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": finding.message},
        "locations": [location],
        "partialFingerprints": {"ruleAndMessage/v1": mark},
    }
    return result | (
        {"suppressions": [{"kind": "inSource", "justification": finding.allowed}]}
        if finding.allowed
        else {}
    )


def explain(rule: Rule) -> str:
    """Return the page of a rule as Markdown."""
    told = f"Severity: {rule.severity}" + (
        ", told with `--strict` or `--select` alone: sound code does it too."
        if rule.severity == "note"
        else "."
    )
    looks = " ".join((rule.check.__doc__ or "").split())
    return "\n".join(
        [
            f"## {rule.id}: {rule.name}",
            "",
            f"**{rule.title}.** {rule.why}",
            "",
            f"* **What to do:** {rule.remedy}.",
            f"* **Found by:** {looks[:1].lower()}{looks[1:]}",
            f"* {told}",
            "",
            "```python",
            "# wrong",
            rule.bad.rstrip(),
            "```",
            "",
            "```python",
            "# right",
            rule.good.rstrip(),
            "```",
        ]
    )


def _open(found: Sequence[Finding]) -> list[Finding]:
    return [f for f in found if not f.allowed]
