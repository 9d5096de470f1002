"""Blocks of report sections: words, tables, pictures, checks. The template draws each kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from schemas.records import CheckResult
from training.formatting import METRIC_NAMES, count, figure, plain, plural
from training.report.column_cards import Cards
from training.report.svg import Picture

Tone = Literal["good", "warn", "bad", "info", "mark"]
TONES: dict[str, Tone] = {
    "pass": "good",
    "warn": "warn",
    "fail": "bad",
    "allowed": "warn",
    "unknown": "info",
}
VERDICT_WORDS = {
    "pass": "passed",
    "warn": "warning",
    "fail": "failed",
    "allowed": "allowed",
    "unknown": "unknown",
}
RANK = {"fail": 0, "warn": 1, "unknown": 2, "allowed": 3, "pass": 4}
MAX_EVIDENCE = 10
WORDY = 28


@dataclass(frozen=True)
class Badge:
    """A verdict as a word in its colour; also a table cell."""

    tone: Tone
    text: str


Cell = str | Badge


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    block: ClassVar[str] = "heading"
    text: str


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    block: ClassVar[str] = "words"
    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    block: ClassVar[str] = "bullets"
    items: tuple[str, ...]


@dataclass(frozen=True)
class Callout:
    """A verdict that readers must notice: its tone, a word or two, a sentence."""

    block: ClassVar[str] = "callout"
    tone: Tone
    title: str
    text: str


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    block: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Facts:
    """Names with short values; a value that is an http(s) address becomes a link."""

    block: ClassVar[str] = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Gallery:
    """Pictures next to each other on a wide page."""

    block: ClassVar[str] = "gallery"
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Table:
    """Rows ready to print: `figures` are the columns of numbers, `note` counts omitted rows."""

    block: ClassVar[str] = "table"
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    figures: frozenset[int] = frozenset()
    note: str = ""

    @property
    def wordy(self) -> frozenset[int]:
        """Columns that contain sentences: they keep a readable width on a narrow screen."""
        lengths = [[len(c) if isinstance(c, str) else 0 for c in row] for row in self.rows]
        return frozenset(
            i for i in range(len(self.headers)) if any(row[i] > WORDY for row in lengths)
        )


@dataclass(frozen=True)
class Matrix:
    """Counts of true (rows) by predicted (columns) classes; `shades` are row fractions, 0 to 1."""

    block: ClassVar[str] = "matrix"
    labels: tuple[str, ...]
    counts: tuple[tuple[str, ...], ...]
    shades: tuple[tuple[float, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One check as a card.

    It has badge, name, summary, figures, evidence, and a remedy or the reason why it is allowed.
    """

    badge: Badge
    name: str
    summary: str
    figures: tuple[tuple[str, str], ...]
    evidence: Table | None
    columns: str
    remedy: str
    reason: str

    @property
    def open(self) -> bool:
        """True if the evidence is shown at once, for a finding."""
        return self.badge.tone != "good"


@dataclass(frozen=True)
class Checks:
    """Checks, findings first."""

    block: ClassVar[str] = "checks"
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Beside:
    """Rows next to each other: for each column its values, and whether the line is marked."""

    title: str
    headers: tuple[str, ...]
    lines: tuple[tuple[str, tuple[str, ...], bool], ...]


@dataclass(frozen=True)
class Finding:
    """A check that did not pass, in full.

    It contains the finding, its effect on the score, what to do, and the affected rows.
    """

    badge: Badge
    anchor: str
    title: str
    name: str
    summary: str
    inflates: str
    remedy: str
    reason: str
    beside: tuple[Beside, ...]
    figures: tuple[tuple[str, str], ...]
    evidence: Table | None


@dataclass(frozen=True)
class Findings:
    """Findings, the worst first."""

    block: ClassVar[str] = "findings"
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Item:
    """A requirement: its status and text, the first piece of evidence, and all evidence.

    Each piece of evidence is (badge, words, source).
    """

    badge: Badge
    name: str
    title: str
    brief: str
    statements: tuple[tuple[Badge, str, str], ...]
    open: bool


@dataclass(frozen=True)
class Items:
    """Requirements under one heading; each is folded to a line unless it needs attention."""

    block: ClassVar[str] = "items"
    title: str
    items: tuple[Item, ...]


Block = (
    Heading
    | Words
    | Bullets
    | Callout
    | Code
    | Facts
    | Gallery
    | Cards
    | Table
    | Matrix
    | Checks
    | Findings
    | Items
)


@dataclass(frozen=True)
class Section:
    """A numbered part of the report that answers one question."""

    anchor: str
    title: str
    question: str
    blocks: tuple[Block, ...]


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    words: Iterable[int] = (0,),
    limit: int = 40,
    what: str = "rows",
) -> Table:
    """Return a table of at most `limit` rows, with a note on omitted rows; `words` columns are
    text.

    >>> table(["a", "n"], [["x", "1"], ["y", "2"]], limit=1, what="groups").note
    'The first 1 of 2 groups.'
    """
    every = [tuple(row) for row in rows]
    note = f"The first {count(limit)} of {count(len(every))} {what}." if len(every) > limit else ""
    return Table(
        tuple(headers),
        tuple(every[:limit]),
        frozenset(range(len(headers))) - frozenset(words),
        note,
    )


def records_table(records: Sequence[dict[str, object]], *, limit: int, what: str) -> Table:
    """Return a table of small dictionaries; columns are their keys in order of first appearance."""
    keys = list(dict.fromkeys(k for r in records for k in r))
    numeric = {
        i
        for i, k in enumerate(keys)
        if all(
            isinstance(r.get(k), int | float) and not isinstance(r.get(k), bool)
            for r in records
            if r.get(k) is not None
        )
    }
    rows = [[figure(r.get(k)) for k in keys] for r in records]
    return table(
        [METRIC_NAMES.get(k, plain(k, 40).replace("_", " ")) for k in keys],
        rows,
        words=set(range(len(keys))) - numeric,
        limit=limit,
        what=what,
    )


def checks(results: Iterable[CheckResult]) -> Checks:
    """Return cards of the checks: failed, warned and allowed first, else in the given order."""
    return Checks(tuple(_card(r) for r in findings_first(results)))


def findings_first(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Sort failed, warned and allowed checks before passed ones, else in the given order."""
    return sorted(results, key=lambda r: RANK[r.verdict])


def _card(result: CheckResult) -> Check:
    return Check(
        badge=verdict_badge(result.verdict),
        name=plain(result.name),
        summary=plain(result.summary, 1000),
        figures=figures_of(result),
        evidence=evidence_of(result),
        columns=", ".join(plain(c, 40) for c in result.columns[:20])
        + (f", … ({plural(len(result.columns), 'column')})" if len(result.columns) > 20 else ""),
        remedy=plain(result.remedy, 1000) if result.verdict in ("fail", "warn") else "",
        reason=plain(result.reason, 1000),
    )


def figures_of(result: CheckResult) -> tuple[tuple[str, str], ...]:
    """Return a check's figures, ready to print."""
    return tuple((plain(k, 60).replace("_", " "), figure(v)) for k, v in result.figures.items())


def evidence_of(result: CheckResult) -> Table | None:
    """Return a check's evidence as a table."""
    return (
        records_table(result.evidence, limit=MAX_EVIDENCE, what="rows of evidence")
        if result.evidence
        else None
    )


def verdict_badge(verdict: str) -> Badge:
    """Return the badge of a check's verdict."""
    return Badge(TONES[verdict], VERDICT_WORDS[verdict])
