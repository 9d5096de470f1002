"""Page of a re-evaluation: the model's performance now, and changes in its data."""

from __future__ import annotations

from pathlib import Path

from schemas.config import Declaration
from schemas.records import FileRef
from schemas.registry_records import Drift, Reevaluation
from training.formatting import capital, count, interval, metric_name, number, plain, share
from training.registry.reevaluate import has_drifted
from training.report.blocks import Badge, Block, Section, Table, Tone, checks, table
from training.report.blocks import Words as Text
from training.report.headline import Headline, Tile
from training.report.page import write_run_page

TONES: dict[str, Tone] = {"pass": "good", "warn": "warn", "fail": "bad", "unknown": "info"}
NOTE = (
    "PSI is the population stability index: below 0.1 little has changed, from 0.25 on much. A"
    " column is marked where it differs beyond chance (Holm's method over all columns, one row of"
    " each group) and by a PSI of 0.1 or more."
)


def write_reevaluation(
    found: Reevaluation, declaration: Declaration, run_id: str, label: str, path: Path
) -> FileRef:
    """Write the page completely or not at all; the same record gives the same bytes."""
    return write_run_page(
        path, declaration, run_id, label, _headline(found), _sections(found), "re-evaluation"
    )


def outcome(found: Reevaluation) -> str:
    """Return `fail`, `warn`, `unknown` or `pass`: the worst of its checks."""
    return found.outcome


def _headline(found: Reevaluation) -> Headline:
    tone = TONES[outcome(found)]
    moved = sum(map(has_drifted, found.features))
    now, then = found.metrics.get(found.metric), found.registered.get(found.metric)
    tiles = (
        Tile(
            f"{capital(metric_name(found.metric))} now",
            number(now.value if now else None),
            f"on {count(found.rows)} new rows",
            tone,
        ),
        Tile("At registration", number(then.value if then else None), "on its test rows", "info"),
        Tile(
            "Features that drifted",
            f"{moved} of {len(found.features)}",
            "beyond chance and by much",
            "warn" if moved else "good",
        ),
        Tile("Model", f"version {plain(found.version)}", plain(found.name), "info"),
    )
    return Headline(f"{capital(plain(found.verdict, 1000))}.", tone, tiles)


def _sections(found: Reevaluation) -> tuple[Section, ...]:
    rows = (
        f"{count(found.rows)} new rows; of the source as it is now, {count(found.learned)} it"
        f" learned from and {count(found.tested)} it was tested on."
    )
    parts: tuple[tuple[str, str, str, list[Block]], ...] = (
        (
            "findings",
            "Findings",
            "What has changed, and does it matter?",
            [checks(found.checks.results)],
        ),
        (
            "metrics",
            "Metrics",
            "How good is it on rows that came since?",
            [Text(rows), _metrics(found)],
        ),
        (
            "features",
            "Features",
            "Are the rows what they were?",
            [Text(NOTE), _drift(found.features)],
        ),
        (
            "predictions",
            "Predictions",
            "Does it say what it used to say, on rows that it had not met?",
            [_drift(found.predictions)],
        ),
    )
    return tuple(
        Section(anchor, title, question, tuple(blocks)) for anchor, title, question, blocks in parts
    )


def _metrics(found: Reevaluation) -> Table:
    names = [found.metric, *(name for name in found.registered if name != found.metric)]
    rows = [
        [
            capital(metric_name(n)),
            *(
                interval(part[n]) if n in part else "–"
                for part in (found.metrics, found.registered)
            ),
        ]
        for n in names
    ]
    return table(["Metric", "New rows", "At registration"], rows)


def _drift(found: tuple[Drift, ...]) -> Table:
    rows = [
        [
            plain(d.column),
            Badge("warn", "differs") if has_drifted(d) else "",
            number(d.psi),
            number(d.distance),
            number(d.adjusted),
            share(d.null_before),
            share(d.null_now),
        ]
        for d in found
    ]
    return table(
        ["Column", "", "PSI", "Distance", "Adjusted p", "Nulls then", "Nulls now"],
        rows,
        words=(0, 1),
        limit=100,
        what="columns",
    )
