"""Audit files from anywhere, for `bulkhead audit --train --test`.

It takes no part in a flow, and so does not wait for Prefect to load.
"""

from __future__ import annotations

from pathlib import Path

from schemas.audit import AuditReport, FilesToAudit
from schemas.errors import BulkheadError
from schemas.output_file import require_room
from training.data.draft.open_source import source_columns
from training.data.leakage.audit import audit_files as audited
from training.report.audit_report import (
    findings,
    is_open,
    outcome,
    report_path,
    write_audit_report,
)

__all__ = ["audit_files", "column_names", "findings", "is_open", "outcome", "report_path"]


def audit_files(request: FilesToAudit, html: Path | None) -> tuple[AuditReport, Path]:
    """Run every check on files from anywhere; return the path of the report."""
    if html is not None:
        require_room(html, "--html")
    report = audited(request)
    path = html or report_path(report.name)
    write_audit_report(report, path)
    return report, path


def column_names(uris: list[str]) -> list[str]:
    """Return columns of files, for completion; none if they cannot be read."""
    try:
        return source_columns(tuple(uris))
    except (BulkheadError, OSError, ValueError):
        return []
