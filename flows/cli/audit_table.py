"""Format an audit for the terminal: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.audit import AuditReport
from schemas.errors import counted
from schemas.records import CheckResult
from tasks.audit_files import findings, is_open, outcome

MARKS = {
    "fail": ("✗ fail", "red"),
    "warn": ("! warn", "yellow"),
    "allowed": ("~ allowed", "yellow"),
    "pass": ("✓ pass", "green"),
}


def _mark(result: CheckResult) -> tuple[str, str]:
    return ("· open", "dim") if is_open(result) else MARKS[result.verdict]


def print_audit(report: AuditReport, page: Path) -> None:
    """Print checks, findings, open questions and the report's path on standard output."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(_roles(report), style="dim", markup=False)
    for guess in report.guesses:
        console.print(f"  assumed: {guess}", style="dim", markup=False)
    console.print()
    if console.is_terminal:
        console.print(_table(report))
    else:
        for result in report.checks.results:
            print(f"{_mark(result)[0]:<10} {result.name:<20} {result.summary}")
    for result, inflates, remedy in findings(report):
        console.print()
        console.print(
            Text(
                f"{MARKS[result.verdict][0]}: {_words(result)}",
                style=f"bold {MARKS[result.verdict][1]}",
            )
        )
        for text in filter(None, (inflates, remedy and f"What to do: {remedy}")):
            console.print(f"  {text}", markup=False)
    console.print("\nWhat these data cannot decide:", style="bold")
    for question in report.undecided:
        console.print(f"  · {question}", markup=False)
    console.print(f"\n{outcome(report)}.", style="bold", markup=False)
    console.print(f"  evidence, row by row: {page}", markup=False, soft_wrap=True)


def _words(result: CheckResult) -> str:
    return result.summary + (f" (allowed: {result.reason})" if result.reason else "")


def _roles(report: AuditReport) -> str:
    rows = ", ".join(f"{side} {n:,}" for side, n in report.rows.items())
    roles = "; ".join(
        f"{role} {', '.join(columns)}"
        for role, columns in report.roles.items()
        if role not in ("features", "ignored")
    )
    return (
        f"{report.name}: {rows} rows; {report.task}; {roles};"
        f" {counted(len(report.roles.get('features', ())), 'feature')}"
    )


def _table(report: AuditReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("verdict", "check", "found"):
        table.add_column(heading, no_wrap=heading != "found")
    for result in report.checks.results:
        mark, style = _mark(result)
        table.add_row(Text(mark, style=style), Text(result.name), Text(result.summary))
    return table
