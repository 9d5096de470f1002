"""Held-out pictures that train has, too, whatever their files and other columns are."""

from __future__ import annotations

from training.data.engine.engine import ident
from training.data.leakage.molecule_copies import labelled
from training.data.leakage.sides import Sides
from training.data.leakage.text_copies import TextCopies, matched


def find_picture_copies(sides: Sides) -> list[TextCopies]:
    """Find rows of other splits with the pixels of a train row, in each column of pictures."""
    found = []
    for name in sides.spec.images:
        digest = ident(name)
        relation = (
            f"(select side, __id, __group, {digest} as text, {digest} as key, label from"
            f" {labelled(sides, (name,))})"
        )
        found.append(matched(sides, name, "pixels", relation))
    return found
