"""README, guides and changelog use the words of the field; notes and changelog stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

# words to avoid, each with the word of the field to use
PLAIN = {
    r"tells?|told|untold": "report, say",
    r"stands? in": "is, contains, lies in",
    r"beside": "next to, besides",
    r"anew": "again, from scratch",
    r"mend(?:s|ed|ing)?": "fix",
    r"of (?:its|their|one's|your|our) own": "own",
    r"sides?": "split, or train, val, test",
    r"alarms?": "warn, fail, finding",
    r"passages?": "iteration, pass",
    r"judges?|makers?": "discriminator, generator",
    r"foretells?|foretold": "predict",
    r"by heart": "overfit one batch",
    r"turned round": "inverted, flipped",
    r"rows that are asked": "held-out rows",
}

# pages that a program writes from texts elsewhere; this list may only shrink
EXCEPTIONS = {"leaks.md": "training/data/leakage/catalogue.py holds its text"}

NOTE_LINES, REVIEW_LINES, CHANGELOG_LINES, NOTE_COLUMNS = 40, 120, 120, 120
REVIEW_NOTE = "0021-review.md"


def prose(text: str) -> str:
    """Return a Markdown text with code and sections of benchmarks blank; lines keep their numbers.

    >>> prose("a `told` b")
    'a  b'
    """
    written_by_programs = (
        r"<!-- (\w+): begin -->.*?<!-- \1: end -->",
        r"^( *)```.*?^\1```$",
        r"`(?:[^`\n]|\n(?!\n))*`",
    )
    for pattern in written_by_programs:
        text = re.sub(pattern, lambda cut: "\n" * cut[0].count("\n"), text, flags=re.S | re.M)
    return text


def find_words(text: str) -> list[str]:
    """List what to replace in a Markdown text, each with its line and the word to write."""
    lines = prose(text).splitlines()
    return [
        f"line {number}: {hit[0]!r}: write {word}"
        for number, line in enumerate(lines, start=1)
        for pattern, word in PLAIN.items()
        for hit in re.finditer(rf"\b(?:{pattern})\b", line, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    found = find_words(page.read_text())
    if page.name in EXCEPTIONS:
        assert found, f"{page.name} needs no exception any more: remove it from EXCEPTIONS"
    else:
        assert not found, f"{page.name}: {'; '.join(found)}"


def test_planted_words_are_found_in_prose_and_not_in_code() -> None:
    text = (
        "The user is Told twice.\n\n```\nanew\n```\n\n`mend` it, but do not mend it.\n"
        "<!-- cost: begin -->\nforetold\n<!-- cost: end -->\nIt learns by heart.\n"
    )
    assert find_words(text) == [
        "line 1: 'Told': write report, say",
        "line 7: 'mend': write fix",
        "line 11: 'by heart': write overfit one batch",
    ]


def test_words_that_only_contain_a_plain_one_are_no_finding() -> None:
    assert find_words("besides, inside, outside, recommended, amend, filemaker, told_apart") == []


def test_the_exceptions_only_shrink() -> None:
    assert len(EXCEPTIONS) <= 1, "rewrite the page instead of excepting it"


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.name)
def test_a_decision_note_is_short(note: Path) -> None:
    lines = note.read_text().splitlines()
    most = REVIEW_LINES if note.name == REVIEW_NOTE else NOTE_LINES
    wide = [line for line in lines if len(line) > NOTE_COLUMNS and not line.startswith("|")]
    assert len(lines) <= most, f"{note.name} has {len(lines)} lines, at most {most}"
    assert not wide, f"{note.name}: lines wider than {NOTE_COLUMNS} columns: {wide[:5]}"


def test_the_changelog_is_short() -> None:
    for release in (ROOT / "CHANGELOG.md").read_text().split("\n## "):
        name, *lines = release.splitlines()
        assert len(lines) < CHANGELOG_LINES, f"{name}: one line for each change that a user sees"
