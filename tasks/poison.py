"""Corrupt held-out rows and fit again: nothing may change."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration
from schemas.records import CheckReport, SplitTables, ValidatedTable
from tasks.say import say
from training.data.leakage import require_passed


@task(
    name="poison test",
    description=(
        "Corrupt every held-out row of a sample and fit again: statistics, arrays and weights must"
        " stay byte-identical."
    ),
    tags=["check"],
    cache_policy=NO_CACHE,
)
def poison_test(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> CheckReport:
    """Run the poison test; a failed one raises `LeakageError`."""
    from training.preflight.poisoned_fit import poison_check  # torch, which no step before needs

    report = CheckReport(results=(poison_check(split, validated, declaration),))
    result = report.results[0]
    say("poison", result.summary, {"fail": "fail", "pass": "done"}.get(result.verdict, "warn"))
    require_passed(report)
    return report
