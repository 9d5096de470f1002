"""Names of flow runs in Prefect; separate from tasks.context, which loads MLflow."""

from __future__ import annotations

from pathlib import Path

from prefect.runtime import flow_run


def run_name() -> str:
    """Return a flow run's name in Prefect: the flow and its model, file or folder."""
    given = flow_run.parameters
    of = (
        given.get("model_uri", "").removeprefix("models:/")
        or Path(
            str(given.get("config_path") or given.get("run_dir") or given.get("run") or "")
        ).stem
    )
    return f"{flow_run.flow_name} {of}".strip()
