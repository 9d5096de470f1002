"""Look for leaks in a declaration's split, with no training. Run it with `bulkhead audit FILE`."""

from __future__ import annotations

from prefect import flow

from schemas.audit import AuditReport
from schemas.load import load_declaration
from tasks.audit import audit_sides, report_audit, require_passed
from tasks.context import run_name
from tasks.source import fingerprint_source, validate_table
from tasks.split import split_rows


@flow(
    name="audit",
    flow_run_name=run_name,
    description="Validate, split, and run every leak check; no fit, no training. Unchanged steps are reused.",
    persist_result=False,
)
def audit(config_path: str, overrides: list[str] | None = None, html: str | None = None, stop: bool = True) -> AuditReport:
    """Audit the split of a declaration.

    Args:
        config_path: Path of the YAML declaration.
        overrides: Values that replace the file's, each as path=value, e.g. split.seed=1.
        html: Where the report goes; by default the folder audits of the Bulkhead home.
        stop: End the flow run as failed where a check failed.
    """
    declaration = load_declaration(config_path, overrides or ())
    source = fingerprint_source(declaration)
    validated = validate_table(source, declaration)
    split = split_rows(validated, declaration)
    report = audit_sides(split, validated, declaration, source)
    report_audit(report, html)
    if stop:
        require_passed(report.checks)
    return report
