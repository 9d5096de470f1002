"""Clusters of rows that share a key, directly or through other rows, as arrays. Pure; no engine.

A row has one or more keys (edges row-key). Earlier decisions stay: a known key keeps its
representative. A new key takes the representative of the known keys it is connected with, else the
least key of its cluster. N edges, K keys.
"""

from __future__ import annotations

import numpy as np


def least_connected(left: np.ndarray, right: np.ndarray, num_keys: int) -> np.ndarray:
    """Return for each key the least key that it is connected with, int64 [K].

    Labels spread over rows and keys by turns. After each turn, every label jumps to the label's own
    label, so that a chain of n keys takes about log n turns.

    Args:
        left: row of each edge, int64 [N], numbered from 0.
        right: key of each edge, int64 [N], in 0 … K - 1.
        num_keys: K.

    >>> least_connected(np.array([0, 0, 1, 1, 2]), np.array([3, 1, 3, 2, 0]), 5).tolist()
    [0, 1, 1, 1, 4]
    """
    labels = np.arange(num_keys, dtype=np.int64)
    if not len(left):
        return labels
    by_row, by_key = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    row_starts, key_starts = _starts(left[by_row]), _starts(right[by_key])
    present, row_of = right[by_key][key_starts], np.empty(len(left), dtype=np.int64)
    row_of[by_row] = np.repeat(np.arange(len(row_starts)), np.diff([*row_starts, len(left)]))
    while True:
        of_rows = np.minimum.reduceat(labels[right][by_row], row_starts)
        found = labels.copy()
        found[present] = np.minimum(
            labels[present], np.minimum.reduceat(of_rows[row_of][by_key], key_starts)
        )
        # update the whole cluster, not the key alone
        np.minimum.at(found, labels[present], found[present])
        while not np.array_equal(jumped := found[found], found):
            found = jumped
        if np.array_equal(found, labels):
            return found
        labels = found


def representatives(left: np.ndarray, right: np.ndarray, is_known: np.ndarray) -> np.ndarray:
    """Return the representative of each key's cluster, int64 [K]; known keys represent themselves.

    Args:
        left: row of each edge, int64 [N].
        right: key of each edge, int64 [N]; a key that was seen before is given as its
            representative.
        is_known: whether the key is such a representative, bool [K].

    >>> representatives(np.array([0, 0, 1, 1]), np.array([0, 2, 2, 3]),
    ...     np.array([False, False, False, True])).tolist()
    [3, 1, 3, 3]
    """
    keys = np.arange(len(is_known), dtype=np.int64)
    cluster = least_connected(left, right, len(is_known))
    chosen = np.full(len(is_known), len(is_known), dtype=np.int64)
    known = np.flatnonzero(is_known)
    np.minimum.at(chosen, cluster[known], known)
    inherited = np.where(chosen[cluster] < len(is_known), chosen[cluster], cluster)
    return np.where(is_known, keys, inherited)


def _starts(ordered: np.ndarray) -> np.ndarray:
    """Return where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
