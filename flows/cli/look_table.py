"""Format a first look for the terminal: tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.errors import counted
from schemas.table_look import ColumnLook, TableLook
from tasks.look import facts, kind_counts, plain, read_words, split_row, tied_words

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_COLUMNS = 60
TITLES = {"repeats": "Repeats", "missing": "Missing", "order": "Order"}


def print_look(look: TableLook, page: Path | None) -> None:
    """Print the facts on standard output, and the path of the page if one was written."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(
        Text(
            f"{plain(look.name, 200)}: {counted(look.rows, 'row')},"
            f" {counted(len(look.columns), 'column')} ({kind_counts(look)})",
            style="bold",
        )
    )
    if words := read_words(look):
        console.print(Text(words, style="dim"))
    shown = look.columns[:MOST_COLUMNS]
    _print(
        console,
        ("column", "kind", "values", "null", "from", "to", "picture"),
        (_column(c, look.sampled) for c in shown),
    )
    if len(shown) < len(look.columns):
        console.print(
            f"  the first {len(shown)} of {len(look.columns):,} columns; --json lists all"
        )
    for part, sentences in facts(look).items():
        console.print(Text(f"\n{TITLES[part]}", style="bold"))
        for sentence in sentences:
            console.print(Text(f"  · {sentence}"))
    console.print(Text("\nCandidates", style="bold"))
    _print(
        console,
        ("role", "column", "reason"),
        ((c.role, plain(c.column, 40), plain(c.reason, 300)) for c in look.candidates),
    )
    target = f" ({plain(look.label)} = {plain(look.target)})" if look.target is not None else ""
    console.print(Text(f"\nIn test, with 15 % of the rows{target}", style="bold"))
    _print(console, ("split", "groups", "rows", "positives", "remark"), map(split_row, look.splits))
    if words := tied_words(look):
        console.print(Text(f"  · {words}"))
    if page is not None:
        console.print(Text(f"\n  page: {page}"), soft_wrap=True)


def _print(console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    cells = [tuple(row) for row in rows]
    if not console.is_terminal:
        lines = [tuple(headings), *cells]
        widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
        for line in lines:
            padded = (text.ljust(w) for text, w in zip(line, widths, strict=True))
            print(f"  {'  '.join(padded)}".rstrip())
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for place, heading in enumerate(headings):
        table.add_column(heading, overflow="ellipsis" if place < 2 else "fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _column(column: ColumnLook, rows: int) -> tuple[str, ...]:
    return (
        plain(column.name, 30),
        column.kind,
        f"{column.distinct:,}",
        f"{column.nulls / rows:.3g}" if column.nulls else "",
        plain(column.low, 19),
        plain(column.high, 19),
        _picture(column),
    )


def _picture(column: ColumnLook) -> str:
    """Return bars of a number or time as blocks; of others the frequent values."""
    if not column.bars:
        return ""
    if column.low and len(column.bars) > 2:
        most = max(bar.rows for bar in column.bars) or 1
        return "".join(
            BLOCKS[min(7, 8 * bar.rows // (most + 1))] if bar.rows else " " for bar in column.bars
        )
    shown = ", ".join(
        f"{plain(bar.text, 16)} {bar.rows / _all(column):.2g}" for bar in column.bars[:3]
    )
    return shown + (" …" if len(column.bars) > 3 or column.others else "")


def _all(column: ColumnLook) -> int:
    return max(1, sum(bar.rows for bar in column.bars) + column.others)
