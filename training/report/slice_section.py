"""Section of the report on slices: the worst first, next to the others of their column."""

from __future__ import annotations

from schemas.records import EvaluationReport
from schemas.slice_records import Slices, SliceScore
from training.evaluation.slice_words import looked_words, worse_words
from training.formatting import (
    MISSING,
    count,
    interval,
    metric_name,
    number,
    plain,
    share,
)
from training.report.blocks import Badge, Block, Bullets, Callout, Table, Words, table

SHOWN = 12


def slice_blocks(test: EvaluationReport) -> list[Block]:
    """Show slices that are worse, then declared ones, then those that differ most."""
    slices = test.slices
    if slices is None:
        return []
    worse = slices.worse
    blocks: list[Block] = []
    if worse:
        words = ". ".join(worse_words(slices, found, test.rows) for found in worse[:5])
        blocks.append(Callout("warn", "Worse on a part of the rows", f"{words}."))
    elif slices.looked_at:
        blocks.append(Words("No slice is worse than the others of its column beyond chance."))
    shown = [found for found in slices.scores if found.declared or found.chance is not None]
    first = shown[: max(SHOWN, len(slices.declared))]
    if first:
        blocks.append(_table(slices, first, len(shown)))
    blocks.append(Words(looked_words(slices)))
    if slices.notes:
        blocks.append(Bullets(tuple(plain(note, 300) for note in slices.notes)))
    return blocks


def _table(slices: Slices, found: list[SliceScore], total: int) -> Table:
    binary = any(one.positives is not None for one in found)
    grouped = any(one.units != one.rows for one in found)
    headers = [
        "Slice",
        "Rows",
        *(["Groups"] if grouped else []),
        *(["Positive"] if binary else []),
        f"{metric_name(slices.metric)} (interval)",
        "Others",
        "Chance",
        *([""] if slices.worse else []),
    ]
    rows = [
        [
            plain(one.name, 80),
            count(one.rows),
            *([count(one.units)] if grouped else []),
            *([share(one.positives)] if binary else []),
            interval(one.score),
            number(one.others),
            MISSING if one.chance is None else _chance(one.chance),
            *([Badge("bad", "worse") if one.worse else ""] if slices.worse else []),
        ]
        for one in found
    ]
    words = (0, len(headers) - 1) if slices.worse else (0,)
    made = table(headers, rows, words=words, limit=len(rows))
    if len(found) == total:
        return made
    note = f"The first {count(len(found))} of {count(total)} slices; all are in evaluation.json."
    return Table(made.headers, made.rows, made.figures, note)


def _chance(value: float) -> str:
    return "1" if value >= 0.9995 else "< 0.001" if value < 0.001 else f"{value:.3f}"
