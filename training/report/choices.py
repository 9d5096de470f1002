"""Section of the report on temperature, threshold and intervals, where one is declared."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.calibration_records import Calibration, Coverage, Margin, ThresholdChoice
from schemas.records import EvaluationReport, TrainReport
from training.formatting import MISSING, count, number, plain
from training.report.blocks import Block, Gallery, Heading, Table, Words, table
from training.report.svg import BASELINE, MODEL, Picture, canvas_for

MAX_PICTURES = 4


def choice_blocks(train: TrainReport, test: EvaluationReport) -> list[Block]:
    """Show temperatures with reliability before and after, and thresholds; nothing without any."""
    blocks: list[Block] = []
    if train.calibration:
        blocks += [
            Heading("Calibration"),
            Words(
                "Each class label's scores are divided by its temperature, fitted on the validation"
                " rows and kept only where their log loss falls. The test rows had no part in it."
            ),
            _temperatures(train.calibration, test.calibration),
            Gallery(tuple(reliability_curves(c) for c in test.calibration[:MAX_PICTURES])),
        ]
    if train.threshold:
        blocks += [
            Heading("Decision threshold"),
            Words(
                "A row is predicted positive if its probability is above the threshold. All metrics"
                " that need a class, the confusion matrix and the served class use it; so do the"
                " baselines, each with its own threshold by the same rule."
            ),
            _thresholds(train.threshold),
        ]
    if train.margins:
        grouped = any(found.groups for found in train.margins)
        blocks += [
            Heading("Intervals"),
            Words(
                "An interval, or a set of classes, is as wide as it must be to hold the truth of"
                " the declared share of validation rows (split conformal prediction)"
                + (", with each group counted alike" if grouped else "")
                + ". The test rows show what share it holds."
            ),
            _intervals(train.margins, test.coverage),
        ]
    return blocks


def _intervals(margins: Sequence[Margin], held: Sequence[Coverage]) -> Table:
    seen = {found.label: found for found in held}
    rows = [
        [
            plain(found.label, 40),
            f"{found.coverage:.0%}",
            f"{seen[found.label].seen:.1%}" if found.label in seen else MISSING,
            "no bound" if found.margin is None else number(found.margin),
            {"value": "label units", "probability": "1 - probability"}.get(
                found.scale, "logarithm"
            ),
            MISSING
            if found.label not in seen or seen[found.label].size is None
            else number(seen[found.label].size),
            count(found.groups or found.rows),
        ]
        for found in margins
    ]
    headers = ["Label", "Declared", "Held on test", "Margin", "Measured in"]
    return table(
        [*headers, "Median width or classes", "Validation rows or groups"], rows, words=(0, 3, 4)
    )


def _temperatures(val: Sequence[Calibration], test: Sequence[Calibration]) -> Table:
    rows = [
        [
            plain(found.label, 40),
            name,
            number(found.temperature),
            "yes" if kept else "no",
            *(number(v) for v in (found.before.log_loss, found.after.log_loss)),
            *(number(v) for v in (found.before.ece, found.after.ece)),
        ]
        for name, side in (("Validation", val), ("Test", test))
        for found in side
        for kept in [any(v.kept for v in val if v.label == found.label)]
    ]
    headers = ["Label", "Rows of", "Temperature", "Kept", "Log loss before", "after"]
    return table([*headers, "Calibration error before", "after"], rows, words=(0, 1, 3))


def _thresholds(choices: Sequence[ThresholdChoice]) -> Table:
    rows = [
        [
            plain(choice.label, 40),
            number(choice.value),
            choice.objective.replace("_", " "),
            *(MISSING if v is None else number(v) for v in (choice.at_half, choice.score)),
            count(choice.rows),
            plain(choice.note, 200),
        ]
        for choice in choices
    ]
    headers = ["Label", "Threshold", "Chosen for", "Validation at 0.5", "at the threshold"]
    return table([*headers, "Validation rows", "Note"], rows, words=(0, 2, 6))


def reliability_curves(found: Calibration) -> Picture:
    """Draw observed against predicted probability before and after the temperature."""
    with canvas_for("reliability") as canvas:
        axis = canvas.axes[0]
        axis.plot([0, 1], [0, 1], color=BASELINE, lw=1, ls="--", label="perfect")
        for name, curve, colour, style in (
            ("before", found.before, BASELINE, ":"),
            ("after", found.after, MODEL, "-"),
        ):
            axis.plot(curve.said, curve.seen, color=colour, ls=style, marker="o", ms=3, label=name)
        axis.set(xlabel="predicted probability", ylabel="observed share", xlim=(0, 1), ylim=(0, 1))
        axis.legend(loc="upper left")
        errors = f"{number(found.before.ece)} before and {number(found.after.ece)} after"
        return canvas.done(
            f"Reliability of {plain(found.label, 40)}: calibration error {errors} the temperature.",
            f"{plain(found.label, 40)}: observed against predicted probability on the test rows;"
            f" calibration error {errors} the temperature.",
        )
