"""Split the validated table into three disjoint tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from prefect import State, task
from prefect.cache_policies import NO_CACHE

from schemas.config import SPLITS, Declaration
from schemas.records import CheckReport, SplitTables, ValidatedTable
from tasks.looks import ledger_path
from tasks.say import say
from tasks.store import stored, stored_task
from training.data.leakage import check_leakage, check_overlap, require_passed
from training.data.leakage.fold_checks import check_folds, check_intervals
from training.data.leakage.sizes import few_at_once
from training.data.split.folds import fold_declaration, fold_way, make_fold
from training.data.split.rolling import cuts_today, rolls
from training.data.split.split import FROZEN_SHARES, split, way_of


@stored_task(
    name="split rows",
    description=(
        "Decide the side of every row by hash, time or column, and write one file for each side."
    ),
    tags=["data", "split"],
)
def split_rows(validated: ValidatedTable, declaration: Declaration) -> Any:
    """Return three tables; only train can be fitted on."""
    inputs: dict[str, Any] = {
        "table": validated.digests,
        "spec": validated.spec,
        "split": declaration.split,
        "task": declaration.task,
        "checks": declaration.checks,
        "ledger": str(ledger_path(declaration)),
        "group_by": (
            [declaration.data.group_by.model_dump(mode="json"), declaration.data.derive]
            if declaration.data.group_by
            else None
        ),
        "group_columns": validated.group_columns.sha256 if validated.group_columns else None,
    }
    if rolls(declaration):  # a stored result of these rows may have cuts that have moved on
        way = way_of(declaration, validated.spec)
        inputs["cuts"] = cuts_today(validated, declaration, ledger_path(declaration), way)

    def make(folder: Path) -> SplitTables:
        made = split(validated, declaration, folder, ledger_path(declaration))
        kept = sum(made.side(s).rows for s in SPLITS)
        sides = ", ".join(
            f"{s} {made.side(s).rows:,} ({made.side(s).rows / kept:.0%})" for s in SPLITS
        )
        left_out = "".join(
            f"; {n:,} left out ({reason})" for reason, n in made.excluded.items() if n
        )
        say("split", f"{made.strategy}: {sides}{left_out}")
        for note in made.plan.get("notes", ()):
            say("", note, "warn")
        if made.plan.get("cuts_from") == FROZEN_SHARES:
            say("", f"cuts are {FROZEN_SHARES}; split.roll moves them on", "info")
        if few := few_at_once(made, declaration):
            say("", few, "warn")
        return made

    return stored("split", inputs, SplitTables, make)


@stored_task(
    name="split fold",
    description="Divide the rows of train and validation again: one file for each side of a fold.",
    tags=["data", "split"],
)
def split_fold(
    validated: ValidatedTable, pool: SplitTables, declaration: Declaration, number: int
) -> Any:
    """Return three tables of one fold, counted from 0; none contains the declared test rows."""
    inputs: dict[str, Any] = {s: pool.side(s).file.sha256 for s in SPLITS}
    inputs |= {
        "table": validated.digests,
        "spec": validated.spec,
        "split": declaration.split,
        "task": declaration.task,
        "number": number,
    }
    inputs |= {
        "cv": declaration.cv.model_dump(mode="json", exclude={"concurrency"}),
        "bridges": pool.bridges.sha256 if pool.bridges else None,
        "excluded": pool.excluded,
        "way": fold_way(declaration, validated.spec),
        "ledger": str(ledger_path(declaration)),
    }

    def make(folder: Path) -> SplitTables:
        made = make_fold(validated, pool, declaration, number, folder, ledger_path(declaration))
        sides = ", ".join(f"{s} {made.side(s).rows:,}" for s in SPLITS)
        left_out = "".join(f"; {n:,} {reason}" for reason, n in made.excluded.items() if n)
        say(
            "fold",
            f"{number + 1} of {declaration.cv.folds}, {declaration.fold_kind}: {sides}{left_out}",
        )
        return made

    return stored("fold", inputs, SplitTables, make)


@task(
    name="check fold",
    description="All hard assertions and leakage checks on the written files of one fold.",
    tags=["check"],
    cache_policy=NO_CACHE,
)
def check_fold(
    fold: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> CheckReport:
    """Run the checks of one fold; a failed one raises `LeakageError`."""
    promised = fold_declaration(declaration)
    reports = (
        check_overlap(fold, validated, promised),
        check_intervals(fold, validated.spec, declaration),
        check_leakage(fold, validated, promised, is_fold=True),
    )
    return _judge(
        "fold checks", CheckReport(results=tuple(r for report in reports for r in report.results))
    )


@task(
    name="check folds",
    description=(
        "Every row is tested in one fold at most, and where folds promise it in one at least."
    ),
    tags=["check"],
    cache_policy=NO_CACHE,
)
def check_all_folds(folds: Sequence[SplitTables], declaration: Declaration) -> CheckReport:
    """Run the check over all folds; a failed one raises `LeakageError`."""
    return _judge("all folds", check_folds(folds, declaration))


@task(
    name="assert disjoint",
    description=(
        "Read the three files again: no id, group or time window on two sides, every row on one."
    ),
    tags=["check"],
    cache_policy=NO_CACHE,
)
def assert_disjoint(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> CheckReport:
    """Run the overlap checks; a failed one raises `LeakageError`."""
    return _judge("disjoint", check_overlap(split, validated, declaration))


@stored_task(
    name="check leakage",
    description="Duplicates across sides, and what else gives the test score away.",
    tags=["check"],
)
def leakage_checks(split: SplitTables, validated: ValidatedTable, declaration: Declaration) -> Any:
    """Run the leakage checks; a failed one raises `LeakageError`. The report of the same rows and
    declaration is reused.
    """
    inputs: dict[str, Any] = {s: split.side(s).file.sha256 for s in SPLITS}
    inputs |= {"spec": validated.spec, "groups": split.plan.get("groups")}
    inputs |= {"places": validated.row_places.sha256 if validated.row_places else None}
    inputs |= {
        section: getattr(declaration, section) for section in ("data", "task", "split", "checks")
    }
    report = stored(
        "leakage",
        inputs,
        CheckReport,
        lambda _: _judge("leakage", check_leakage(split, validated, declaration)),
    )
    if isinstance(report, State):
        _warn(cast(CheckReport, report.data))
    return report


def _judge(step: str, report: CheckReport) -> CheckReport:
    verdicts = [r.verdict for r in report.results]
    counts = ", ".join(
        f"{verdicts.count(v)} {v}" for v in ("pass", "warn", "allowed", "fail") if v in verdicts
    )
    say(step, counts, "fail" if report.failed else "warn" if "warn" in verdicts else "done")
    _warn(report)
    require_passed(report)
    return report


def _warn(report: CheckReport) -> None:
    for result in report.results:
        if result.verdict in ("warn", "allowed"):
            say(
                "",
                f"{result.name}: {result.summary}"
                + (f" (allowed: {result.reason})" if result.reason else ""),
                "warn",
            )
