"""Clusters of near rows: a gap in the lengths of the shortest tree that joins all rows.

Rows of one person whose measurements hardly differ lie close together, and far from others; rows
that are independent have distances of every length. Shapes: N rows, D coordinates.
"""

from __future__ import annotations

import numpy as np

from training.data.dependence.pool import Pool, compact
from training.data.dependence.strength import Codes, Floats
from training.data.dependence.ties import LEAST_SHARED, Tie, between_share, coarse, grow

ROWS = 3_000  # that are joined; of more, those next to each other in one column
GAP = 1.1  # least ratio of a length to the next shorter one
FEWEST_CLUSTERS = 10
LOWEST, HIGHEST = 1 / 3, 0.99  # of the sorted lengths: where a gap is looked for


def find_clusters(pool: Pool) -> list[Tie]:
    """Return clusters in all columns, and in those that say most of the label together."""
    if len(pool.names) < 2:
        return []
    columns, _, _ = grow(coarse(pool), pool.target)
    points = _standard(pool.features)
    along = pool.names.index(columns[0]) if columns else 0
    middle, reach = len(points) // 2, ROWS // 2
    order = np.argsort(points[:, along], kind="stable")
    rows = np.sort(order[max(0, middle - reach) : middle + reach])
    found = []
    for names in dict.fromkeys((pool.names, columns)):
        if len(names) < 2:
            continue
        places = [pool.names.index(name) for name in names]
        codes = cluster_codes(points[rows][:, places])
        if codes is None:
            continue
        shared, _ = between_share(codes, pool.target[rows])
        if shared >= LEAST_SHARED:
            every = np.full(len(points), -1, dtype=np.int64)
            every[rows] = codes
            found.append(Tie("cluster", names, every, shared))
    return found


def cluster_codes(points: Floats) -> Codes | None:
    """Return the cluster [N] of each row, or None if the lengths have no gap."""
    lengths, ends = shortest_tree(points)
    order = np.argsort(lengths, kind="stable")
    ordered = np.maximum(lengths[order], 1e-9)
    first, last = int(len(points) * LOWEST), int(len(points) * HIGHEST) - 1
    if last - first < 2:
        return None
    ratios = ordered[first + 1 : last] / ordered[first : last - 1]
    widest = int(ratios.argmax())
    if ratios[widest] < GAP:
        return None
    codes = _joined(len(points), ends[order[: first + widest + 1]])
    return codes if codes.max() + 1 >= FEWEST_CLUSTERS else None


def shortest_tree(points: Floats) -> tuple[Floats, Codes]:
    """Return lengths [N - 1] and ends [N - 1, 2] of the minimum spanning tree.

    Source: Prim 1957.
    """
    single = points.astype(np.float32)
    squares, rows = (single**2).sum(axis=1), len(points)
    distance, nearest = np.full(rows, np.inf, dtype=np.float32), np.zeros(rows, dtype=np.int64)
    lengths, ends = np.zeros(rows - 1), np.zeros((rows - 1, 2), dtype=np.int64)
    left = np.ones(rows, dtype=bool)
    current, left[0] = 0, False
    for step in range(rows - 1):
        apart = squares + squares[current] - 2 * single @ single[current]
        closer = left & (apart < distance)
        distance[closer], nearest[closer] = apart[closer], current
        current = int(np.where(left, distance, np.inf).argmin())
        lengths[step] = np.sqrt(max(float(distance[current]), 0.0))
        ends[step] = nearest[current], current
        left[current] = False
    return lengths, ends


def _joined(rows: int, edges: Codes) -> Codes:
    """Return the component [N] of each row."""
    parent = list(range(rows))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for one, other in edges.tolist():
        parent[root(one)] = root(other)
    return compact(np.array([root(row) for row in range(rows)], dtype=np.int64))


def _standard(features: Floats) -> Floats:
    """Return columns in standard deviations; a null is the mean."""
    known = ~np.isnan(features)
    count = np.maximum(known.sum(axis=0), 1)
    filled = np.where(known, features, 0.0)
    mean = filled.sum(axis=0) / count
    centred = np.where(known, features - mean, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / count)
    return np.asarray(centred / np.where(spread > 0, spread, 1.0))
