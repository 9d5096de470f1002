"""From the validated table to three sides that share nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import SPLITS, Declaration
from schemas.home import home
from schemas.records import CheckReport, SplitTables, ValidatedTable
from tasks.say import say
from tasks.store import stored, stored_task
from training.data.leakage import check_leakage, check_overlap, require_passed
from training.data.split import split


def ledger_path(declaration: Declaration) -> Path:
    """Where the frozen decisions of this model's splits are kept; the ledger itself tells ways of splitting apart."""
    return home() / "ledgers" / declaration.name


@stored_task(name="split rows", description="Decide the side of every row by hash, time or column, and write one file for each side.", tags=["data", "split"])
def split_rows(validated: ValidatedTable, declaration: Declaration) -> Any:
    """Three tables; train is the only one that can be fitted on."""
    inputs = {
        "table": validated.table.file.sha256,
        "spec": validated.spec,
        "split": declaration.split,
        "task": declaration.task,
        "checks": declaration.checks,
        "ledger": str(ledger_path(declaration)),
        "group_by": [declaration.data.group_by.model_dump(mode="json"), declaration.data.derive] if declaration.data.group_by else None,
        "group_columns": validated.group_columns.sha256 if validated.group_columns else None,
    }

    def make(folder: Path) -> SplitTables:
        made = split(validated, declaration, folder, ledger_path(declaration))
        kept = sum(made.side(s).rows for s in SPLITS)
        sides = ", ".join(f"{s} {made.side(s).rows:,} ({made.side(s).rows / kept:.0%})" for s in SPLITS)
        left_out = "".join(f"; {n:,} left out ({reason})" for reason, n in made.excluded.items() if n)
        say("split", f"{made.strategy}: {sides}{left_out}")
        return made

    return stored("split", inputs, SplitTables, make)


@task(
    name="assert disjoint",
    description="Read the three files again: no id, group or time window on two sides, every row on one.",
    tags=["check"],
    cache_policy=NO_CACHE,
)
def assert_disjoint(split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> CheckReport:
    """The overlap checks, all passed; a failed one raises `LeakageError`."""
    return _judge("disjoint", check_overlap(split, validated, declaration))


@task(name="check leakage", description="Exact duplicates across sides and what else gives the test score away.", tags=["check"], cache_policy=NO_CACHE)
def leakage_checks(split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> CheckReport:
    """The leakage checks, none failed; a failed one raises `LeakageError`."""
    return _judge("leakage", check_leakage(split, validated, declaration))


def _judge(step: str, report: CheckReport) -> CheckReport:
    verdicts = [r.verdict for r in report.results]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("pass", "warn", "allowed", "fail") if v in verdicts)
    say(step, counts, "fail" if report.failed else "warn" if "warn" in verdicts else "done")
    for result in report.results:
        if result.verdict in ("warn", "allowed"):
            say("", f"{result.name}: {result.summary}" + (f" (allowed: {result.reason})" if result.reason else ""), "warn")
    require_passed(report)
    return report
