"""Combine the folds of a cross-validation: metrics of each, mean and spread, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from schemas.comparison_records import yardstick_figures
from schemas.config import SPLITS
from schemas.digest import write_atomic
from schemas.errors import counted
from schemas.fold_records import CrossValidation, FoldResult
from schemas.records import CheckReport, EvaluationReport, PreflightReport, Prepared, TrainReport
from tasks.context import RunContext
from tasks.live import publish
from tasks.say import say
from training.evaluation.cross_validation import (
    NOTE,
    baseline_spreads,
    fold_verdict,
    metric_spreads,
)
from training.report.folds import write_fold_report


@task(
    name="collect fold",
    description="One fold's figures, in its directory and its MLflow run.",
    tags=["track"],
    cache_policy=NO_CACHE,
)
def collect_fold(
    run: RunContext,
    number: int,
    prepared: Prepared,
    preflight: PreflightReport,
    trained: TrainReport,
    evaluated: EvaluationReport,
) -> FoldResult:
    """Collect the results of one fold, counted from 1, in `fold.json`."""
    found = FoldResult(
        number=number,
        rows={side: prepared.split.side(side).rows for side in SPLITS},
        excluded=prepared.split.excluded,
        plan=prepared.split.plan,
        metrics=evaluated.metrics,
        baselines=evaluated.baselines
        | {found.name: found.metrics for found in evaluated.against if not found.problem},
        epochs=trained.epochs,
        best_step=trained.best_step,
        seconds=trained.seconds,
        model_sha256=trained.model_sha256,
        checks=CheckReport(results=(*prepared.checks.results, *preflight.checks.results)),
        run_dir=str(run.run_dir),
        mlflow_run_id=run.tracker.run_id,
    )
    write_atomic(run.run_dir / "fold.json", found.model_dump_json(indent=1))
    run.tracker.log_record("evaluation/test.json", evaluated)
    run.tracker.log_metrics(
        {f"test/{name}": interval.value for name, interval in evaluated.metrics.items()}
    )
    run.tracker.log_metrics(
        {
            f"baseline/{kind}/{name}": value
            for kind, values in evaluated.baselines.items()
            for name, value in values.items()
        }
        | yardstick_figures(evaluated.against)
    )
    return found


@task(
    name="report folds",
    description=(
        "Mean, spread and a table of the folds: terminal, HTML, MLflow and Prefect. Nothing is"
        " registered."
    ),
    tags=["report"],
    cache_policy=NO_CACHE,
)
def report_folds(
    run: RunContext, label: str, folds: Sequence[FoldResult], coverage: CheckReport
) -> CrossValidation:
    """Write the results: `crossvalidation.json` and `report.html` in the run directory."""
    path = run.run_dir / "report.html"
    found = CrossValidation(
        name=run.declaration.name,
        run_id=run.run_id,
        run_dir=str(run.run_dir),
        task=run.declaration.task.kind,
        label=label,
        kind=run.declaration.fold_kind,
        metric=run.declaration.metric,
        folds=tuple(folds),
        metrics=metric_spreads(folds),
        baselines=baseline_spreads(folds),
        coverage=coverage,
        verdict=fold_verdict(run.declaration, folds),
        report=str(path),
        tracking_uri=run.tracking_uri,
        mlflow_run_id=run.tracker.run_id,
        flow_run_id=run.flow_run_id,
    )
    write_atomic(run.run_dir / "crossvalidation.json", found.model_dump_json(indent=1))
    write_fold_report(found, run.declaration, path)
    _track(run, found, path)
    say("report", str(path))
    return found


def _track(run: RunContext, found: CrossValidation, path: Path) -> None:
    run.tracker.log_artifact(path)
    run.tracker.log_record("crossvalidation.json", found)
    for name in ("mean", "std", "min", "max"):
        run.tracker.log_metrics(
            {
                f"cv/{metric}/{name}": getattr(spread, name)
                for metric, spread in found.metrics.items()
            }
        )
    summary = markdown(found)
    run.tracker.set_tags({"mlflow.note.content": summary})
    publish(
        create_markdown_artifact,
        key="folds",
        markdown=summary,
        description=f"{found.name}: cross-validation",
    )


def markdown(found: CrossValidation) -> str:
    """Return the results as Prefect and MLflow show them."""
    names = [found.metric, *(n for n in found.metrics if n != found.metric)][:4]
    rows = [
        f"| {f.number} | {f.rows['test']:,} | "
        + " | ".join(_text(f.metrics[n].value) for n in names)
        + " |"
        for f in found.folds
    ]
    rows += [
        f"| {word} | | " + " | ".join(_text(getattr(found.metrics[n], field)) for n in names) + " |"
        for word, field in (("mean", "mean"), ("sd", "std"))
    ]
    head = f"| fold | test rows | {' | '.join(names)} |\n|{'---|' * (len(names) + 2)}"
    return (
        f"# {found.name}: {counted(len(found.folds), 'fold')} ({found.kind})\n\n"
        f"{found.verdict}\n\n{head}\n" + "\n".join(rows) + f"\n\n{NOTE}\n"
    )


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
