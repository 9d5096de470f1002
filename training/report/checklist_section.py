"""Training checklist of the report: each requirement is a line that opens to its evidence."""

from __future__ import annotations

from schemas.observed import Checklist, ChecklistItem, Standing
from training.formatting import plain
from training.report.blocks import Badge, Block, Callout, Item, Items, Tone

TONES: dict[Standing, Tone] = {
    "shown": "good",
    "warning": "warn",
    "contradicted": "bad",
    "not shown": "mark",
    "not applicable": "info",
}
WORDS: dict[Standing, str] = {"not applicable": "does not apply"}
TALLY: dict[Standing, str] = {
    "not applicable": "do not apply",
    "not shown": "not shown by this run",
}
PARTS = (("M", "Model and loss"), ("T", "Training"), ("C", "Checkpoints and files"))
OPEN: tuple[Standing, ...] = ("contradicted", "warning")


def checklist_blocks(checklist: Checklist) -> list[Block]:
    """Return the counts, and the items in three parts; those that need attention are open."""
    parts = [
        Items(title, tuple(_item(item) for item in checklist.items if item.id.startswith(letter)))
        for letter, title in PARTS
    ]
    return [_tally(checklist), *parts]


def _tally(checklist: Checklist) -> Callout:
    counts = [
        f"{n} {TALLY.get(standing, standing)}"
        for standing in TONES
        if (n := checklist.count(standing))
    ]
    worst: Tone = next((TONES[s] for s in OPEN if checklist.count(s)), "good")
    told = (
        "Each line is drawn from what this run recorded; open it for the evidence and where it was"
        " read. What was not recorded is not claimed."
    )
    return Callout(worst, ", ".join(counts), told)


def _item(item: ChecklistItem) -> Item:
    telling = next(s for s in item.statements if s.standing == item.standing)
    statements = tuple(
        (_badge(s.standing), plain(s.text, 1000), plain(s.by)) for s in item.statements
    )
    return Item(
        _badge(item.standing),
        item.id,
        item.title,
        plain(telling.text, 1000),
        statements,
        item.standing in OPEN,
    )


def _badge(standing: Standing) -> Badge:
    return Badge(TONES[standing], WORDS.get(standing, standing))
