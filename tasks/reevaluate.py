"""Evaluate the champion on rows added since it was registered."""

from __future__ import annotations

from typing import cast

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from schemas.errors import RegistryError
from schemas.look_records import Look, with_bounds
from schemas.records import SplitTables, ValidatedTable
from schemas.registry_records import Reevaluation
from schemas.scratch import scratch_folder
from tasks.context import RunContext
from tasks.looks import count_looks
from tasks.say import say
from training.registry.reevaluate import has_drifted, reevaluate
from training.registry.registry import CHAMPION
from training.registry.version_record import Recorded, recorded_version
from training.report.reevaluate_report import outcome, write_reevaluation

STATES = {"pass": "As good", "warn": "Warned", "unknown": "Unknown", "fail": "Worse"}
KINDS = {"pass": "done", "warn": "warn", "fail": "fail", "unknown": "unknown"}


@task(
    name="fetch champion",
    description="The version in use, its alias resolved once, with what its run recorded.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def fetch_champion(run: RunContext) -> Recorded:
    """Return the champion of the declared name.

    Raises:
        RegistryError: there is none.
    """
    found = recorded_version(f"models:/{run.declaration.name}@{CHAMPION}", run.tracker.uri)
    run.tracker.set_tags({"bulkhead.model": found.uri})
    say("champion", f"{found.uri}, program {found.model.program_sha256[:12]}")
    return found


@task(
    name="reevaluate champion",
    description=(
        "Metrics with intervals on rows that the champion has not met; drift of features and"
        " predictions; calibration."
    ),
    tags=["evaluate", "check"],
    cache_policy=NO_CACHE,
)
def reevaluate_champion(
    champion: Recorded, validated: ValidatedTable, split: SplitTables, run: RunContext
) -> Reevaluation:
    """Compare the champion's results on the new rows with those at registration."""
    with scratch_folder(run.run_dir, "rows") as scratch:
        known, looks = champion.evidence.metrics, list[Look]()
        weights = champion.evidence.model_sha256
        found = reevaluate(
            run.declaration,
            champion.model,
            known,
            champion.statistics,
            validated.spec,
            split,
            scratch,
            lambda new: looks.extend(count_looks(run.declaration, new, weights, "reevaluate")),
        )
    bounded = with_bounds(tuple(looks), found.metrics, run.declaration.evaluate.confidence)
    found = found.model_copy(update={"looks": bounded})
    for result in found.checks.results:
        say(result.name[:14], result.summary, KINDS.get(result.verdict, "done"))
    return found


@task(
    name="report reevaluation",
    description="One HTML page, metrics and drift in MLflow, a summary in Prefect.",
    tags=["report"],
    cache_policy=NO_CACHE,
)
def report_reevaluation(
    found: Reevaluation, validated: ValidatedTable, run: RunContext
) -> Reevaluation:
    """Return the record with the path of its report."""
    path = run.run_dir / "report.html"
    write_reevaluation(found, run.declaration, run.run_id, validated.spec.label, path)
    told = found.model_copy(update={"report": str(path)})
    run.tracker.log_artifact(path)
    run.tracker.log_record("reevaluation.json", told)
    run.tracker.log_metrics(
        {f"new/{name}": interval.value for name, interval in found.metrics.items()}
    )
    run.tracker.log_metrics(
        {
            "new/rows": float(found.rows),
            "drift/columns": float(sum(map(has_drifted, found.features))),
        }
    )
    run.tracker.log_metrics({f"psi/{_key(d.column)}": d.psi for d in found.features})
    run.tracker.set_tags({"bulkhead.verdict": outcome(found), "mlflow.note.content": found.verdict})
    rows = "\n".join(
        f"| {r.verdict} | {r.name} | {r.summary.replace('|', '/')} |" for r in found.checks.results
    )
    markdown = (
        f"# {found.verdict}\n\n| verdict | check | finding |\n|---|---|---|\n{rows}\n\nReport:"
        f" {path}\n"
    )
    create_markdown_artifact(
        key="reevaluation", markdown=markdown, description=f"{found.uri}: {found.rows:,} new rows"
    )
    say("report", str(path))
    return told


def _key(column: str) -> str:
    """Return a column's name in the form that MLflow allows in metric names."""
    return "".join(c if (c.isalnum() and c.isascii()) or c in "_-. " else "_" for c in column)


def require_good(found: Reevaluation) -> None:
    """Return a re-evaluation in which no check failed.

    Raises:
        RegistryError: a check failed; the message gives the first.
    """
    if outcome(found) == "fail":
        raise RegistryError(
            f"{found.uri} does not do any more what it did: {found.verdict}; report: {found.report}"
        )


def end_reevaluation(found: Reevaluation) -> Reevaluation:
    """Return the flow's final state, named after the worst verdict; the caller gets the record."""
    return cast(
        Reevaluation, Completed(name=STATES[found.outcome], message=found.verdict, data=found)
    )
