"""Score the best weights on held-out rows."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.calibration_records import Coverage, thresholds_of
from schemas.config import SplitName
from schemas.errors import counted
from schemas.load import declare
from schemas.records import EvaluationReport, Prepared, RunSpec, TableRef, TrainReport
from tasks.looks import count_looks, scored_rows
from tasks.say import say
from training.run.record import PREPARED, has_part, read_part


@task(
    name="evaluate",
    description=(
        "Every row exactly once, metrics with bootstrap intervals (by group), baselines on the same"
        " rows."
    ),
    tags=["evaluate"],
    cache_policy=NO_CACHE,
)
def evaluate_model(
    spec: RunSpec, trained: TrainReport, run_dir: Path, side: SplitName
) -> EvaluationReport:
    """Return metrics of one split with uncertainty, and the results of the baselines.

    A look at test rows is counted before they are scored.
    """
    from training.evaluation.evaluate import evaluate
    from training.evaluation.next_step import unfinished
    from training.evaluation.yardstick_words import yardstick_words

    thresholds = thresholds_of(trained.threshold)
    out_dir = run_dir / "evaluation" / side
    declaration = declare(spec.declaration)
    note = unfinished(declaration, trained)
    looks = (
        count_looks(declaration, scored_rows(spec.arrays.test), trained.model_sha256, "evaluate")
        if side == "test"
        else ()
    )
    report = evaluate(
        *(spec, trained.best_checkpoint, side, out_dir, thresholds, note),
        margins=trained.margins,
        looks=looks,
        table=_table(spec, run_dir, side),
    )
    found = report.metrics[trained.metric]
    bounds = (
        f" [{found.low:.4f}, {found.high:.4f}]"
        if found.low is not None and found.high is not None
        else ""
    )
    value = "undefined" if found.value is None else f"{found.value:.4f}{bounds}"
    others = "".join(
        f"; {name} {m[trained.metric]:.4f}"
        for name, m in report.baselines.items()
        if m.get(trained.metric) is not None
    )
    say("evaluate", f"{side} {trained.metric} {value} over {counted(report.rows, 'row')}{others}")
    if report.verdict:
        say("", report.verdict, "info" if report.has_skill else "warn")
    for sentence in (look.sentence for look in report.looks if look.number > 1):
        say("", sentence, "info")
    for yardstick in report.against:
        is_bad = yardstick.standing == "behind" or yardstick.problem
        words = yardstick_words(declaration, yardstick)
        say("", words, "warn" if is_bad else "info")
    _say_details(report, side)
    return report


def _say_details(report: EvaluationReport, side: SplitName) -> None:
    """Say what calibration, intervals and slices show on the rows."""
    from training.evaluation.decisions import calibration_words

    for part in report.calibration:
        say("", f"on {side}, {calibration_words(part, on_val=False)}", "info")
    for held in report.coverage:
        say("", coverage_words(held, side), "info")
    if report.interval_note:
        say("", report.interval_note, "warn")
    for sentence in worse_slices(report):
        say("", sentence, "warn")


def _table(spec: RunSpec, run_dir: Path, side: SplitName) -> TableRef | None:
    """Return the table that a side's arrays were made from, if the run's home still has it."""
    if not has_part(run_dir, PREPARED):
        return None
    prepared = read_part(run_dir, PREPARED, Prepared)
    if prepared.arrays.sha256 != spec.arrays.sha256:
        return None
    table = prepared.split.side(side)
    return table if table.file.file.is_file() else None


def worse_slices(report: EvaluationReport) -> list[str]:
    """Describe the slices that are worse than the others of their column."""
    from training.evaluation.slice_words import worse_words

    if report.slices is None:
        return []
    return [
        f"worse in slice {worse_words(report.slices, found, report.rows)}"
        for found in report.slices.worse
    ]


def coverage_words(found: Coverage, side: SplitName) -> str:
    """Describe in one line how often intervals hold."""
    return (
        f"on {side}, intervals of {found.label} hold {found.seen:.1%} of the truth"
        f" ({found.declared:.0%} declared)"
    )
