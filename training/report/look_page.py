"""Page of a first look at a table: one HTML file in the form of the other reports."""

from __future__ import annotations

from pathlib import Path

from schemas.records import FileRef
from schemas.table_look import ColumnLook, TableLook
from training.formatting import count, plain, plural, share
from training.report.blocks import Block, Bullets, Callout, Section, Words, table
from training.report.column_cards import Card, Cards, Line, VerticalBar
from training.report.headline import Headline, Tile
from training.report.look_words import facts, kind_counts, read_words, split_row, tied_words
from training.report.page import write_page

TEMPLATE = "look.html.j2"
PICTURED = 200  # columns with a card; a page of thousands is not read
HEIGHT = 40.0


def write_look(look: TableLook, path: Path) -> FileRef:
    """Write the page completely or not at all."""
    return write_page(
        path,
        TEMPLATE,
        name=plain(look.name, 200),
        description=plain(read_words(look), 400),
        headline=_headline(look),
        sections=_sections(look),
    )


def _headline(look: TableLook) -> Headline:
    nulls = sum(c.nulls for c in look.columns) / max(1, look.sampled * len(look.columns))
    repeats = max(look.repeats.rows, look.repeats.apart_from_ids)
    target = (
        f"{plain(look.label)} = {plain(look.target)} in {share(look.positive / look.rows)}"
        if look.target is not None and look.positive is not None
        else plain(look.label or "no column looks like one")
    )
    return Headline(
        "Facts of the table before a declaration exists. Candidates are guesses with their reason,"
        " no verdicts.",
        "info",
        (
            Tile("Rows", count(look.rows), f"{plural(look.num_files, 'file')}", "info"),
            Tile("Columns", count(len(look.columns)), kind_counts(look), "info"),
            Tile("Repeated rows", count(repeats), "apart from id-like columns", "info"),
            Tile("Missing values", share(nulls), f"likeliest label: {target}", "info"),
        ),
    )


def _sections(look: TableLook) -> tuple[Section, ...]:
    said = facts(look)
    parts: tuple[tuple[str, str, str, list[Block]], ...] = (
        (
            "roles",
            "Candidates",
            "Which column could be the id, the group, the time, the label, the weight?",
            _candidate_blocks(look),
        ),
        (
            "splits",
            "Splits",
            "What would each split leave in test, with 15 % of the rows?",
            _split_blocks(look),
        ),
        ("repeats", "Repeats", "Which rows and columns say the same?", _bullets(said["repeats"])),
        (
            "missing",
            "Missing",
            "What is null, and what is null together?",
            _bullets(said["missing"]),
        ),
        ("order", "Order", "Does the order of the rows mean something?", _order_blocks(look, said)),
        ("columns", "Columns", "What is in each column?", _column_blocks(look)),
    )
    return tuple(Section(a, title, question, tuple(blocks)) for a, title, question, blocks in parts)


def _bullets(sentences: tuple[str, ...]) -> list[Block]:
    return [Bullets(tuple(f"{text}." for text in sentences))]


def _order_blocks(look: TableLook, said: dict[str, tuple[str, ...]]) -> list[Block]:
    callout: list[Block] = (
        [
            Callout(
                "warn",
                "The label moves along the rows",
                "A split at random then hides how the model does on later rows; find the time.",
            )
        ]
        if look.order.label_moves
        else []
    )
    return [*callout, *_bullets(said["order"])]


def _candidate_blocks(look: TableLook) -> list[Block]:
    if not look.candidates:
        return [Words("No column looks like an id, group, time, label or weight.")]
    rows = [(c.role, plain(c.column, 60), plain(c.reason, 400)) for c in look.candidates]
    return [table(("role", "column", "reason"), rows, words=(0, 1, 2), limit=100)]


def _split_blocks(look: TableLook) -> list[Block]:
    headers = ("split", "groups in test", "rows in test", "positives in test", "remark")
    said = tied_words(look)
    callout: list[Block] = (
        [
            Callout(
                "warn",
                "A split at random would flatter",
                f"{said}. Declare the column as a group, or what the rows are measured on.",
            )
        ]
        if said
        else []
    )
    note = "Of draws of whole groups: the median, and in brackets the 5 % and 95 % quantiles."
    return [
        *callout,
        table(headers, map(split_row, look.splits), words=(0, 4), limit=100),
        Words(
            note
            if look.target is None
            else f"Positive: {plain(look.label)} = {plain(look.target)}. {note}"
        ),
    ]


def _column_blocks(look: TableLook) -> list[Block]:
    shown = look.columns[:PICTURED]
    blocks: list[Block] = [Cards(tuple(_card(c, look.sampled) for c in shown))]
    if len(shown) < len(look.columns):
        blocks.append(
            Words(
                f"The first {count(len(shown))} of {count(len(look.columns))} columns; `--json`"
                " lists all."
            )
        )
    return blocks


def _card(column: ColumnLook, rows: int) -> Card:
    nulls = f" · {share(column.nulls / rows)} null" if column.nulls else ""
    figures = f"{plural(column.distinct, 'value')}{nulls} · {column.type.lower()}"
    is_scale = bool(column.low) and len(column.bars) > 2
    most = max((b.rows for b in column.bars), default=1) or 1
    width = 100 / max(len(column.bars), 1)
    return Card(
        name=plain(column.name),
        kind=column.kind,
        figures=plain(figures, 160),
        alt=plain(
            f"{column.name}: "
            + ", ".join(f"{b.text}: {plural(b.rows, 'row')}" for b in column.bars),
            1200,
        ),
        low=plain(column.low, 24),
        high=plain(column.high, 24),
        bars=tuple(
            VerticalBar(
                x=round(i * width + 0.4, 2),
                y=round(HEIGHT - _height(b.rows, most), 2),
                width=round(width - 0.8, 2),
                height=round(_height(b.rows, most), 2),
                words=plain(f"{b.text}: {plural(b.rows, 'row')}", 120),
            )
            for i, b in enumerate(column.bars)
        )
        if is_scale
        else (),
        lines=() if is_scale else _lines(column, most),
    )


def _height(rows: int, most: int) -> float:
    """Return the height of a bar; any row at all can be seen."""
    return max(HEIGHT * rows / most, 0.8) if rows else 0.0


def _lines(column: ColumnLook, most: int) -> tuple[Line, ...]:
    lines = [
        Line(plain(b.text, 60) or "(empty)", count(b.rows), b.rows / most) for b in column.bars
    ]
    if column.others:
        lines.append(Line("all others", count(column.others), 0.0))
    return tuple(lines)
