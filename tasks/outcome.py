"""How a run ended for its model: promoted, waiting, registered, unchanged, refused or not
registered; said wherever people and programs look.
"""

from __future__ import annotations

from typing import TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from schemas.config import Declaration
from schemas.digest import write_atomic
from schemas.records import GateReport, Outcome, Registered
from tasks.context import RunContext
from tasks.live import announce_outcome
from training.registry.gate import UNCHANGED
from training.registry.registry import CHAMPION
from training.run.record import REGISTERED

Result = TypeVar("Result")
OUTCOME_TAG, REASON_TAG = "bulkhead.outcome", "bulkhead.outcome_reason"
NAMES: dict[Outcome, str] = {  # of Prefect's state
    "promoted": "Promoted",
    "waiting": "Waiting for approval",
    "registered": "Registered",
    "unchanged": "Unchanged",
    "refused": "Refused",
    "not registered": "Not registered",
}


def outcome_of(declaration: Declaration, gate: GateReport, registered: Registered) -> Outcome:
    """What became of the model: refused only where one was to be registered."""
    if registered.registered:
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
        "Tag of the MLflow run, event for Prefect: promoted, waiting, unchanged or refused."
    ),
    tags=["track"],
    cache_policy=NO_CACHE,
)
def report_outcome(registered: Registered, gate: GateReport, run: RunContext) -> Outcome:
    """The outcome, in MLflow and as an event; that of a promotion was sent when the alias moved."""
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
    """The state in which a flow ends, named after its outcome; whoever calls the flow gets the
    result.
    """
    return cast(Result, Completed(name=NAMES[outcome], message=message, data=result))
