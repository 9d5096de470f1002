"""Set up Prefect's server before the first deployment: work pool, concurrency limits, automation.

The automation finds dead runs. Everything here may be repeated; it ends in the same state.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
from prefect.client.schemas.objects import StateType, WorkerStatus
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker

POOL = "bulkhead"
# name of a global concurrency limit to its slots: an alias is moved by one at a time
LIMITS = {"bulkhead-promote": 1}
ZOMBIES = "bulkhead: mark silent flow runs as crashed"
HEARTBEAT_SECONDS = 30  # Prefect's minimum
# without a heartbeat: three of a worker with Prefect's default of 180 s, and time for a server to
# come back
SILENT_SECONDS = 600


def prepare_server() -> None:
    """Create or update the pool, the limits and the automation on the server of PREFECT_API_URL."""
    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(
                WorkPoolCreate(
                    name=POOL,
                    type="process",
                    description="Flow runs as processes of the worker's machine.",
                )
            )
        if client.read_work_pool(POOL).type == "process":
            client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=job_template()))
        for name, limit in LIMITS.items():
            client.upsert_global_concurrency_limit_by_name(name, limit)
    _find_zombies()


def job_template() -> dict[str, Any]:
    """Return Prefect's job template without its command and working folder.

    A job that could set its command could run any program as the worker's user.
    """
    template = copy.deepcopy(ProcessWorker.get_default_base_job_template())
    for name in ("command", "working_dir"):
        template["job_configuration"][name] = None
        del template["variables"]["properties"][name]
    return template


def worker_is_online(name: str) -> bool:
    """Return True if a worker of the pool has reported to the server that it is online."""
    with get_client(sync_client=True) as client:
        online = WorkerFilter(status=WorkerFilterStatus(any_=[WorkerStatus.ONLINE]))
        return any(
            found.name == name
            for found in client.read_workers_for_work_pool(POOL, worker_filter=online)
        )


def _find_zombies() -> None:
    """Return an automation that marks flow runs as crashed: their heartbeats stopped before their
    end.

    Source: https://docs.prefect.io/v3/advanced/detect-zombie-flows
    """
    ends = {
        f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")
    }
    trigger = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.heartbeat", *ends},
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=SILENT_SECONDS),
    )
    message = (
        f"no heartbeat for {SILENT_SECONDS} s: its process or machine is gone; bulkhead resume"
        " lists what can go on"
    )
    action = ChangeFlowRunState(state=StateType.CRASHED, message=message)
    wanted = Automation(
        name=ZOMBIES, description="Made by bulkhead up.", trigger=trigger, actions=[action]
    )
    try:
        wanted.id = cast(Automation, Automation.read(name=ZOMBIES)).id
    except ValueError:  # it does not exist yet
        wanted.create()
    else:
        wanted.update()
