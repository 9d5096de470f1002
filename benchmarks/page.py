"""Pages of figures: each benchmark rewrites its own section and leaves the others unchanged."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from schemas.digest import write_atomic

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

The command that a section names writes every figure of the section. Loops and programs that are compared take turns in
one run, so that other work on the machine slows all of them. Ratios are medians over the turns. Which leaks are found,
and how often a finding is wrong: [benchmarks-leaks.md](benchmarks-leaks.md).
"""  # noqa: E501


def write_section(name: str, text: str, page: Path = PAGE, head: str = HEAD) -> None:
    """Replace a section, or append a new one.

    Args:
        name: name in the section's marks, e.g. training.
        text: Markdown that begins with a heading of second level.
        page: the page.
        head: beginning of a new page.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = page.read_text() if page.exists() else head
    section = f"{begin}\n{text.strip()}\n{end}"
    if begin in whole and end in whole:
        before, rest = whole.split(begin, 1)
        whole = before + section + rest.split(end, 1)[1]
    else:
        whole = f"{whole.rstrip()}\n\n{section}\n"
    write_atomic(page, whole)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    first, *others = (f"| {' | '.join(line)} |" for line in (headers, *rows))
    return "\n".join([first, "|---" * len(headers) + "|", *others])


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with the same keys as a Markdown table.

    >>> print(markdown_table([{"a": "1", "b": "2"}]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    return table(list(rows[0]), [list(row.values()) for row in rows])


def machine() -> str:
    """Describe the machine of the measurements in a few words."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return (
        f"{os.cpu_count()} cores of {model}, Python {platform.python_version()}, torch"
        f" {torch.__version__}"
    )
