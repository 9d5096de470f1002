"""Weights that a run starts from (`model.init`): find them once, and look for rows they saw."""

from __future__ import annotations

from typing import Any

from schemas.config import SPLITS, Declaration
from schemas.errors import counted
from schemas.init_config import InitConfig
from schemas.init_records import InitialWeights, SeenSplit
from schemas.records import CheckReport, CheckResult, Prepared, SplitTables, ValidatedTable
from tasks.say import say
from tasks.store import stored, stored_task
from training.data.split.seen_rows import REASON, apply_seen


def find_weights(declaration: Declaration, recorded: Prepared | None) -> InitialWeights | None:
    """Return the weights that the network starts from; None if it starts at random.

    A run that goes on keeps those of its start: an alias may have moved.
    """
    init = _declared(declaration)
    if init is None or (recorded is not None and recorded.init is not None):
        return recorded.init if recorded is not None else None
    from training.tracking.mlflow import default_tracking_uri  # a second of imports

    found: InitialWeights = fetch_weights(init, default_tracking_uri(declaration))
    return found.model_copy(update={"given": init.from_})


def _declared(declaration: Declaration) -> InitConfig | None:
    found: InitConfig | None = getattr(declaration.model, "init", None)
    return found


@stored_task(
    name="find weights",
    description="model.init: resolve the version, run or file once, and verify its digest.",
    tags=["train"],
)
def fetch_weights(init: InitConfig, uri: str) -> Any:
    """Return the record of the weights; their file is on this machine."""
    from training.registry.init_weights import fetch, resolve

    source = resolve(init, uri)
    say("weights", f"{source.resolved}", "info")
    return stored(
        "weights",
        {"source": list(source)},
        InitialWeights,
        lambda folder: fetch(init.from_, source, uri, folder),
    )


@stored_task(
    name="look for seen rows",
    description="model.init: no row of val or test may be one that the weights were trained on.",
    tags=["check", "split"],
)
def look_for_seen_rows(
    split: SplitTables,
    validated: ValidatedTable,
    declaration: Declaration,
    weights: InitialWeights,
    init: InitConfig,
) -> Any:
    """Return the splits without rows that the weights saw; refuse such rows unless excluded."""
    inputs: dict[str, Any] = {side: split.side(side).file.sha256 for side in SPLITS}
    inputs |= {"spec": validated.spec, "split": declaration.split, "name": declaration.name}
    inputs |= {"excluded": split.excluded, "plan": split.plan, "asked": init.seen_rows}
    inputs |= {"weights": weights.model_copy(update={"given": ""})}

    def make(folder: Any) -> SeenSplit:
        return apply_seen(split, validated.spec, declaration, weights, init.seen_rows, folder)

    return stored("seen", inputs, SeenSplit, make)


def without_seen_rows(
    split: SplitTables,
    validated: ValidatedTable,
    declaration: Declaration,
    weights: InitialWeights | None,
) -> tuple[SplitTables, InitialWeights | None, CheckReport]:
    """Return the splits, the weights with what was found, and a check for the report."""
    init = _declared(declaration)
    if weights is None or init is None:
        return split, weights, CheckReport(results=())
    found: SeenSplit = look_for_seen_rows(split, validated, declaration, weights, init)
    weights = weights.model_copy(update={"seen": found.report})
    left_out = found.split.excluded.get(REASON, 0)
    if left_out:
        rows = counted(left_out, "row")
        told = f"left out: {rows} of val and test, on which the weights were trained"
        say("seen rows", told, "warn")
    return found.split, weights, CheckReport(results=(_check(weights, left_out),))


def _check(weights: InitialWeights, left_out: int) -> CheckResult:
    report = weights.seen
    if report is None or report.asked == "unchecked":
        told = f"nobody looked whether {weights.resolved} was trained on rows of val or test"
        why = "model.init.seen_rows: unchecked"
        return CheckResult(name="init_rows", verdict="allowed", summary=told, reason=why)
    if not weights.origins:
        told = "nothing is known of the rows that the weights of the file were trained on"
        return CheckResult(name="init_rows", verdict="unknown", summary=told)
    rows = counted(left_out, "row")
    told = (
        f"left out: {rows} of val and test that {weights.resolved} was trained on"
        if left_out
        else f"no row of val or test is one that {weights.resolved} was trained on"
    )
    by = ", ".join(dict.fromkeys(report.by))
    return CheckResult(
        name="init_rows",
        verdict="pass",
        summary=f"{told} (by {by})",
        figures={f"seen_{side}": number for side, number in report.found.items()},
    )
