"""Outcome of a run for its model: promoted, waiting, registered, kept (the champion stays, as the
new version is equal), undecided (it stays, as too few fresh rows are there to compare), unchanged,
refused or unregistered.
"""

from __future__ import annotations

from typing import TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.records import GateReport, Registered
from schemas.registry_records import Outcome
from tasks.context import RunContext
from tasks.live import announce_outcome
from training.run.record import REGISTERED

Result = TypeVar("Result")
OUTCOME_TAG, REASON_TAG = "bulkhead.outcome", "bulkhead.outcome_reason"
NAMES: dict[Outcome, str] = {  # name of Prefect's state
    "promoted": "Promoted",
    "waiting": "Waiting for approval",
    "registered": "Registered",
    "kept": "Champion kept",
    "undecided": "Undecided",
    "unchanged": "Unchanged",
    "refused": "Refused",
    "not registered": "Not registered",
}


def outcome_of(declaration: Declaration, gate: GateReport, registered: Registered) -> Outcome:
    """Return the outcome of the model; refused only if it was to be registered."""
    from training.registry.gate import UNCHANGED
    from training.registry.ladder import WAITS
    from training.registry.registry import CHAMPION

    if registered.registered:
        if not gate.replaces and declaration.register_.promotion != "never":
            return "undecided" if gate.verdict.startswith(WAITS) else "kept"
        return (
            "registered"
            if registered.alias is None
            else "promoted"
            if registered.alias == CHAMPION
            else "waiting"
        )
    if gate.verdict.startswith(UNCHANGED):
        return "unchanged"
    return "not registered" if gate.passed or not declaration.register_.enabled else "refused"


@task(
    name="report outcome",
    description=(
        "Tag of the MLflow run, event for Prefect: promoted, waiting, kept, undecided, unchanged,"
        " refused."
    ),
    tags=["track"],
    cache_policy=NO_CACHE,
)
def report_outcome(registered: Registered, gate: GateReport, run: RunContext) -> Outcome:
    """Report the outcome to MLflow and as an event; a promotion has sent its event already."""
    found = outcome_of(run.declaration, gate, registered)
    write_atomic(run.run_dir / REGISTERED, registered.model_dump_json(indent=1))
    run.tracker.set_tags({OUTCOME_TAG: found, REASON_TAG: gate.verdict})
    if found != "promoted":
        announce_outcome(
            found,
            run.declaration.name,
            {"run_id": run.run_id, "version": registered.version, "verdict": gate.verdict},
        )
    return found


def ended(outcome: Outcome, message: str, result: Result) -> Result:
    """Return the flow's final state, named after its outcome; the flow's caller gets the result."""
    return cast(Result, Completed(name=NAMES[outcome], message=message, data=result))
