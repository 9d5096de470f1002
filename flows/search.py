"""Search: try other values, then run the best. Run it with `bulkhead search FILE`."""

from __future__ import annotations

from prefect import flow

from flows.pipeline import pipeline
from flows.prepare import prepare_data
from flows.summary import SearchSummary
from flows.train import check_before
from schemas.load import load_declaration
from schemas.parameters import ConfigPath, Epochs, Hours, Model, Overrides, Trials, chosen
from schemas.records import Prepared
from schemas.search_records import SearchOutcome
from tasks.context import RunContext, await_servers, tracked
from tasks.names import run_name
from tasks.outcome import ended
from tasks.ranks import with_ranks
from tasks.search import search_values, searching


@flow(
    name="search",
    flow_run_name=run_name,
    description=(
        "Train trials of other values, scored on validation rows; then run the best end to end."
    ),
    persist_result=False,
)
def search(
    config_path: ConfigPath,
    trials: Trials = 0,
    hours: Hours = 0.0,
    epochs: Epochs = 0,
    model: Model = "as declared",
    overrides: Overrides = (),
) -> SearchSummary:
    """Search the values of a declaration, then run the best.

    Args:
        config_path: Path of the YAML declaration.
        trials: How many; 0: as declared.
        hours: Begin no trial after so many; 0: as declared.
        epochs: At most so many; 0: as declared.
        model: Kind of model.
        overrides: Values that replace the file's, each as path=value, e.g. search.seed=1.
    """
    given = (*chosen(epochs, model, trials=trials, hours=hours), *overrides)
    declaration = searching(with_ranks(load_declaration(config_path, given)))
    with tracked(declaration, "search") as run:
        found = try_values(prepare_data(declaration), run)
    return run_best(found)


def try_values(prepared: Prepared, run: RunContext) -> SearchOutcome:
    """Check the declared model on one batch, then run the trials that are left."""
    check_before(prepared, run)
    found = search_values(prepared, run)
    await_servers(run)
    return found


def run_best(found: SearchOutcome) -> SearchSummary:
    """Run the best declaration end to end, as a run of its own: trained again from its seed."""
    summary = pipeline(config_path=found.best)
    result = SearchSummary(search=found, best=summary)
    return ended(summary.outcome, summary.message, result)
