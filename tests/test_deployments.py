"""Every deployment's entrypoint imports, and its parameters are the flow's."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import yaml
from prefect import Flow

ROOT = Path(__file__).resolve().parent.parent
DEPLOYMENTS = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())["deployments"]


@pytest.mark.req("P3")
@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["entrypoint"])
def test_the_entrypoint_is_a_flow_that_takes_the_parameters(deployment: dict[str, object]) -> None:
    path, _, name = str(deployment["entrypoint"]).partition(":")
    assert (ROOT / path).is_file()
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(flow, Flow)
    parameters = deployment.get("parameters", {})
    assert isinstance(parameters, dict)
    assert set(parameters) <= set(inspect.signature(flow.fn).parameters)
    assert flow.description


@pytest.mark.req("P2")
def test_every_task_has_a_name_a_description_and_tags() -> None:
    from prefect import Task

    found = []
    for file in sorted((ROOT / "tasks").glob("*.py")):
        module = importlib.import_module(f"tasks.{file.stem}") if file.stem != "__init__" else None
        for value in vars(module).values() if module else ():
            task = getattr(value, "task", value)
            if isinstance(task, Task):
                found.append(task)
                assert task.description and task.tags and task.name == task.name.lower().replace("_", " "), task.name
    assert len(found) >= 12
