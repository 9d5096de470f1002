"""Reproduce: make a registered version again and compare it bit by bit. Run it with `bulkhead
reproduce models:/NAME/3`.
"""

from __future__ import annotations

from prefect import flow

from schemas.parameters import ApplyDiff, ModelUri, Stop
from schemas.registry_records import Reproduction
from tasks.names import run_name
from tasks.reproduce import compare_origin, read_origin, retrain, tell


@flow(
    name="reproduce",
    flow_run_name=run_name,
    description=(
        "Check out the recorded commit, train again on the recorded data, and name the first step"
        " whose bytes differ."
    ),
    persist_result=False,
)
def reproduce(
    model_uri: ModelUri, apply_diff: ApplyDiff = False, stop: Stop = True
) -> Reproduction:
    """Make a registered version again.

    Args:
        model_uri: The version, e.g. models:/clinic-visits/3.
        apply_diff: Also run the changes that were not committed then; read dirty.diff of its MLflow
            run first.
        stop: End the flow run as failed where something differs.
    """
    origin = read_origin(model_uri)
    found = compare_origin(origin)
    if found.first_difference is None:
        found = retrain(origin, found, apply_diff)
    return tell(found, stop)
