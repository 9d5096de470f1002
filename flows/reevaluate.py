"""Evaluate the champion on new rows. Run it with `bulkhead reevaluate FILE`."""

from __future__ import annotations

from prefect import flow

from flows.prepare import todays_rows
from schemas.load import load_declaration
from schemas.parameters import ConfigPath, Overrides, Stop
from schemas.registry_records import Reevaluation
from tasks.context import tracked
from tasks.names import run_name
from tasks.reevaluate import (
    end_reevaluation,
    fetch_champion,
    reevaluate_champion,
    report_reevaluation,
    require_good,
)


@flow(
    name="reevaluate",
    flow_run_name=run_name,
    description=(
        "Score the champion on rows of the source that it has not met, and compare metrics,"
        " features, predictions and calibration with those of its registration."
    ),
    persist_result=False,
)
def reevaluate(
    config_path: ConfigPath, overrides: Overrides = (), stop: Stop = True
) -> Reevaluation:
    """Hold the champion against new rows.

    Args:
        config_path: Path of the YAML declaration; its name is the model's.
        overrides: Values that replace the file's, each as path=value, e.g. register.tolerance=0.02.
        stop: End the flow run as failed where the champion does not do any more what it did.
    """
    declaration = load_declaration(config_path, overrides)
    with tracked(declaration, "reevaluate") as run:
        champion = fetch_champion(run)
        validated, split = todays_rows(declaration)
        found = report_reevaluation(
            reevaluate_champion(champion, validated, split, run), validated, run
        )
    if stop:
        require_good(found)
    return end_reevaluation(found)
