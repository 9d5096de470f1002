"""All rules, in order of their ids."""

from __future__ import annotations

from training.review import (
    rules_broadcast,
    rules_cadence,
    rules_devices,
    rules_distributed,
    rules_evaluation,
    rules_files,
    rules_forward,
    rules_frozen,
    rules_graph,
    rules_groups,
    rules_held,
    rules_lambda,
    rules_layers,
    rules_loader,
    rules_loss,
    rules_module,
    rules_parameters,
    rules_precision,
    rules_randomness,
    rules_rows,
    rules_schedule,
    rules_selection,
    rules_split,
    rules_step,
    rules_streams,
    rules_sync,
    rules_tensor,
    rules_window,
)
from training.review.findings import RULES, Rule
from training.review.rules_run import RUN_RULES

FAMILIES = (
    rules_step,
    rules_schedule,
    rules_lambda,
    rules_cadence,
    rules_window,
    rules_precision,
    rules_evaluation,
    rules_selection,
    rules_loss,
    rules_broadcast,
    rules_graph,
    rules_module,
    rules_forward,
    rules_held,
    rules_tensor,
    rules_parameters,
    rules_groups,
    rules_frozen,
    rules_layers,
    rules_split,
    rules_rows,
    rules_loader,
    rules_streams,
    rules_randomness,
    rules_distributed,
    rules_sync,
    rules_devices,
    rules_files,
)
LOADED: dict[str, Rule] = dict(sorted(RULES.items()))  # that read code
KNOWN: dict[str, Rule] = dict(sorted((LOADED | RUN_RULES).items()))
