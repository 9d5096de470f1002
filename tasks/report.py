"""The report of a run: a file, an artifact in MLflow, and a summary in Prefect."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from schemas.digest import write_atomic
from schemas.load import given_paths
from schemas.new_rows import NewRows
from schemas.records import (
    EvaluationReport,
    GateReport,
    Interval,
    PreflightReport,
    Prepared,
    Registered,
    TrainReport,
)
from tasks.context import RunContext
from tasks.live import publish
from tasks.say import say

CHECKLIST = "checklist.json"


@task(
    name="write report",
    description="One HTML file with pictures; also in MLflow, with a summary in Prefect.",
    tags=["report"],
    cache_policy=NO_CACHE,
)
def report_run(
    run: RunContext,
    prepared: Prepared,
    preflight: PreflightReport,
    trained: TrainReport,
    evaluated: EvaluationReport,
    gate: GateReport,
    registered: Registered,
    new_rows: NewRows | None = None,
) -> Path:
    """Write `report.html` and `checklist.json` in the run directory; return the first path."""
    from training.report.checklist import build_checklist
    from training.report.headline import ReportInputs
    from training.report.page import write_report
    from training.run.result_files import first_network

    folder, declaration, data, network = first_network(
        run.run_dir, run.declaration, prepared, trained
    )
    checklist = build_checklist(folder, declaration, data, preflight, network, evaluated)
    write_atomic(run.run_dir / CHECKLIST, checklist.model_dump_json(indent=1))
    run.tracker.log_artifact(run.run_dir / CHECKLIST)
    inputs = ReportInputs(
        run_id=run.run_id,
        declaration=run.declaration,
        given=given_paths(run.declaration),
        prepared=prepared,
        preflight=preflight,
        train=trained,
        metrics_path=run.run_dir / "metrics.jsonl",
        test=evaluated,
        gate=gate,
        registered=registered,
        provenance=run.provenance,
        links=run.links,
        checklist=checklist,
        new_rows=new_rows,
    )
    path = run.run_dir / "report.html"
    write_report(inputs, path)
    run.tracker.log_artifact(path)
    _publish(run, summary_markdown(run, evaluated, registered, path), path)
    say("report", str(path))
    return path


def _publish(run: RunContext, summary: str, path: Path) -> None:
    """Show the summary in MLflow and Prefect, and where the report is."""
    # MLflow shows the description at the top of the run
    run.tracker.set_tags({"mlflow.note.content": summary})
    publish(
        create_markdown_artifact,
        key="summary",
        markdown=summary,
        description=f"{run.declaration.name}: outcome",
    )
    publish(
        create_link_artifact,
        key="report",
        link=f"{run.mlflow_url}/artifacts/report.html",
        link_text="Report",
        description=f"Also at {path}",
    )


def summary_markdown(
    run: RunContext, evaluated: EvaluationReport, registered: Registered, path: Path
) -> str:
    """Return the outcome as Prefect shows it."""
    rows = "\n".join(
        f"| {name} | {_cell(value)} | {_cell(value, bounds=True)} |"
        for name, value in evaluated.metrics.items()
    )
    note = f". {registered.note}" if registered.note else ""
    model = (
        f"registered as `{registered.uri}` (version {registered.version}){note}"
        if registered.registered
        else f"not registered: {registered.verdict}"
    )
    links = "\n".join(
        f"* {name}: {address}" for name, address in (run.links | {"Report": str(path)}).items()
    )
    return (
        f"# {run.declaration.name}\n\n{evaluated.verdict}\n\nModel {model}\n\n| test metric | value"
        f" | interval |\n|---|---|---|\n{rows}\n\n{links}\n"
    )


def _cell(interval: Interval, bounds: bool = False) -> str:
    if not bounds:
        return "–" if interval.value is None else f"{interval.value:.4f}"
    return (
        "–"
        if interval.low is None or interval.high is None
        else f"{interval.low:.4f} to {interval.high:.4f}"
    )
