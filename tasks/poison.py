"""Corrupt held-out rows and fit again: nothing may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from prefect import State

from schemas.config import SPLITS, Declaration
from schemas.records import CheckReport, SplitTables, ValidatedTable
from tasks.say import say
from tasks.store import library_versions, package_fingerprint, stored, stored_task
from training.data.leakage import require_passed

# next to those of every stored step
LIBRARIES = ("torch", "scikit-learn", "scipy", "pandas")


@stored_task(
    name="poison test",
    description=(
        "Corrupt every held-out row of a sample and fit again: statistics, arrays and weights must"
        " stay byte-identical."
    ),
    tags=["check"],
)
def poison_test(split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> Any:
    """Run the poison test; a failed one raises `LeakageError`. The report of the same rows,
    declaration, code and libraries is reused; a network of the user's own code is tested each time,
    because no digest covers all that it imports.
    """
    found = poison_report(split, validated, declaration)
    report = cast(CheckReport, found.data) if isinstance(found, State) else found
    _say(report)
    require_passed(report)
    return found


def poison_report(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> CheckReport | State[Any]:
    """Return the report of the poison test, or a state with the stored one; a failed report is
    returned too, and not stored.
    """

    def test(folder: Path | None = None) -> CheckReport:
        # torch, which no step before needs
        from training.preflight.poisoned_fit import poison_check

        report = CheckReport(results=(poison_check(split, validated, declaration),))
        if report.failed:
            raise _Failed(report)
        return report

    try:
        if declaration.model.kind == "custom" or declaration.data.engine == "spark":
            return test()
        return stored("poison", _inputs(split, validated, declaration), CheckReport, test)
    except _Failed as failed:
        return failed.report


class _Failed(Exception):
    """A report that must not be stored."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__()
        self.report = report


def _inputs(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> dict[str, Any]:
    """Return everything that the test reads, by digest, and the code that fits."""
    return {
        **{side: split.side(side).digests for side in SPLITS},
        "table": validated,
        "declaration": declaration,
        "training": package_fingerprint("training"),
        "libraries": library_versions(LIBRARIES),
    }


def _say(report: CheckReport) -> None:
    result = report.results[0]
    say("poison", result.summary, {"fail": "fail", "pass": "done"}.get(result.verdict, "warn"))
