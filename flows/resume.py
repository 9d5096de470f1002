"""Continue an interrupted, killed or failed run. Run it with `bulkhead resume RUN`."""

from __future__ import annotations

from prefect import flow

from flows.pipeline import complete
from flows.prepare import prepare_data
from flows.search import run_best, try_values
from flows.summary import RunSummary, SearchSummary
from flows.train import train_on
from schemas.records import TrainReport
from tasks.context import reopened
from tasks.names import run_name
from tasks.outcome import ended
from tasks.prepared import read_prepared
from tasks.ranks import require_same_ranks
from tasks.resume import StartedRunName, unfinished


@flow(
    name="resume",
    flow_run_name=run_name,
    description=(
        "Go on with a run that was interrupted, killed or failed: same directory, same MLflow run,"
        " from the newest verified checkpoint."
    ),
    persist_result=False,
)
def resume(run: StartedRunName) -> RunSummary | SearchSummary | TrainReport | None:
    """Bring a run to its end.

    Args:
        run: Its directory, its id, or the id of its MLflow run. Nothing is done where it is
            finished.
    """
    started = unfinished(run)
    if started is None:
        return None
    require_same_ranks(started.run_dir)
    with reopened(started.run_dir) as context:
        prepared = prepare_data(context.declaration, read_prepared(context.run_dir))
        if started.kind == "train":
            return train_on(prepared, context)[2]
        if started.kind == "search":
            found = try_values(prepared, context)
        else:
            summary = complete(prepared, context)
    if started.kind == "search":
        return run_best(found)
    return ended(summary.outcome, summary.message, summary)
