"""Divide documents into windows: the input tokens of a model and their targets.

A document of n tokens is the sequence begin, t1 … tn, end. The model predicts each token from those
before it, so the document has n + 1 targets: t1 … tn and end. The input at position p of the
sequence has its target at p + 1.

A document with more targets than the context T is cut into windows of T inputs; a window begins
`stride` (S) inputs after the previous one. In all but the first the first T - S targets are
skipped: they are targets of the previous window. So each target is predicted once, and those of a
later window have at least T - S + 1 tokens of the document before them. With S = T (training)
windows do not overlap: the first target of a later window is predicted from one token.

D documents, P windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Windows(NamedTuple):
    """Windows in the order of their documents, int64 [P] each.

    `document`: its document. `start`: its first input's position in the document's sequence.
    `length`: its inputs. `skip`: how many of its first targets are not predicted.
    """

    document: np.ndarray
    start: np.ndarray
    length: np.ndarray
    skip: np.ndarray


def cut(targets: np.ndarray, context: int, stride: int) -> Windows:
    """Return the windows of documents with this many targets each, int64 [D], all at least 1.

    >>> found = cut(np.array([3, 9]), context=4, stride=3)
    >>> [part.tolist() for part in found]
    [[0, 1, 1, 1], [0, 0, 3, 6], [3, 4, 4, 3], [0, 0, 1, 1]]
    """
    later = -(-np.maximum(targets - context, 0) // stride)  # windows after the first
    count = later + 1
    document = np.repeat(np.arange(len(targets)), count)
    # number of the window within its document
    place = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    start = place * stride
    length = np.minimum(context, targets[document] - start)
    return Windows(document, start, length, np.where(place > 0, context - stride, 0))
