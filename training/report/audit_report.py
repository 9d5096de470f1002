"""Report of an audit: one HTML file with findings, their effect on the score, and remedies."""

from __future__ import annotations

from pathlib import Path

from schemas.audit import AuditReport, ShownRows
from schemas.home import home
from schemas.records import CheckResult, FileRef
from training.data.leakage.catalogue import explanation
from training.formatting import capital, count, duration, plain, plural
from training.report.blocks import (
    RANK,
    Badge,
    Beside,
    Block,
    Bullets,
    Callout,
    Facts,
    Finding,
    Findings,
    Heading,
    Section,
    Tone,
    evidence_of,
    figures_of,
    findings_first,
    table,
    verdict_badge,
)
from training.report.headline import Headline, Tile
from training.report.page import write_page

TEMPLATE = "audit.html.j2"
NO_FINDING = (
    "No check found a leak. That is not the same as no leak: below stands what these data cannot"
    " decide."
)


def report_path(name: str) -> Path:
    """Return the default path of an audit's report; the next audit of that name replaces it."""
    return home() / "audits" / f"{name}.html"


def write_audit_report(report: AuditReport, path: Path) -> FileRef:
    """Write the report completely or not at all; the same audit gives the same bytes except its
    duration.
    """
    return write_page(
        path,
        TEMPLATE,
        name=plain(report.name),
        description="",
        task=report.task,
        label=plain(", ".join(report.roles.get("label", ()))),
        headline=headline(report),
        sections=audit_sections(report),
    )


def outcome(report: AuditReport) -> str:
    """Describe the audit in one sentence; never promise that there is no leak.

    >>> from schemas.records import CheckReport
    >>> outcome(AuditReport(name="x", sources={}, sha256={}, roles={}, task="binary", rows={},
    ...     checks=CheckReport(results=())))
    'Nothing failed in 0 checks'
    """
    results = report.checks.results
    failed, warned = (
        [r.name.replace("_", " ") for r in results if r.verdict == verdict]
        for verdict in ("fail", "warn")
    )
    words = (
        f"{len(failed)} of {plural(len(results), 'check')} failed: {', '.join(failed)}"
        if failed
        else f"Nothing failed in {plural(len(results), 'check')}"
    )
    return words + (f"; {plural(len(warned), 'warning')}: {', '.join(warned)}" if warned else "")


def headline(report: AuditReport) -> Headline:
    """Return the outcome and its four figures."""
    found = {
        v: sum(1 for r in report.checks.results if r.verdict == v)
        for v in ("fail", "warn", "allowed", "pass")
    }
    tone: Tone = "bad" if found["fail"] else "warn" if found["warn"] or found["allowed"] else "info"
    advice = (
        "Until that is fixed, do not believe the test score."
        if found["fail"]
        else "What these data cannot decide stands below."
    )
    rows = ", ".join(f"{side} {count(n)}" for side, n in report.rows.items())
    tiles = (
        Tile(
            "Failed",
            count(found["fail"]),
            f"of {plural(len(report.checks.results), 'check')}",
            "bad" if found["fail"] else "info",
        ),
        Tile(
            "Warnings",
            count(found["warn"]),
            f"{count(found['allowed'])} allowed with a reason",
            "warn" if found["warn"] else "info",
        ),
        Tile(
            "Not decided",
            count(len(report.undecided)),
            "questions that these data leave open",
            "info",
        ),
        Tile(
            "Rows",
            count(sum(report.rows.values())),
            f"{rows}; checked in {duration(report.seconds)}",
            "info",
        ),
    )
    return Headline(f"{capital(plain(outcome(report), 1000))}. {advice}", tone, tiles)


def audit_sections(report: AuditReport) -> tuple[Section, ...]:
    """Return the sections in the order of a reader's questions."""
    parts: tuple[tuple[str, str, str, list[Block]], ...] = (
        (
            "findings",
            "Findings",
            "What would make the test score better than the model is?",
            _finding_blocks(report),
        ),
        (
            "undecided",
            "Not decided",
            "What can no check on these data tell?",
            [Bullets(tuple(plain(u, 1000) for u in report.undecided))],
        ),
        (
            "checks",
            "Every check",
            "What was looked for, and what was found?",
            [_every_check(report)],
        ),
        (
            "sources",
            "What was audited",
            "Which rows, which roles, which guesses?",
            _source_blocks(report),
        ),
    )
    return tuple(
        Section(anchor, title, question, tuple(blocks)) for anchor, title, question, blocks in parts
    )


def _finding_blocks(report: AuditReport) -> list[Block]:
    results = report.checks.results
    found = [
        i
        for i in sorted(range(len(results)), key=lambda i: RANK[results[i].verdict])
        if results[i].verdict != "pass"
    ]
    if not found:
        return [Callout("info", "Nothing failed", NO_FINDING)]
    return [Findings(tuple(_finding(i, results[i], report.shown.get(i, ())) for i in found))]


def _finding(position: int, result: CheckResult, shown: tuple[ShownRows, ...]) -> Finding:
    said = explanation(result.name)
    return Finding(
        badge=verdict_badge(result.verdict),
        anchor=f"finding-{position}",
        title=said.title,
        name=result.name,
        summary=plain(result.summary, 1000),
        inflates=said.inflates,
        remedy=(
            capital(plain(result.remedy or said.remedy, 1000))
            if result.verdict != "allowed"
            else ""
        ),
        reason=plain(result.reason, 1000),
        beside=tuple(_beside(s) for s in shown),
        figures=figures_of(result),
        evidence=evidence_of(result),
    )


def _beside(shown: ShownRows) -> Beside:
    lines = tuple(
        (plain(name, 60), tuple(plain(v, 200) for v in values), marked)
        for name, values, marked in shown.lines
    )
    return Beside(plain(shown.title, 300), tuple(plain(h, 60) for h in shown.headers), lines)


def _every_check(report: AuditReport) -> Block:
    rows = [
        (
            r.name,
            Badge("info", "not decided") if is_open(r) else verdict_badge(r.verdict),
            plain(r.summary, 400),
        )
        for r in findings_first(report.checks.results)
    ]
    return table(("check", "verdict", "found"), rows, words=(0, 1, 2), limit=100, what="checks")


def is_open(result: CheckResult) -> bool:
    """Return True if the check had too little data."""
    return result.verdict == "pass" and result.summary.startswith("not decided")


def _source_blocks(report: AuditReport) -> list[Block]:
    files = [
        (
            capital(side),
            (
                f"{', '.join(plain(u, 300) for u in uris)} (SHA-256"
                f" {report.sha256.get(side, '')[:12]})"
            ),
        )
        for side, uris in report.sources.items()
    ]
    roles = [
        (capital(role), plain(", ".join(columns), 2000)) for role, columns in report.roles.items()
    ]
    blocks: list[Block] = [Facts((*files, *roles))]
    return (
        [*blocks, Heading("Assumed"), Bullets(tuple(plain(g, 600) for g in report.guesses))]
        if report.guesses
        else blocks
    )


def findings(report: AuditReport) -> list[tuple[CheckResult, str, str]]:
    """Show failed checks, their effect on the score, and what to do, the worst first."""
    found = [
        (r, explanation(r.name))
        for r in findings_first(report.checks.results)
        if r.verdict != "pass"
    ]
    return [
        (r, said.inflates, "" if r.verdict == "allowed" else r.remedy or said.remedy)
        for r, said in found
    ]


def audit_markdown(report: AuditReport) -> str:
    """Return the outcome as Prefect shows it."""
    rows = "\n".join(
        f"| {r.verdict} | {r.name} | {_cell(r.summary)} |"
        for r in findings_first(report.checks.results)
    )
    open_questions = "\n".join(f"* {u}" for u in report.undecided)
    return (
        f"# {report.name}\n\n{outcome(report)}.\n\n| verdict | check | found"
        f" |\n|---|---|---|\n{rows}\n\nWhat these data cannot decide:\n\n{open_questions}\n"
    )


def _cell(text: str) -> str:
    return plain(text, 300).replace("|", "\\|")
