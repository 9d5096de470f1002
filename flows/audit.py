"""Find leaks in a declaration's split, without training. Run it with `bulkhead audit FILE`."""

from __future__ import annotations

from typing import Annotated

from prefect import flow

from schemas.audit import AuditReport
from schemas.load import load_declaration
from schemas.parameters import ConfigPath, Overrides, shown
from tasks.audit import audit_sides, report_audit, require_page, require_passed
from tasks.names import run_name
from tasks.source import fingerprint_source, validate_table
from tasks.split import split_rows

Stop = Annotated[bool, shown("Fail on findings", "The flow run fails where a check fails.")]
Page = Annotated[
    str, shown("Report", "Path of the HTML report. Empty: the folder audits of the Bulkhead home.")
]


@flow(
    name="audit",
    flow_run_name=run_name,
    description=(
        "Validate, split, and run every leak check; no fit, no training. Unchanged steps are"
        " reused."
    ),
    persist_result=False,
)
def audit(
    config_path: ConfigPath, stop: Stop = True, html: Page = "", overrides: Overrides = ()
) -> AuditReport:
    """Audit the split of a declaration.

    Args:
        config_path: Path of the YAML declaration.
        stop: End the flow run as failed where a check failed.
        html: Where the report goes; by default the folder audits of the Bulkhead home.
        overrides: Values that replace the file's, each as path=value, e.g. split.seed=1.
    """
    require_page(html)
    declaration = load_declaration(config_path, overrides)
    source = fingerprint_source(declaration)
    validated = validate_table(source, declaration)
    split = split_rows(validated, declaration)
    report = audit_sides(split, validated, declaration, source)
    report_audit(report, html or None)
    if stop:
        require_passed(report.checks)
    return report
