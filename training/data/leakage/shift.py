"""Difference of held-out rows from train: information about the score, never a leak.

Each split differs from train in each column and in all together. The null is how well two halves of
train are separated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schemas.records import CheckResult
from training.data.leakage.label_proxies import combined_strength
from training.data.leakage.sampled import Codes, Flags, Label, Sampled
from training.data.leakage.scores import Halves, column_codes, first_seen, score_codes

MOST_COLUMNS = 5


class Shift(NamedTuple):
    """Difference of a split from train: in all columns, in the strongest ones, and in the null."""

    side: str
    together: float
    columns: tuple[tuple[str, float], ...]
    null: float


def find_shift(rows: Sampled, parts: Halves) -> list[Shift]:
    """Return the strength (2 AUROC - 1) with which each held-out split differs from train.

    Train is its half A; the null is its half B.
    """
    everyone = np.ones(len(rows.train), dtype=bool)
    codes = {name: column_codes(rows, name, everyone) for name in rows.columns}
    null = _told(rows, codes, parts.b, parts.a, with_columns=False).together if codes else 0.0
    return (
        [
            _told(rows, codes, rows.side == side, rows.train)._replace(side=side, null=null)
            for side in np.unique(rows.side[~rows.train])
        ]
        if codes
        else []
    )


def _told(
    rows: Sampled, codes: dict[str, Codes], one: Flags, other: Flags, with_columns: bool = True
) -> Shift:
    """Learn on half of both and score on the rest; whole groups are in one half."""
    label = Label(
        "side",
        "binary",
        np.where(one, 1.0, np.where(other, 0.0, np.nan))[:, None],
        one.astype(np.float64),
    )
    second = first_seen(rows.group)[1] % 2 == 1
    halves = Halves((one | other) & ~second, (one | other) & second)
    if not all(one[part].any() and other[part].any() for part in halves):
        return Shift("", 0.0, (), 0.0)
    each = (
        {
            name: score_codes(code, label, halves, rows.group).strength
            for name, code in codes.items()
        }
        if with_columns
        else {}
    )
    strongest = sorted(each.items(), key=lambda c: (-c[1], c[0]))[:MOST_COLUMNS]
    return Shift("", combined_strength(codes, label, halves, rows.group), tuple(strongest), 0.0)


def judge_shift(found: list[Shift]) -> CheckResult:
    """Always pass: the figures say how far each split differs."""
    figures: dict[str, float | int | str | None] = {
        f"{s.side}_strength": round(s.together, 4) for s in found
    }
    figures |= {
        f"{s.side} by {name}": round(strength, 4) for s in found for name, strength in s.columns[:2]
    }
    told = ", ".join(f"{s.side} differs from train with strength {s.together:.2f}" for s in found)
    null = f"two halves of train with {found[0].null:.2f}" if found else ""
    return CheckResult(
        name="shift",
        verdict="pass",
        summary=(
            f"{told}, {null} (0: not at all, 1: always); for information"
            if found
            else "no column to compare the sides by"
        ),
        figures={**figures, "null_strength": round(found[0].null, 4) if found else None},
        evidence=tuple(
            {"side": s.side, "column": name, "strength": round(strength, 4)}
            for s in found
            for name, strength in s.columns
        ),
    )
