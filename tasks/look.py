"""Look at a table before there is a declaration, for `bulkhead look`."""

from __future__ import annotations

from pathlib import Path

from schemas.database_config import ONLY_TABLE, Choice
from schemas.table_look import TableLook
from training.data.look.look import look
from training.formatting import plain
from training.report.look_words import facts, kind_counts, read_words, split_row, tied_words

__all__ = [
    "facts",
    "kind_counts",
    "look_at_table",
    "plain",
    "read_words",
    "split_row",
    "tied_words",
]


def look_at_table(
    uri: str, label: str | None, html: Path | None, choice: Choice = ONLY_TABLE
) -> TableLook:
    """Return the facts of a table; write them as a page if a path is given."""
    report = look(uri, label, choice=choice)
    if html is not None:
        from training.report.look_page import write_look  # jinja2, only for a page

        write_look(report, html)
    return report
