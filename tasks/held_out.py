"""Leave out rows that another run validates or tests on (`data.held_out_by`)."""

from __future__ import annotations

from typing import Any

from schemas.config import SPLITS, Declaration
from schemas.errors import counted
from schemas.init_records import HeldOut, SeenSplit
from schemas.records import CheckReport, CheckResult, Prepared, SplitTables, ValidatedTable
from tasks.say import say
from tasks.store import stored, stored_task
from training.data.split.held_out_rows import leave_out


def without_held_out_rows(
    split: SplitTables,
    validated: ValidatedTable,
    declaration: Declaration,
    recorded: Prepared | None,
) -> tuple[SplitTables, CheckReport]:
    """Return the splits without such rows, and a check for the report.

    A run that goes on keeps the versions of its start: an alias may have moved.
    """
    if not declaration.data.held_out_by:
        return split, CheckReport(results=())
    from training.registry.held_out_source import held_out_of  # a second of imports
    from training.tracking.mlflow import default_tracking_uri

    names = declaration.data.held_out_by
    if recorded is not None:
        names = tuple(recorded.split.plan.get("held_out_by", names))
    uri = default_tracking_uri(declaration)
    others = tuple(held_out_of(name, uri) for name in names)
    found: SeenSplit = leave_held_out_rows(split, validated, declaration, others)
    number = sum(found.report.found.values())
    named = ", ".join(other.resolved for other in others)
    told = f"{counted(number, 'row')} that {named} validates or tests on"
    say("held out", f"left out: {told}", "info")
    result = CheckResult(
        name="held_out_rows",
        verdict="pass",
        summary=f"left out: {told}",
        figures={f"held_out_{side}": n for side, n in found.report.found.items()},
    )
    return found.split, CheckReport(results=(result,))


@stored_task(
    name="leave held-out rows",
    description="data.held_out_by: no row is one that another run validates or tests on.",
    tags=["check", "split"],
)
def leave_held_out_rows(
    split: SplitTables,
    validated: ValidatedTable,
    declaration: Declaration,
    others: tuple[HeldOut, ...],
) -> Any:
    """Return the splits without the rows that other runs hold out, and their number."""
    inputs: dict[str, Any] = {side: split.side(side).file.sha256 for side in SPLITS}
    inputs |= {"spec": validated.spec, "excluded": split.excluded, "plan": split.plan}
    inputs |= {"others": [o.model_dump(mode="json") for o in others]}
    inputs |= {"split": declaration.split}
    return stored(
        "held-out",
        inputs,
        SeenSplit,
        lambda folder: leave_out(split, validated.spec, declaration, others, folder),
    )
