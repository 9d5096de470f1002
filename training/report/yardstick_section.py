"""Part of the test metrics: estimators of `evaluate.against` next to the model."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.comparison_records import YardstickResult
from schemas.config import Declaration
from schemas.records import EvaluationReport
from training.evaluation.yardstick_words import yardstick_words
from training.formatting import MISSING, duration, interval, metric_name, number, plain
from training.report.blocks import Badge, Block, Bullets, Callout, Heading, Table, Words, table

BADGES = {
    "ahead": Badge("good", "model is better"),
    "level": Badge("warn", "model is about equal"),
    "behind": Badge("bad", "model is worse"),
    "unknown": Badge("info", "not comparable"),
}


def yardstick_blocks(
    declaration: Declaration, names: Sequence[str], test: EvaluationReport
) -> list[Block]:
    """Show figures, paired differences and seconds of each yardstick; nothing without any.

    Args:
        declaration: of the run.
        names: metrics to show.
        test: gives the model's and the yardsticks' figures.
    """
    if not test.against:
        return []
    said = [(found, plain(yardstick_words(declaration, found), 600)) for found in test.against]
    ahead = [text for found, text in said if found.standing == "behind"]
    failed = [text for found, text in said if found.problem]
    notes = [
        f"{plain(found.name)}: {plain(found.note, 200)}" for found in test.against if found.note
    ]
    return [
        Heading("Next to yardsticks"),
        *([Callout("warn", "A yardstick is ahead of the model", " ".join(ahead))] if ahead else []),
        *([Callout("info", "Not every yardstick has figures", " ".join(failed))] if failed else []),
        _table(declaration, names, test),
        *([Bullets(tuple(notes))] if notes else []),
        Words(
            "Yardsticks are the estimators of evaluate.against, fitted on the same train rows and"
            " scored on the same test rows. They are never registered, and the gate does not"
            " read them. Differences are paired on the same resamples."
        ),
    ]


def _table(declaration: Declaration, names: Sequence[str], test: EvaluationReport) -> Table:
    main = declaration.metric
    pairs = list(dict.fromkeys(n for found in test.against for n in found.differences))
    rows: list[list[str | Badge]] = [
        ["model", *(number(test.metrics[n].value) for n in names), *[""] * (len(pairs) + 2)],
        *([plain(found.name), *_cells(found, names, pairs)] for found in test.against),
    ]
    headers = [
        "",
        *(metric_name(n) for n in names),
        *(f"Model minus it: {metric_name(n)}" for n in pairs),
        "Fit",
        f"By {metric_name(main)}",
    ]
    return table(headers, rows, words=(0, len(headers) - 1))


def _cells(found: YardstickResult, names: Sequence[str], pairs: Sequence[str]) -> list[str | Badge]:
    if found.problem:
        return [*[MISSING] * (len(names) + len(pairs) + 1), Badge("info", "failed")]
    return [
        *(number(found.metrics.get(n)) for n in names),
        *(interval(found.differences[n]) for n in pairs),
        duration(found.seconds),
        BADGES[found.standing],
    ]
