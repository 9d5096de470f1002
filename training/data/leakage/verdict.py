"""Turn a finding into a verdict, and a failed verdict into an error."""

from __future__ import annotations

from schemas.config import Declaration
from schemas.errors import LeakageError
from schemas.records import CheckReport, CheckResult


def judged(result: CheckResult, declaration: Declaration) -> CheckResult:
    """Return the result; a failure becomes `allowed` if the declaration allows it with a reason."""
    if result.verdict != "fail":
        return result
    for allowance in declaration.checks.allow:
        if allowance.check == result.name and allowance.column in (None, *result.columns):
            return result.model_copy(update={"verdict": "allowed", "reason": allowance.reason})
    return result


def require_passed(report: CheckReport) -> None:
    """Raise if a check failed, else return.

    Raises:
        LeakageError: with each failed check's finding and remedy.
    """
    if report.failed:
        raise LeakageError(
            "\n".join(f"{r.summary}; {r.remedy}" if r.remedy else r.summary for r in report.failed)
        )
