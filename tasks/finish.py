"""Finish a trained model: temperature, threshold and margins, from validation rows."""

from __future__ import annotations

import math
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.calibration_records import Margin, ThresholdChoice
from schemas.errors import counted
from schemas.load import declare
from schemas.records import RunSpec, TrainReport
from tasks.say import say
from training.tracking.mlflow import Tracker

MOST_EXPONENT = 700.0  # whose power of e is a double


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
        "Temperature, threshold and margins, chosen on the validation rows alone; the weights with"
        " the temperature go to final/."
    ),
    tags=["train"],
    cache_policy=NO_CACHE,
)
def _finish_model(
    spec: RunSpec, trained: TrainReport, run_dir: Path, tracker: Tracker
) -> TrainReport:
    from training.evaluation.decisions import calibration_words
    from training.evaluation.finish import finish

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
    for margin in report.margins:
        say("intervals", margin_words(margin), "info" if margin.margin is not None else "warn")
    return report


def margin_words(found: Margin) -> str:
    """Describe a margin in one line."""
    count, units = (found.groups, "groups") if found.groups else (found.rows, "rows")
    if found.margin is None:
        return (
            f"{found.label}: {count:,} {units} of validation are too few for intervals that hold"
            f" {found.coverage:.0%}; those of this model have no bounds"
        )
    wide = _width_words(found.scale, found.margin)
    return f"{found.label}: {wide} in {found.coverage:.0%} of new {units} ({count:,} of validation)"


def _width_words(scale: str, margin: float) -> str:
    """Describe how far an interval reaches, on the scale on which its margin is a distance."""
    if scale == "value":
        return f"within {margin:.4g} of the prediction"
    if scale == "probability":
        return f"among the classes of probability {1 - margin:.4g} or more"
    factor = f"{math.exp(margin):.4g}" if margin < MOST_EXPONENT else "any size"
    plus = " (plus one)" if scale == "log1p" else ""
    return f"within a factor of {factor} of the prediction{plus}"


def threshold_words(choice: ThresholdChoice) -> str:
    """Describe a threshold in one line."""
    if choice.score is None or choice.at_half is None:
        return f"{choice.label}: {choice.value:.4g}, as declared"
    return (
        f"{choice.label}: {choice.value:.4g} for {choice.objective}, val {choice.score:.4f} (at"
        f" 0.5: {choice.at_half:.4f}, {counted(choice.rows, 'row')})"
    )
