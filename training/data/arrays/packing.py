"""Packing of windows into sequences.

P windows, T positions of a sequence.
"""

from __future__ import annotations

import numpy as np


def pack(lengths: np.ndarray, context: int) -> np.ndarray:
    """Return the sequence of each window, int64 [P]; no sequence is longer than the context.

    The order of sequences says nothing about their lengths. Best fit, longest first, over the
    counts of each length: all windows of one length are placed at once, so the work grows with the
    number of lengths and not with the windows. Windows of equal length are taken in their given
    order, and the sequences are shuffled, always in the same way: the first ones are a random
    sample.

    Source: best fit decreasing, Johnson 1973, Near-optimal bin packing algorithms; over a histogram
        of lengths as in Krell et al. 2021, arXiv:2107.02027, sec. 3.1.

    >>> pack(np.array([3, 5, 2, 8, 4]), context=8).tolist()
    [1, 1, 2, 0, 2]
    """
    order = np.argsort(-lengths, kind="stable")
    # sequence by window, numbered as they are opened
    found = np.empty(len(lengths), dtype=np.int64)
    free: dict[int, np.ndarray] = {}  # room left -> sequences with that room
    opened, start = 0, 0
    while start < len(order):
        length = int(lengths[order[start]])
        stop = start + int(np.searchsorted(-lengths[order[start:]], -length, side="right"))
        while start < stop:
            room = min((r for r in free if r >= length), default=context)
            fits = room // length
            if room not in free:
                free[room] = np.arange(opened, opened - (start - stop) // fits)
                opened += len(free[room])
            sequences = free.pop(room)
            taken = min(stop - start, len(sequences) * fits)
            found[order[start : start + taken]] = np.repeat(sequences, fits)[:taken]
            start += taken
            left = room - length * np.clip(taken - fits * np.arange(len(sequences)), 0, fits)
            for rest in np.unique(left[left > 0]).tolist():
                free[rest] = np.concatenate(
                    [free.get(rest, np.empty(0, np.int64)), sequences[left == rest]]
                )
    # raw words: the same in every version of NumPy
    shuffled = np.argsort(np.random.Philox(0).random_raw(opened), kind="stable")
    return np.asarray(shuffled[found])
