"""Held-out rows that are almost a row of train: copies with noise, and points on the line between two train rows.

The null of each rate is the rate inside train between different groups, so that tables of few values raise no alarm.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.chance import binomial_tail, tail_above
from training.data.leakage.neighbours import Space, nearest, off_segment, space_of
from training.data.leakage.sampled import Codes, Floats, Sampled

RADII = (0.0005, 0.002, 0.01, 0.05)  # root mean square difference of the finely measured columns, in standard deviations
QUERIES, REFERENCES = 4_000, 30_000
SEGMENT_QUERIES, SEGMENT_REFERENCES, SEGMENT_NEIGHBOURS = 1_500, 15_000, 12
OFF_SEGMENT = 1e-5  # of the distance from the nearer end: rounding of stored numbers, not measurement
FEWEST_FINE = 3  # finely measured columns, below which closeness is no surprise
LEAST_ROWS = 3
MOST_POWER = 4  # of the distance, by which closeness is taken to become rarer
EVIDENCE_PAIRS = 5
REMEDY = "drop the copies from the held-out side, or make copies (noise, interpolation, oversampling) after the split and of train rows only"


class Near(NamedTuple):
    """Held-out rows within a radius of a train row and not equal to it; the same among train rows of different groups; the chance."""

    radius: float
    rows: int
    total: int
    null_rows: int
    null_total: int
    chance: float
    pairs: tuple[tuple[int, int], ...]  # positions of held-out row and train row


def find_near_copies(rows: Sampled, space: Space) -> list[Near]:
    """Near-copies at each radius; empty where too few columns are finely measured."""
    held, train = np.flatnonzero(~rows.train), np.flatnonzero(rows.train)[:REFERENCES]
    if space.fine < FEWEST_FINE or len(train) < 2 * LEAST_ROWS or not len(held):
        return []
    held = _spread(held, QUERIES)
    null = train[:QUERIES]
    close, distance = _closest(rows, space, held, train)
    _, null_distance = _closest(rows, space, null, train)
    return [_near(radius, held, close, distance, null_distance, space.fine) for radius in RADII]


def _spread(positions: Codes, most: int) -> Codes:
    """At most so many positions, evenly over the held-out sides."""
    return positions[np.linspace(0, len(positions) - 1, min(most, len(positions))).astype(np.int64)]


def _closest(rows: Sampled, space: Space, queries: Codes, train: Codes) -> tuple[Codes, Floats]:
    """The nearest train row of another group, and the root mean square difference from it; infinite for a row with none, or equal to it."""
    own = np.where(rows.train, rows.group, -1 - rows.group)  # a held-out row may be compared with every train row
    found = nearest(space.points, queries, train, own)[:, 0]
    apart = np.sqrt(((space.points[queries] - space.points[found]) ** 2).sum(axis=1) / max(space.fine, 1))
    return found, np.where((found < 0) | (apart == 0), np.inf, apart)


def _near(radius: float, held: Codes, close: Codes, distance: Floats, null_distance: Floats, fine: int) -> Near:
    inside = distance <= radius
    count, null_count = int(inside.sum()), int((null_distance <= radius).sum())
    chance = tail_above(count, len(held), null_count, len(null_distance))
    wide = float(np.quantile(null_distance[np.isfinite(null_distance)], 0.01)) if np.isfinite(null_distance).any() else 0.0
    if count and null_count == 0 and wide > 5 * radius:
        # no pair in train is nearly so close: below the nearest percent the share falls with a power of the distance, if the columns are measurements
        farthest = float(distance[inside].max())
        chance = min(chance, binomial_tail(count, len(held), 0.01 * (farthest / wide) ** min(fine, MOST_POWER)))
    order = np.argsort(distance, kind="stable")[: min(count, EVIDENCE_PAIRS)]
    pairs = tuple((int(held[i]), int(close[i])) for i in order)
    return Near(radius, count, len(held), null_count, len(null_distance), min(1.0, chance * len(RADII)), pairs)


def judge_near_copies(found: list[Near], rows: Sampled, space: Space, checks: ChecksConfig) -> CheckResult:
    """Fail when near-copies are far more frequent than inside train between groups; warn when they are somewhat so."""
    if not found:
        text = f"not decided: {space.fine} numeric columns with {FEWEST_FINE} needed are measured finely enough for closeness to be a surprise"
        return CheckResult(name="near_duplicates", verdict="pass", summary=text, figures={"fine_columns": space.fine, "threshold": checks.collision_chance})
    worst = min(found, key=lambda n: (n.chance > checks.collision_chance, -n.rows if n.chance <= checks.collision_chance else n.chance))
    verdict = collision_verdict(worst.rows, worst.chance, checks)
    text = f"{worst.rows} of {worst.total} sampled held-out rows lie within {worst.radius:g} standard deviations of a train row"
    null = f"{worst.null_rows} of {worst.null_total} train rows do so of another group's row (chance {worst.chance:.1g})"
    return CheckResult(
        name="near_duplicates",
        verdict=verdict,
        summary=f"{text}, {null}"
        if verdict != "pass"
        else f"held-out rows are no nearer to train than train rows of different groups are to each other; {null}",
        figures=near_figures(worst.rows, worst.total, worst.null_rows, worst.null_total, worst.chance, checks),
        evidence=tuple(row_pair(rows, a, b, rows.columns) for a, b in worst.pairs) if verdict != "pass" else (),
        remedy=REMEDY if verdict != "pass" else "",
    )


def collision_verdict(count: int, chance: float, checks: ChecksConfig) -> Any:
    """Fail, warn or pass by the chance of so many rows; one or two rows never fail, and one alone warns only where fewer could not be by chance."""
    if chance <= checks.collision_chance:
        return "fail" if count >= LEAST_ROWS else "warn"
    return "warn" if count >= LEAST_ROWS - 1 and chance <= checks.collision_warning else "pass"


def near_figures(rows: int, total: int, null_rows: int, null_total: int, chance: float, checks: ChecksConfig) -> dict[str, float | int | str | None]:
    """Figures of a rate and its null."""
    return {"rows": rows, "of": total, "null_rows": null_rows, "null_of": null_total, "chance": float(f"{chance:.3g}"), "threshold": checks.collision_chance}


def row_pair(rows: Sampled, held: int, train: int, columns: tuple[str, ...]) -> dict[str, Any]:
    """Two rows side by side: ids, labels, and the columns that differ (or the first few, where none does)."""
    differ = [c for c in columns if rows.value(c, held) != rows.value(c, train)][:4]
    shown: dict[str, Any] = {f"{rows.side[held]}_id": str(rows.ids[held]), "train_id": str(rows.ids[train])}
    for c in differ or list(columns[:3]):
        shown |= {f"{c} held out": rows.value(c, held), f"{c} train": rows.value(c, train)}
    for label in rows.labels:
        shown |= {f"label {label.name} held out": _plain(label.values[held]), f"label {label.name} train": _plain(label.values[train])}
    return shown


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# ----------------------------------------------------------------------------------- interpolated rows


class Interpolated(NamedTuple):
    """Held-out rows on a straight line between two train rows, the same of train rows, and the chance."""

    rows: int
    total: int
    null_rows: int
    null_total: int
    chance: float
    triples: tuple[tuple[int, int, int], ...]  # held-out row and the two ends


def find_interpolated(rows: Sampled, space: Space) -> Interpolated | None:
    """Rows on segments in the finely measured columns; None where fewer than three are."""
    train, held = np.flatnonzero(rows.train)[:SEGMENT_REFERENCES], _spread(np.flatnonzero(~rows.train), SEGMENT_QUERIES)
    if space.fine < FEWEST_FINE or len(train) < 10 * SEGMENT_NEIGHBOURS or not len(held):
        return None
    fine, own = space.points[:, : space.fine], np.where(rows.train, rows.group, -1 - rows.group)
    null = train[:SEGMENT_QUERIES]
    off, ends = off_segment(fine, held, nearest(fine, held, train, own, SEGMENT_NEIGHBOURS))
    null_off, _ = off_segment(fine, null, nearest(fine, null, train, own, SEGMENT_NEIGHBOURS))
    on, null_on = np.flatnonzero(off <= OFF_SEGMENT), int((null_off <= OFF_SEGMENT).sum())
    triples = tuple((int(held[i]), int(ends[i, 0]), int(ends[i, 1])) for i in on[:EVIDENCE_PAIRS])
    chance = tail_above(len(on), len(held), null_on, len(null))
    if null_on == 0:  # in three dimensions and more a point misses a line; the share below falls with the square of the distance
        chance = min(chance, binomial_tail(len(on), len(held), (1 + int((null_off <= 0.1).sum())) / len(null) * (OFF_SEGMENT / 0.1) ** 2))
    return Interpolated(len(on), len(held), null_on, len(null), chance, triples)


def judge_interpolated(found: Interpolated | None, rows: Sampled, space: Space, checks: ChecksConfig) -> CheckResult:
    """Fail when held-out rows are mixtures of train rows and train rows are not; warn when both are."""
    figures: dict[str, float | int | str | None] = {"fine_columns": space.fine, "threshold": checks.collision_chance}
    if found is None:
        text = f"not decided: {space.fine} finely measured numeric columns, {FEWEST_FINE} and some hundred rows are needed"
        return CheckResult(name="interpolated_rows", verdict="pass", summary=text, figures=figures)
    verdict = collision_verdict(found.rows, found.chance, checks)
    both = verdict == "pass" and found.rows >= LEAST_ROWS and found.rows > 0.002 * found.total
    text = f"{found.rows} of {found.total} sampled held-out rows lie on a straight line between two train rows, {found.null_rows} of {found.null_total} train rows do"
    flagged = both or verdict != "pass"
    return CheckResult(
        name="interpolated_rows",
        verdict="warn" if both else verdict,
        summary=text + (": train holds such mixtures, too" if both else ""),
        figures=near_figures(found.rows, found.total, found.null_rows, found.null_total, found.chance, checks),
        evidence=tuple({**row_pair(rows, h, a, space.names), "second_train_id": str(rows.ids[b])} for h, a, b in found.triples) if flagged else (),
        remedy=REMEDY if flagged else "",
    )


def near_duplicate_results(rows: Sampled, checks: ChecksConfig) -> list[CheckResult]:
    """Noisy copies and interpolated rows in the sample."""
    space = space_of(rows)
    return [
        judge_near_copies(find_near_copies(rows, space), rows, space, checks),
        judge_interpolated(find_interpolated(rows, space), rows, space, checks),
    ]
