"""Rows as points, and each row's nearest train row, used to find near-copies and interpolation.

Shapes: N sampled rows, D coordinates, Q queries, R reference rows of train.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.data.leakage.one_spelling import one_spelling
from training.data.leakage.sampled import Codes, Flags, Floats, Sampled

FINE_VALUES = 100  # least distinct values of a number for which a near miss has a meaning
CATEGORY_WIDTH = 3
CHUNK = 256
# coordinates in which the ends of a segment differ; with fewer, values of a coarse scale line up by
# themselves
LEAST_DIFFERENT = 3
Points = NDArray[np.float32]


class Space(NamedTuple):
    """Points [N, D] of rows: numbers in standard deviations of train, then categories.

    The first `fine` coordinates are finely measured numbers.
    """

    points: Floats
    fine: int
    names: tuple[str, ...]


def space_of(rows: Sampled) -> Space:
    """Return the coordinates of rows.

    A null becomes a number's mean and a difference in the next coordinate. Categories that hardly
    repeat are left out; values that differ in spelling alone are one.
    """
    names = [
        n
        for n, v in rows.numeric.items()
        if len(np.unique(v[rows.train & ~np.isnan(v)])) >= FINE_VALUES
    ]
    coarse = [n for n in rows.numeric if n not in names]
    columns = [_standard(rows.numeric[n], rows.train) for n in (*names, *coarse)]
    columns += [np.isnan(v).astype(np.float64) for v in rows.numeric.values() if np.isnan(v).any()]
    for codes, texts in ((codes, rows.texts[n]) for n, codes in one_spelling(rows).items()):
        if len(texts) < 0.5 * len(codes):
            directions = np.random.default_rng(len(texts)).normal(
                size=(len(texts) + 1, CATEGORY_WIDTH)
            )
            columns += list(directions[codes].T)
    points = np.stack(columns, axis=1) if columns else np.zeros((len(rows.train), 0))
    return Space(points, len(names), tuple(names))


def _standard(values: Floats, train: Flags) -> Floats:
    known = values[train & ~np.isnan(values) & np.isfinite(values)]
    spread = known.std() if len(known) else 0.0
    centred = (values - (known.mean() if len(known) else 0.0)) / (spread or 1.0)
    return np.asarray(np.clip(np.nan_to_num(centred, nan=0.0, posinf=1e3, neginf=-1e3), -1e3, 1e3))


def nearest(points: Floats, queries: Codes, references: Codes, group: Codes, count: int) -> Codes:
    """Return indices [Q, count] of the nearest references of each query, outside its own group.

    The index is -1 if there are too few.
    """
    found = np.full((len(queries), count), -1, dtype=np.int64)
    for start, distances in _distances(points, queries, references, group):
        best = np.argpartition(distances, min(count, distances.shape[1] - 1), axis=1)[:, :count]
        here = np.where(
            np.isfinite(np.take_along_axis(distances, best, axis=1)), references[best], -1
        )
        found[start : start + CHUNK, : here.shape[1]] = here
    return found


def two_nearest(points: Floats, queries: Codes, references: Codes, group: Codes) -> Codes:
    """Return indices [Q, 2] of each query's nearest reference and the nearest of a third group.

    The index is -1 if there is none.
    """
    found = np.full((len(queries), 2), -1, dtype=np.int64)
    for start, distances in _distances(points, queries, references, group):
        each = np.arange(len(distances))
        for place in range(2):
            best = distances.argmin(axis=1)
            found[start : start + CHUNK, place] = np.where(
                np.isfinite(distances[each, best]), references[best], -1
            )
            distances[group[references[best]][:, None] == group[references][None, :]] = np.inf
    return found


def _distances(
    points: Floats, queries: Codes, references: Codes, group: Codes
) -> Iterator[tuple[int, Points]]:
    """Yield the start and the squared distances [chunk, R] of each chunk of queries.

    The query's own squared length is left out; the distance is infinite within a group.
    """
    single = points.astype(np.float32)
    reference, lengths = single[references].T.copy(), (single[references] ** 2).sum(axis=1)
    for start in range(0, len(queries), CHUNK):
        query = queries[start : start + CHUNK]
        distances = lengths[None, :] - 2 * (single[query] @ reference)
        distances[group[query][:, None] == group[references][None, :]] = np.inf
        yield start, distances


def off_segment(
    points: Floats, known: Flags, queries: Codes, around: Codes
) -> tuple[Floats, Codes]:
    """Return how far each query is from the line between two of its neighbours, and which two.

    Nulls are ignored.

    Args:
        points: [N, D] in float64.
        known: [N, D], True where a row has a value; all three rows must have it.
        queries: [Q] indices.
        around: [Q, K] indices of neighbours, -1 for none.

    Returns:
        The least distance from a segment, in lengths from its nearer end [Q] (infinity: next to no
        segment), and the two ends [Q, 2].
    """
    least, ends = np.full(len(queries), np.inf), np.full((len(queries), 2), -1, dtype=np.int64)
    both = known[around] & known[queries][:, None, :]  # [Q, K, D]
    offset = (points[around] - points[queries][:, None, :]) * both
    # for a pair: offsets where both ends are known; products of all pairs come at once
    product = offset @ offset.transpose(0, 2, 1)  # [Q, K, K]
    square = offset**2 @ both.transpose(0, 2, 1).astype(np.float64)
    for i in range(around.shape[1]):
        for j in range(i + 1, around.shape[1]):
            near, far, dot = square[:, i, j], square[:, j, i], product[:, i, j]
            across = near + far - 2 * dot
            place = (near - dot) / np.where(across > 0, across, 1)
            apart = np.sqrt(np.maximum(near - place * (near - dot), 0.0))
            relative = apart / np.maximum(np.sqrt(np.minimum(near, far)), 1e-12)
            open_rows = np.flatnonzero(
                (around[:, i] >= 0)
                & (around[:, j] >= 0)
                & (place > 0.02)
                & (place < 0.98)
                & (relative < least)
            )
            one, two = offset[open_rows, i], offset[open_rows, j]
            edge = two * both[open_rows, i] - one * both[open_rows, j]
            better = open_rows[(np.abs(edge) > 1e-6).sum(axis=1) >= LEAST_DIFFERENT]
            least[better], ends[better] = relative[better], around[better][:, [i, j]]
    return least, ends
