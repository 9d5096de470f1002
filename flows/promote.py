"""Promote: check a registered version again and put it to use. Run it with `bulkhead promote
models:/NAME/3`.
"""

from __future__ import annotations

from prefect import flow

from flows.prepare import todays_rows
from schemas.parameters import Alias, ModelName, ModelUri
from schemas.registry_records import Promotion
from tasks.names import run_name
from tasks.outcome import ended
from tasks.promote import (
    judge_version,
    outcome_of_promotion,
    promote_version,
    prove_version,
    roll_back_to_previous,
)


@flow(
    name="promote",
    flow_run_name=run_name,
    description=(
        "Prove a registered version again, compare it with the champion on rows that neither has"
        " learned from, and move the alias."
    ),
    persist_result=False,
)
def promote(model_uri: ModelUri, alias: Alias = "champion") -> Promotion:
    """Put a registered version to use.

    Args:
        model_uri: The version, e.g. models:/clinic-visits@challenger or models:/clinic-visits/3.
        alias: What it shall be called; champion is the version in use.
    """
    candidate = prove_version(model_uri, alias)
    today = None if candidate.is_alone else todays_rows(candidate.recorded.declaration)
    made = promote_version(candidate, judge_version(candidate, today))
    return ended(outcome_of_promotion(candidate), made.verdict, made)


@flow(
    name="rollback",
    flow_run_name=run_name,
    description="The version before the champion becomes champion again; the two change places.",
    persist_result=False,
)
def rollback(name: ModelName) -> Promotion:
    """Go back to the version before.

    Args:
        name: Of the registered model, e.g. clinic-visits.
    """
    made = roll_back_to_previous(name)
    return ended("promoted", f"{made.uri}: {made.verdict}", made)
