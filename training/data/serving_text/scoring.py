"""Losses of documents, window by window, from a program that returns logits.

D documents, b windows of t positions at a time, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .tokenizers import PAD, encode, framed
from .windows import Windows, cut

# tokens int64 [b, t], one window per row -> float64 [b, t, V]
Logits = Callable[[np.ndarray], np.ndarray]
VALUES = 2**22  # logits held at a time


def score(texts: Sequence[str], text: Mapping[str, Any], logits: Logits) -> np.ndarray:
    """Return tokens, losses and hits of each document, float64 [D, 3].

    Tokens include the end, losses are summed in nats, and hits are tokens that were the likeliest.

    Each token is predicted once, with the same context as in evaluation.

    Args:
        texts: documents.
        text: of the model's spec: tokenizer, values, context, stride.
        logits: the program.
    """
    numbers, lengths = encode(texts, text)
    flat, targets = framed(numbers, lengths), lengths + 1
    begin = np.cumsum(targets + 1) - (targets + 1)  # of each document in the flat tokens
    windows = cut(targets, text["context"], text["stride"])
    sums = np.zeros((len(targets), 3))
    for some in _batches(windows, len(text["values"])):
        rows = Windows(*(part[some] for part in windows))
        place = np.arange(rows.length.max())
        inside = place < rows.length[:, None]
        source = np.where(inside, (begin[rows.document] + rows.start)[:, None] + place, 0)
        losses, right = _token_losses(
            logits(np.where(inside, flat[source], PAD).astype(np.int64)), flat[source + 1]
        )
        asked = inside & (place >= rows.skip[:, None])
        for column, values in enumerate((asked, losses, right)):
            np.add.at(sums[:, column], rows.document, np.where(asked, values, 0).sum(1))
    return sums


def _batches(windows: Windows, vocabulary: int) -> Iterator[np.ndarray]:
    """Yield numbers of windows of similar length, so many that their logits stay within bounds."""
    order = np.argsort(windows.length, kind="stable")
    start = 0
    while start < len(order):
        # the longest of a batch is its last one; a first guess by the last of all is never too
        # large
        sizes = windows.length[order[start:]] * (vocabulary + windows.length[order[start:]])
        fits = int(np.searchsorted(np.arange(1, len(sizes) + 1) * sizes, VALUES, side="right"))
        yield order[start : start + max(1, fits)]
        start += max(1, fits)


def _token_losses(logits: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each position [b, t], and whether its target has the largest logit."""
    largest = logits.max(2)
    total = np.log(np.exp(logits - largest[:, :, None]).sum(2)) + largest
    return (
        total - np.take_along_axis(logits, target[:, :, None].astype(np.int64), 2)[:, :, 0],
        logits.argmax(2) == target,
    )
