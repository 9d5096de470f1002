"""Corrupt held-out rows and fit again: nothing may change."""

from __future__ import annotations

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

    def test() -> CheckReport:
        # torch, which no step before needs
        from training.preflight.poisoned_fit import poison_check

        report = CheckReport(results=(poison_check(split, validated, declaration),))
        _say(report)
        require_passed(report)
        return report

    if declaration.model.kind == "custom" or declaration.data.engine == "spark":
        return test()
    report = stored("poison", _inputs(split, validated, declaration), CheckReport, lambda _: test())
    if isinstance(report, State):
        _say(cast(CheckReport, report.data))
    return report


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
