"""Mark runs as killed in their record, MLflow and Prefect if they say `running` without a process.

A process that ends in an orderly way reports to all three itself (tasks/context.py). Runs found
here were killed by `kill -9`, by the end of their machine, or by Prefect, 30 s after a
cancellation.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from httpx import TransportError
from mlflow import MlflowClient
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Crashed

from schemas.errors import BulkheadError
from schemas.home import home
from tasks.context import resume_hint, tracking_address
from tasks.say import say
from training.run.record import StartedRun, all_runs, is_held, settle
from training.tracking.mlflow import Tracker, reached

AT_WORK = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
CAUSE = "the process of the run was killed"


def reconcile(uri: str, pool: str | None = None) -> None:
    """End every run of this home whose process is gone.

    Args:
        uri: tracking server whose runs are also searched, besides runs with a record.
        pool: work pool whose flow runs are all on this machine; those without a process are ended
            too. None: there may be other machines.
    """
    end_orphans()
    _end_unrecorded(uri)
    with get_client(sync_client=True) as client:
        for flow_run_id in _lost_flow_runs(client, pool) if pool else []:
            _end_flow_run(client, flow_run_id)


def end_orphans() -> bool:
    """End runs of this home that say they are running and whose lock is free.

    It is cheap enough to call every few seconds.

    Returns:
        True if all could be ended; False if a server is missing.
    """
    orphans = {
        run_dir: record
        for run_dir, record in all_runs().items()
        if record.status == "running" and not is_held(run_dir)
    }
    return all(_end(run_dir, record) for run_dir, record in orphans.items())


def _end(run_dir: Path, record: StartedRun) -> bool:
    """Report a run's end to MLflow, Prefect and last its record.

    If a server is missing, the run is found again next time.
    """
    try:
        tracker = Tracker(tracking_address(run_dir, record), record.mlflow_run_id)
        with reached(tracker.uri, f"ending run {record.run_id}"):
            tracker.client.get_run(record.mlflow_run_id)
        tracker.set_tags(
            {
                "bulkhead.error": CAUSE,
                "mlflow.note.content": f"{CAUSE}\n\n{resume_hint(record, run_dir)}",
            }
        )
        metrics = run_dir / "metrics.jsonl"
        if metrics.exists():
            tracker.forward_metrics(metrics)
        tracker.finish("KILLED")
        with get_client(sync_client=True) as client:
            for flow_run_id in record.flow_run_ids[-1:]:
                _end_flow_run(client, UUID(flow_run_id))
    except (BulkheadError, PrefectHTTPStatusError, TransportError) as error:
        say("reconcile", f"{record.run_id}: {error}", "warn")
        return False
    settle(run_dir, CAUSE)
    say("reconcile", f"{record.run_id} was killed; {resume_hint(record, run_dir)}", "warn")
    return True


def _end_unrecorded(uri: str) -> None:
    """End runs that MLflow shows as running and whose folder has no process.

    They are folds, or were killed before their record was written.
    """
    with reached(uri, "looking for runs whose process is gone"):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        experiments = [found.experiment_id for found in client.search_experiments()]
        for run in (
            client.search_runs(experiments, "attributes.status = 'RUNNING'") if experiments else []
        ):
            folder = run.data.tags.get("bulkhead.run_dir")
            if (
                folder
                and Path(folder).is_relative_to(home())
                and not any(is_held(path) for path in (Path(folder), *Path(folder).parents))
            ):
                client.set_terminated(run.info.run_id, "KILLED")


def _lost_flow_runs(client: SyncPrefectClient, pool: str) -> list[UUID]:
    """Return flow runs of a pool that Prefect shows running, without a process on this machine."""
    states = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=AT_WORK)))
    shown = client.read_flow_runs(
        flow_run_filter=states,
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )
    living = flow_runs_with_a_process()
    return [found.id for found in shown if str(found.id) not in living]


def flow_runs_with_a_process() -> set[str]:
    """Return ids of flow runs with a process on this machine, from Prefect's own variable."""
    word, found = b"PREFECT__FLOW_RUN_ID=", set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found |= {
                part[len(word) :].decode()
                for part in path.read_bytes().split(b"\0")
                if part.startswith(word)
            }
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return found


def _end_flow_run(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    try:
        state = client.read_flow_run(flow_run_id).state
    except ObjectNotFound:  # it belongs to another server
        return
    if state is not None and state.type in AT_WORK:
        ended: State = Cancelled(message=CAUSE) if state.is_cancelling() else Crashed(message=CAUSE)
        client.set_flow_run_state(flow_run_id, ended, force=True)
