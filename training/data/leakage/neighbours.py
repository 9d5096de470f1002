"""Rows as points, and each row's nearest train row: what near-copies and interpolated rows are recognised by.

Shapes: N sampled rows, D coordinates, Q queries, R reference rows of train.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.data.leakage.sampled import Codes, Flags, Floats, Sampled

FINE_VALUES = 100  # distinct values of a number from which a near miss means something
CATEGORY_WIDTH = 3
CHUNK = 256
LEAST_DIFFERENT = 3  # coordinates in which the ends of a segment differ: fewer, and values of a coarse scale line up by themselves
Points = NDArray[np.float32]


class Space(NamedTuple):
    """Points [N, D] of rows: numbers in standard deviations of train, then categories; the first `fine` coordinates are finely measured numbers."""

    points: Floats
    fine: int
    names: tuple[str, ...]


def space_of(rows: Sampled) -> Space:
    """Coordinates of rows; a null is a number's mean and, one coordinate on, a difference; categories that hardly repeat are left out."""
    names = [n for n, v in rows.numeric.items() if len(np.unique(v[rows.train & ~np.isnan(v)])) >= FINE_VALUES]
    coarse = [n for n in rows.numeric if n not in names]
    columns = [_standard(rows.numeric[n], rows.train) for n in (*names, *coarse)]
    columns += [np.isnan(v).astype(np.float64) for v in rows.numeric.values() if np.isnan(v).any()]
    for codes, texts in ((rows.category[n], rows.texts[n]) for n in rows.category):
        if len(texts) < 0.5 * len(codes):
            directions = np.random.default_rng(len(texts)).normal(size=(len(texts) + 1, CATEGORY_WIDTH))
            columns += list(directions[codes].T)
    points = np.stack(columns, axis=1) if columns else np.zeros((len(rows.train), 0))
    return Space(points, len(names), tuple(names))


def _standard(values: Floats, train: Flags) -> Floats:
    known = values[train & ~np.isnan(values) & np.isfinite(values)]
    spread = known.std() if len(known) else 0.0
    centred = (values - (known.mean() if len(known) else 0.0)) / (spread or 1.0)
    return np.asarray(np.clip(np.nan_to_num(centred, nan=0.0, posinf=1e3, neginf=-1e3), -1e3, 1e3))


def nearest(points: Floats, queries: Codes, references: Codes, group: Codes, count: int = 1) -> Codes:
    """Positions [Q, count] of the nearest references of each query, those of its own group left out; -1 where there are too few."""
    single = points.astype(np.float32)
    reference, lengths = single[references].T.copy(), (single[references] ** 2).sum(axis=1)
    found = np.full((len(queries), count), -1, dtype=np.int64)
    for start in range(0, len(queries), CHUNK):
        query = queries[start : start + CHUNK]
        distances = lengths[None, :] - 2 * (single[query] @ reference)  # [chunk, R], the query's own length left out
        distances[group[query][:, None] == group[references][None, :]] = np.inf
        best = distances.argmin(axis=1)[:, None] if count == 1 else np.argpartition(distances, min(count, distances.shape[1] - 1), axis=1)[:, :count]
        here = np.where(np.isfinite(np.take_along_axis(distances, best, axis=1)), references[best], -1)
        found[start : start + CHUNK, : here.shape[1]] = here
    return found


def off_segment(points: Floats, queries: Codes, around: Codes) -> tuple[Floats, Codes]:
    """How far each query is off the straight line between two of its neighbours, and which two.

    Args:
        points: [N, D] in float64.
        queries: [Q] positions.
        around: [Q, K] positions of neighbours, -1 for none.

    Returns:
        The least distance from a segment, in lengths from its nearer end [Q] (infinity: beside no segment), and the two ends [Q, 2].
    """
    least, ends = np.full(len(queries), np.inf), np.full((len(queries), 2), -1, dtype=np.int64)
    offset = points[around] - points[queries][:, None, :]  # [Q, K, D]
    length = np.sqrt((offset**2).sum(axis=2))
    for i in range(around.shape[1]):
        for j in range(i + 1, around.shape[1]):
            edge = offset[:, j] - offset[:, i]
            across = (edge**2).sum(axis=1)
            place = -(offset[:, i] * edge).sum(axis=1) / np.where(across > 0, across, 1)
            apart = np.sqrt(((offset[:, i] + place[:, None] * edge) ** 2).sum(axis=1))
            relative = apart / np.maximum(np.minimum(length[:, i], length[:, j]), 1e-12)
            valid = (around[:, i] >= 0) & (around[:, j] >= 0) & (place > 0.02) & (place < 0.98) & ((np.abs(edge) > 1e-6).sum(axis=1) >= LEAST_DIFFERENT)
            better = valid & (relative < least)
            least[better], ends[better] = relative[better], around[better][:, [i, j]]
    return least, ends
