"""Finish a trained model: fit its temperature and choose its threshold on validation rows."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.calibration_records import ThresholdChoice
from schemas.load import declare
from schemas.records import RunSpec, TrainReport
from tasks.say import say
from training.evaluation.decisions import calibration_words
from training.evaluation.finish import finish
from training.tracking.mlflow import Tracker


def finish_model(
    spec: RunSpec, trained: TrainReport, run_dir: Path, tracker: Tracker
) -> TrainReport:
    """Return the report of the finished model; the training's own if nothing is declared."""
    if not declare(spec.declaration).evaluate.is_finished_after_training:
        return trained
    return _finish_model(spec, trained, run_dir, tracker)


@task(
    name="finish model",
    description=(
        "Temperature and threshold, chosen on the validation rows alone; the weights with the"
        " temperature go to final/."
    ),
    tags=["train"],
    cache_policy=NO_CACHE,
)
def _finish_model(
    spec: RunSpec, trained: TrainReport, run_dir: Path, tracker: Tracker
) -> TrainReport:
    report = finish(spec, trained, run_dir)
    tracker.log_record("final.json", report)
    for found in report.calibration:
        tracker.log_metrics({f"temperature/{found.label}": found.temperature})
        say("calibrate", calibration_words(found))
    for choice in report.threshold:
        tracker.log_metrics({f"threshold/{choice.label}": choice.value})
        say("threshold", threshold_words(choice))
        if choice.note:
            say("", choice.note, "warn")
    return report


def threshold_words(choice: ThresholdChoice) -> str:
    """Describe a threshold in one line."""
    if choice.score is None or choice.at_half is None:
        return f"{choice.label}: {choice.value:.4g}, as declared"
    return (
        f"{choice.label}: {choice.value:.4g} for {choice.objective}, val {choice.score:.4f} (at"
        f" 0.5: {choice.at_half:.4f}, {choice.rows:,} rows)"
    )
