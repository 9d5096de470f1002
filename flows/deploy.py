"""`bulkhead deploy`: check the deployments, prepare the server, register them."""

from __future__ import annotations

from pathlib import Path

from tasks.bootstrap import prepare_server
from tasks.deploy import FILE, ROOT, Deployed, plan_deployments, register_plan, require_server


def deploy(
    names: tuple[str, ...] = (), dry_run: bool = False, file: Path = ROOT / FILE
) -> list[Deployed]:
    """Register deployments after checking all of them.

    Args:
        names: deployments to register, each `FLOW/NAME`; empty: all.
        dry_run: check but register nothing; needs no server.
        file: deployments in Prefect's format.

    Raises:
        ConfigError: the file is wrong.
        LaunchError: the server does not answer, lacks a work pool, or refused.
    """
    plan = plan_deployments(names, file)
    if dry_run:
        return plan.deployments
    require_server()
    prepare_server()
    return register_plan(plan)
