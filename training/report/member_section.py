"""Section of the members of an ensemble: what each is, its weight, and how far they agree."""

from __future__ import annotations

from schemas.config import AutoModel, Declaration
from schemas.records import EvaluationReport, TrainReport
from training.formatting import capital, count, duration, metric_name, number, plural
from training.report.blocks import Block, Words, table

MEMBER_REASONS = {
    "ensemble.members": "Five already take most of what averaging gives.",
    "ensemble.over": "All members learn from the same rows, and validation stays for choices.",
    "model.minutes": "Enough for every candidate on tables of some ten thousand rows.",
    "model.candidates": "The more accurate kinds first, and the simplest one as a check on them.",
}


def member_blocks(
    declaration: Declaration, train: TrainReport, test: EvaluationReport
) -> list[Block]:
    """Show the members and their uncertainty; nothing for a run of one network."""
    if not train.members:
        return []
    metric = metric_name(train.metric)
    rows = [
        [
            str(member.number),
            member.kind,
            number(member.weight),
            number(member.metric),
            duration(member.seconds),
            count(member.parameters),
        ]
        for member in train.members
    ]
    headers = ["Member", "Kind", "Weight", f"Validation {metric}", "Time", "Parameters"]
    best = f"{capital(metric)} of all together on validation rows: {number(train.best_metric)}."
    curves = (
        "Learning curves are in each member's MLflow run and in members/ of the run directory;"
        " preflight and checklist are those of the first member."
    )
    words = [f"{_how(declaration, train)} {best} {curves}"]
    if test.uncertainty is not None:
        unit = "in the label's unit" if declaration.task.kind == "regression" else "a probability"
        words.append(
            f"Over {plural(test.rows, 'test row')} the members' predictions differ by a mean"
            f" standard deviation of {number(test.uncertainty)} ({unit}); the column uncertainty of"
            " predictions.parquet has it for each row. It says how far the networks agree, not how"
            " far they are right."
        )
    return [table(headers, rows, words=(1,), limit=50), *map(Words, words)]


def _how(declaration: Declaration, train: TrainReport) -> str:
    model, ensemble = declaration.model, declaration.ensemble
    if isinstance(model, AutoModel):
        ran, declared = len(train.members), len(model.candidates)
        return (
            f"{ran} of {plural(declared, 'candidate')} were trained within {model.minutes:g}"
            " minutes of training; weights were selected greedily by the loss on validation rows,"
            " and weight 0 is not in the model."
        )
    if ensemble is not None and ensemble.over == "folds":
        return (
            "Each member trained on all folds of the train and validation rows but its own; its"
            " validation metric is that of its own fold."
        )
    return "The members differ in their seed alone and have equal weights."
