"""Fewest rows of a category: enough to learn from it, and few enough that some remain."""

from __future__ import annotations

from collections.abc import Sequence

from training.data.draft.guesses import Draft, Table
from training.data.draft.profile import SAMPLE, Profile, plain
from training.data.engine.engine import ident, row

MANY = 100  # values of a category: fewer need no floor
FLOORS = (20, 10, 5, 3)
TRAIN_SHARE = 0.6  # of the rows of a value, that train holds at least
KEPT_SHARE = 0.5  # of the rows, whose values keep a place of their own


def min_count(table: Table, draft: Draft) -> tuple[int, str] | None:
    """Return the largest floor that leaves most rows their own category, with the reason.

    Returns:
        None if no column has many values, or no floor leaves enough of each column.
    """
    categories = [
        c for c in table.columns if draft.columns[c.name].role in ("categorical", "feature")
    ]
    many = [c for c in categories if c.family == "text" and c.distinct > MANY]
    if not many:
        return None
    for floor in FLOORS:
        if all(c.present / c.distinct * TRAIN_SHARE >= floor for c in categories if c not in many):
            kept = [_kept(table, c, floor) for c in many]
            if all(share >= KEPT_SHARE for share, _ in kept):
                return floor, _words(many, kept, floor)
    return None


def _kept(table: Table, column: Profile, floor: int) -> tuple[float, int]:
    """Return the share of rows whose value is frequent enough in train, and how many these are."""
    scale = max(table.rows / max(column.present + _nulls(column), 1), 1.0)
    least = floor / (TRAIN_SHARE * scale)
    rows, values = row(
        table.connection,
        f"select coalesce(sum(n) filter (where n >= {least}), 0), count(*) filter (where n >="
        f" {least}) from (select count(*) as n from {SAMPLE} where"
        f" {ident(column.name)} is not null group by {ident(column.name)})",
    )
    return int(rows) / max(column.present, 1), int(values)


def _nulls(column: Profile) -> int:
    return round(column.present * column.null_share / max(1 - column.null_share, 1e-9))


def _words(many: Sequence[Profile], kept: Sequence[tuple[float, int]], floor: int) -> str:
    column, (share, values) = max(zip(many, kept, strict=True), key=lambda pair: pair[0].distinct)
    return (
        f"{plain(column.name)} has {column.distinct} values; {values} occur often enough to be"
        f" kept, in {share:.0%} of its rows, and rarer ones share a slot"
    )
