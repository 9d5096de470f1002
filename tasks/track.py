"""Log a run's digests, split and checks to MLflow and Prefect."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from schemas.records import CheckReport, Prepared, digest_of
from schemas.split_config import SplitName
from tasks.context import RunContext
from tasks.live import publish

CONTEXTS: dict[SplitName, str] = {"train": "training", "val": "validation", "test": "testing"}


@task(
    name="log preparation",
    description="Digests, split manifest and check results to MLflow.",
    tags=["track"],
    cache_policy=NO_CACHE,
)
def log_prepared(run: RunContext, prepared: Prepared) -> None:
    """Log the data of the run: data sets by our digests, split, checks and statistics."""
    tracker, split = run.tracker, prepared.split
    uris = ", ".join(prepared.source.uri)
    tracker.log_dataset("source", uris, prepared.source.sha256, -1, "source")
    for side, context in CONTEXTS.items():
        table = split.side(side)
        tracker.log_dataset(side, table.file.path, table.file.sha256, table.rows, context)
    tracker.log_record("data/source.json", prepared.source)
    tracker.log_record("data/split.json", split)
    tracker.log_record("data/checks.json", prepared.checks)
    tracker.log_record("data/statistics.json", prepared.statistics)
    digests = {
        "source": prepared.source.sha256,
        "validated": prepared.validated.table.file.sha256,
        "statistics": digest_of(prepared.statistics),
        "arrays": prepared.arrays.sha256,
    }
    tracker.set_tags({f"bulkhead.sha256.{name}": value for name, value in digests.items()})
    tracker.set_tags({"bulkhead.data_reused": str(prepared.cached).lower()})


@task(
    name="log checks",
    description="Preflight results to MLflow and, as a table, to Prefect.",
    tags=["track"],
    cache_policy=NO_CACHE,
)
def log_checks(run: RunContext, name: str, report: CheckReport) -> None:
    """Log the checks of one stage."""
    run.tracker.log_record(f"checks/{name}.json", report)
    rows = "\n".join(
        f"| {r.verdict} | {r.name} | {r.summary.replace('|', '/')} |" for r in report.results
    )
    publish(
        create_markdown_artifact,
        key=f"checks-{name}",
        markdown=f"| verdict | check | finding |\n|---|---|---|\n{rows}",
        description=f"Checks: {name}",
    )
