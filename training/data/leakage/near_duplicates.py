"""Held-out rows that are almost a row of train: copies with noise, and interpolated rows.

An interpolated row lies on the line between two train rows. The null of each rate is the rate
inside train between different groups, so that tables of few values give no finding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.chance import binomial_tail, lower_tail, tail_above
from training.data.leakage.neighbours import Space, nearest, off_segment, space_of, two_nearest
from training.data.leakage.sampled import Codes, Floats, Sampled

# of the distance to the next group; below it a row is near: four times as near to one as to any
# other
NEAR = 0.25
# numbers of nearest rows whose chance is computed
LOOKS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
QUERIES, REFERENCES = 4_000, 30_000
SEGMENT_QUERIES, SEGMENT_REFERENCES, SEGMENT_NEIGHBOURS = 1_500, 15_000, 12
OFF_SEGMENT = (
    1e-5  # of the distance from the nearer end: rounding of stored numbers, not measurement
)
FEWEST_FINE = 3  # finely measured columns; with fewer, a line through two rows is no surprise
LEAST_ROWS = 3
EVIDENCE_PAIRS = 5
REMEDY = (
    "drop the copies from the held-out side, or make copies (noise, interpolation, oversampling)"
    " after the split and of train rows only"
)


class Near(NamedTuple):
    """Held-out rows that are least likely to be so near to train.

    It has their number within `ratio`, the number among train rows, and the probability.
    """

    ratio: float
    rows: int
    total: int
    null_rows: int
    null_total: int
    chance: float
    pairs: tuple[tuple[int, int], ...]  # indices of held-out row and train row


def find_near_copies(rows: Sampled, space: Space) -> Near | None:
    """Find held-out rows much nearer to one train row than to any other group.

    Return None if there is nothing to compare. The ratio of the two distances needs no scale: it is
    alike in dense and sparse parts of a table. Another check finds equal rows.
    """
    train = _distinct(space.points, np.flatnonzero(rows.train)[:REFERENCES])
    held = _spread(np.flatnonzero(~rows.train), QUERIES)
    if not space.points.shape[1] or len(train) < 2 * LEAST_ROWS or not len(held):
        return None
    close, ratio = _ratios(rows, space, held, train)
    _, null = _ratios(rows, space, train[:QUERIES], train)
    order = np.argsort(ratio, kind="stable")
    counts = [c for c in LOOKS if c <= (ratio <= NEAR).sum()]
    if not counts:
        return Near(NEAR, 0, len(held), int((null <= NEAR).sum()), len(null), 1.0, ())
    chances = [
        _chance(c, ratio[order[c - 1]], len(held), null) * turn * (turn + 1)
        for turn, c in enumerate(counts, start=1)
    ]  # shares of 1 in all
    best = int(np.argmin(chances))
    limit = ratio[order[counts[best] - 1]]
    if limit < null.min() and (nearer := ratio[ratio < min(NEAR, null.min())]).size:
        limit = nearer.max()  # all rows that are nearer than any row of train is to another group's
    number = int((ratio <= limit).sum())
    pairs = tuple((int(held[i]), int(close[i])) for i in order[: min(number, EVIDENCE_PAIRS)])
    return Near(
        float(limit),
        number,
        len(held),
        int((null <= limit).sum()),
        len(null),
        min(1.0, chances[best]),
        pairs,
    )


def _distinct(points: Floats, positions: Codes) -> Codes:
    """Return the first of equal points, in their order.

    Copies within train must not count as each other's next group.
    """
    factors = (
        np.random.default_rng(points.shape[1]).integers(0, 2**63, points.shape[1], dtype=np.uint64)
        * 2
        + 1
    )
    _, first = np.unique(
        (np.ascontiguousarray(points[positions]).view(np.uint64) * factors).sum(axis=1),
        return_index=True,
    )
    return positions[np.sort(first)]


def _spread(positions: Codes, most: int) -> Codes:
    """Return at most this many indices, evenly over the held-out splits."""
    return positions[np.linspace(0, len(positions) - 1, min(most, len(positions))).astype(np.int64)]


def _ratios(rows: Sampled, space: Space, queries: Codes, train: Codes) -> tuple[Codes, Floats]:
    """Return the nearest train row of another group, and the ratio of two distances.

    They are the distances to it and to the nearest row of a third group; infinite for a row equal
    to it.
    """
    # a held-out row may be compared with every train row
    own = np.where(rows.train, rows.group, -1 - rows.group)
    found = two_nearest(space.points, queries, train, own)
    apart = np.sqrt(((space.points[queries][:, None, :] - space.points[found]) ** 2).sum(axis=2))
    decided = (found >= 0).all(axis=1) & (apart > 0).all(axis=1)
    return found[:, 0], np.where(decided, apart[:, 0] / np.where(decided, apart[:, 1], 1.0), np.inf)


def _chance(count: int, limit: float, total: int, null: Floats) -> float:
    """Return the probability of this many rows within a ratio, given the ratios of train rows.

    If no train row is so near, use the tail of their ratios.
    """
    inside = int((null <= limit).sum())
    chance = tail_above(count, total, inside, len(null))
    return (
        min(chance, binomial_tail(count, total, lower_tail(limit, null))) if inside == 0 else chance
    )


def judge_near_copies(found: Near | None, rows: Sampled, checks: ChecksConfig) -> CheckResult:
    """Fail if near-copies are far more frequent than inside train between groups.

    Warn if they are somewhat more frequent.
    """
    if found is None:
        return CheckResult(
            name="near_duplicates",
            verdict="pass",
            summary="not decided: no column to measure nearness by",
            figures={"threshold": checks.collision_chance},
        )
    verdict = collision_verdict(found.rows, found.chance, checks)
    text = (
        f"{found.rows} of {found.total} sampled held-out rows are near one train row: at"
        f" {found.ratio:.2g} of the distance to the next (of another group) or less"
    )
    null = (
        f"{found.null_rows} of {found.null_total} train rows are so near to one of another group"
        f" (chance {found.chance:.1g})"
    )
    return CheckResult(
        name="near_duplicates",
        verdict=verdict,
        summary=(
            f"{text}, {null}"
            if verdict != "pass"
            else (
                "held-out rows are no nearer to train than train rows of different groups are to"
                f" each other (chance {found.chance:.1g})"
            )
        ),
        figures=near_figures(
            found.rows, found.total, found.null_rows, found.null_total, found.chance, checks
        ),
        evidence=(
            tuple(row_pair(rows, a, b, rows.columns) for a, b in found.pairs)
            if verdict != "pass"
            else ()
        ),
        remedy=REMEDY if verdict != "pass" else "",
    )


def collision_verdict(count: int, chance: float, checks: ChecksConfig) -> Any:
    """Fail, warn or pass by the probability of this many rows; one or two rows never fail."""
    if chance <= checks.collision_chance and count >= LEAST_ROWS:
        return "fail"
    return "warn" if chance <= checks.collision_warning else "pass"


def near_figures(
    rows: int, total: int, null_rows: int, null_total: int, chance: float, checks: ChecksConfig
) -> dict[str, float | int | str | None]:
    """Return figures of a rate and its null."""
    return {
        "rows": rows,
        "of": total,
        "null_rows": null_rows,
        "null_of": null_total,
        "chance": float(f"{chance:.3g}"),
        "threshold": checks.collision_chance,
    }


def row_pair(rows: Sampled, held: int, train: int, columns: tuple[str, ...]) -> dict[str, Any]:
    """Return two rows next to each other: ids, labels, and the columns that differ.

    If none differs, return the first few columns.
    """
    differ = [c for c in columns if rows.value(c, held) != rows.value(c, train)][:4]
    shown: dict[str, Any] = {
        f"{rows.side[held]}_id": str(rows.ids[held]),
        "train_id": str(rows.ids[train]),
    }
    for c in differ or list(columns[:3]):
        shown |= {f"{c} held out": rows.value(c, held), f"{c} train": rows.value(c, train)}
    for label in rows.labels:
        shown |= {
            f"label {label.name} held out": _plain(label.values[held]),
            f"label {label.name} train": _plain(label.values[train]),
        }
    return shown


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class Interpolated(NamedTuple):
    """Held-out rows on a line between two train rows, the same of train rows, and the p-value."""

    rows: int
    total: int
    null_rows: int
    null_total: int
    chance: float
    triples: tuple[tuple[int, int, int], ...]  # held-out row and the two ends


def find_interpolated(rows: Sampled, space: Space) -> Interpolated | None:
    """Find rows on segments in the finely measured columns; None if fewer than three are."""
    train, held = (
        np.flatnonzero(rows.train)[:SEGMENT_REFERENCES],
        _spread(np.flatnonzero(~rows.train), SEGMENT_QUERIES),
    )
    if space.fine < FEWEST_FINE or len(train) < 10 * SEGMENT_NEIGHBOURS or not len(held):
        return None
    fine, own = space.points[:, : space.fine], np.where(rows.train, rows.group, -1 - rows.group)
    known, null = (
        np.stack([~np.isnan(rows.numeric[n]) for n in space.names], axis=1),
        train[:SEGMENT_QUERIES],
    )
    off, ends = off_segment(fine, known, held, nearest(fine, held, train, own, SEGMENT_NEIGHBOURS))
    null_off, _ = off_segment(
        fine, known, null, nearest(fine, null, train, own, SEGMENT_NEIGHBOURS)
    )
    on, null_on = np.flatnonzero(off <= OFF_SEGMENT), int((null_off <= OFF_SEGMENT).sum())
    triples = tuple((int(held[i]), int(ends[i, 0]), int(ends[i, 1])) for i in on[:EVIDENCE_PAIRS])
    chance = tail_above(len(on), len(held), null_on, len(null))
    # in three dimensions and more a point misses a line; the share below falls with the square of
    # the distance
    if null_on == 0:
        chance = min(
            chance,
            binomial_tail(
                len(on),
                len(held),
                (1 + int((null_off <= 0.1).sum())) / len(null) * (OFF_SEGMENT / 0.1) ** 2,
            ),
        )
    return Interpolated(len(on), len(held), null_on, len(null), chance, triples)


def judge_interpolated(
    found: Interpolated | None, rows: Sampled, space: Space, checks: ChecksConfig
) -> CheckResult:
    """Fail if held-out rows are mixtures of train rows and train rows are not; warn if both are."""
    figures: dict[str, float | int | str | None] = {
        "fine_columns": space.fine,
        "threshold": checks.collision_chance,
    }
    if found is None:
        text = (
            f"not decided: {space.fine} finely measured numeric columns, {FEWEST_FINE} and some"
            " hundred rows are needed"
        )
        return CheckResult(name="interpolated_rows", verdict="pass", summary=text, figures=figures)
    verdict = collision_verdict(found.rows, found.chance, checks)
    both = verdict == "pass" and found.rows >= LEAST_ROWS and found.rows > 0.002 * found.total
    text = (
        f"{found.rows} of {found.total} sampled held-out rows lie on a straight line between two"
        f" train rows, {found.null_rows} of {found.null_total} train rows do"
    )
    flagged = both or verdict != "pass"
    return CheckResult(
        name="interpolated_rows",
        verdict="warn" if both else verdict,
        summary=text + (": train holds such mixtures, too" if both else ""),
        figures=near_figures(
            found.rows, found.total, found.null_rows, found.null_total, found.chance, checks
        ),
        evidence=(
            tuple(
                {**row_pair(rows, h, a, space.names), "second_train_id": str(rows.ids[b])}
                for h, a, b in found.triples
            )
            if flagged
            else ()
        ),
        remedy=REMEDY if flagged else "",
    )


def near_duplicate_results(rows: Sampled, checks: ChecksConfig) -> list[CheckResult]:
    """Return the results for noisy copies and interpolated rows in the sample."""
    space = space_of(rows)
    return [
        judge_near_copies(find_near_copies(rows, space), rows, checks),
        judge_interpolated(find_interpolated(rows, space), rows, space, checks),
    ]
