"""Run the checks alone, and report their findings."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from prefect import State, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from schemas.audit import AuditReport
from schemas.config import Declaration
from schemas.confinement import require_writable
from schemas.output_file import require_room
from schemas.records import CheckReport, SourceRef, SplitTables, ValidatedTable
from tasks.live import publish
from tasks.poison import poison_report
from tasks.say import say
from training.data.leakage import audit as checks
from training.data.leakage import require_passed
from training.report.audit_report import (
    audit_markdown,
    outcome,
    report_path,
    write_audit_report,
)

__all__ = [
    "audit_sides",
    "load_poison_test",
    "report_audit",
    "report_path",
    "require_page",
    "require_passed",
]


def require_page(html: str) -> None:
    """Refuse a report that could not be written, before anything runs.

    Raises:
        ConfigError: a worker's flow run may not use the folder, or it is not writable.
    """
    if html:
        require_writable(html, "html", (".html", ".htm"))
        require_room(html, "html")


def load_poison_test() -> None:
    """Import what the poison test needs, while something else waits."""
    import training.preflight.poisoned_fit  # noqa: F401


@task(
    name="audit sides",
    description=(
        "Every leak check over the sides as they were written, and the poison test; what fails is"
        " reported, not raised."
    ),
    tags=["check"],
    cache_policy=NO_CACHE,
)
def audit_sides(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration, source: SourceRef
) -> AuditReport:
    """Return the findings, the rows next to each other, and the open questions."""
    report = checks.audit_split(split, validated, declaration, source)
    found = poison_report(split, validated, declaration)
    poison = cast(CheckReport, found.data) if isinstance(found, State) else found
    poisoned = (*report.checks.results, *poison.results)
    report = report.model_copy(update={"checks": CheckReport(results=poisoned)})
    say("audit", outcome(report), "fail" if report.checks.failed else "done")
    return report


@task(
    name="write audit report",
    description="One HTML file with the evidence, and a summary in Prefect.",
    tags=["report"],
    cache_policy=NO_CACHE,
)
def report_audit(report: AuditReport, html: str | None) -> Path:
    """Write the report and return its path."""
    path = Path(html) if html else report_path(report.name)
    write_audit_report(report, path)
    publish(
        create_markdown_artifact,
        key="audit",
        markdown=audit_markdown(report),
        description=f"{report.name}: leak audit",
    )
    return path
