"""Cards of a table's columns: name, kind, figures and a small picture, which the template draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class VerticalBar:
    """A vertical bar of a small picture, in units of 100 × 40, with its words."""

    x: float
    y: float
    width: float
    height: float
    words: str


@dataclass(frozen=True)
class Line:
    """A frequent value: its text, its rows, and its share of the longest line."""

    text: str
    rows: str
    share: float


@dataclass(frozen=True)
class Card:
    """One column: name, kind, figures, and bars or lines."""

    name: str
    kind: str
    figures: str
    alt: str
    low: str
    high: str
    bars: tuple[VerticalBar, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Cards:
    """Columns next to each other."""

    block: ClassVar[str] = "cards"
    cards: tuple[Card, ...]
