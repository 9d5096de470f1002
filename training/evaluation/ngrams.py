"""N-gram baselines: language models on the last n - 1 tokens, fitted on train sequences alone.

P(w | h) = (c(h w) + d(h) P(w | h')) / (c(h) + d(h)), where h' is the context without its oldest
token, c counts, and d(h) is the number of different tokens after h in train. The empty context uses
the uniform distribution. Contexts that train lacks, or that would reach beyond the window, are
skipped: the network sees the same windows.

Source: Witten and Bell 1991, 10.1109/18.87000, method C; interpolated as in Chen and Goodman 1999,
10.1006/csla.1999.0128, sec. 2.5.

M target tokens, V tokens of the vocabulary, D documents.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schemas.config import Declaration, SplitName
from schemas.records import ArraysRef, TokenStats
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.data.serving_text.tokenizers import END, PAD
from training.engine.token_scoring import document_facts, places

ORDERS = {"unigram": 1, "bigram": 2, "5-gram": 5}
MAX_TRAIN_TOKENS = 20_000_000  # rows are in random order: the first ones are a sample
CHUNK_TOKENS = 2_000_000

Arrays = dict[str, np.ndarray]


class Order(NamedTuple):
    """Counts for contexts of one length, numbered in the order of `contexts`.

    `contexts`: sorted int64, number of the context without its oldest token times V, plus that
    token. `pairs`: sorted, number of the context times V, plus the next token; `counts` of them.
    `total`, `different`: c(h) and d(h). `likeliest`: the token that followed most often.
    """

    contexts: np.ndarray
    pairs: np.ndarray
    counts: np.ndarray
    total: np.ndarray
    different: np.ndarray
    likeliest: np.ndarray


class NGrams(NamedTuple):
    """Counts by length of context from 0, and the size of the vocabulary."""

    orders: tuple[Order, ...]
    size: int


def document_predictions(
    declaration: Declaration, tokens: TokenStats, arrays: ArraysRef, side: SplitName
) -> dict[str, np.ndarray]:
    """Return loss sum and correct predictions of each document [D, 2] by each baseline and
    `unigram`.

    A prediction is the likeliest token after the longest context that train has.
    """
    wanted = list(dict.fromkeys(map(str, ("unigram", *declaration.evaluate.baselines))))
    longest = max(ORDERS[name] for name in wanted)
    model = fit(load_arrays(arrays.train), tokens.size, longest)
    rows, where = load_arrays(arrays.side(side)), places(arrays.side(side))
    sums = {name: np.zeros((len(document_facts(arrays.side(side))[0]), 2)) for name in wanted}
    step = max(1, CHUNK_TOKENS // tokens.context)
    for start in range(0, len(rows["label"]), step):
        some = slice(start, start + step)
        asked = rows["label"][some] != NO_TARGET
        document = where.of(some, rows["segments"][some])[asked]
        for order, (losses, right) in enumerate(
            score(model, {name: np.asarray(rows[name][some]) for name in rows}), start=1
        ):
            for name in (n for n in wanted if ORDERS[n] == order):
                for column, values in enumerate((losses, right)):
                    sums[name][:, column] += np.bincount(
                        document, weights=values, minlength=len(sums[name])
                    )
    return sums


def fit(arrays: Arrays, size: int, order: int) -> NGrams:
    """Count contexts of 0 to `order` - 1 tokens.

    Args:
        arrays: `tokens`, `segments` and `label` [N, T] of train.
        size: V.
        order: tokens of the longest n-gram, the next token included.
    """
    some = slice(0, max(1, MAX_TRAIN_TOKENS // arrays["label"].shape[1]))
    label, history = _history(
        {name: np.asarray(array[some]) for name, array in arrays.items()}, order - 1
    )
    context, orders = np.zeros(len(label), dtype=np.int64), []
    for length in range(order):
        contexts = np.zeros(1, dtype=np.int64)
        if length:
            contexts, context = np.unique(context * size + history[length - 1], return_inverse=True)
        orders.append(_count(contexts, context, label, size))
    return NGrams(tuple(orders), size)


def _count(contexts: np.ndarray, context: np.ndarray, label: np.ndarray, size: int) -> Order:
    pairs, counts = np.unique(context * size + label, return_counts=True)
    owner = pairs // size
    first = np.searchsorted(owner, np.arange(len(contexts)))
    # within a context the most frequent first, then the lowest number
    ranked = np.lexsort((pairs, -counts, owner))
    total = np.bincount(owner, weights=counts, minlength=len(contexts))
    return Order(
        contexts,
        pairs,
        counts,
        total,
        np.bincount(owner, minlength=len(contexts)),
        pairs[ranked[first]] % size,
    )


def score(model: NGrams, arrays: Arrays) -> list[tuple[np.ndarray, np.ndarray]]:
    """Score every target for each length of context, in the order of the arrays.

    Each gets its loss float64 [M], and if it was predicted correctly [M].
    """
    label, history = _history(arrays, len(model.orders) - 1)
    # padding and begin are never targets
    probability = np.full(len(label), 1.0 / (model.size - END))
    context, known = np.zeros(len(label), dtype=np.int64), np.ones(len(label), dtype=bool)
    guess, found = np.full(len(label), -1), []
    for length, order in enumerate(model.orders):
        if length:
            context, seen = _find(order.contexts, context * model.size + history[length - 1])
            known &= seen & (history[length - 1] != PAD)
        place, paired = _find(order.pairs, context * model.size + label)
        count = np.where(paired, order.counts[place], 0)
        total, different = order.total[context], order.different[context]
        probability = np.where(
            known, (count + different * probability) / (total + different), probability
        )
        guess = np.where(known, order.likeliest[context], guess)
        found.append((-np.log(probability), guess == label))
    return found


def _find(among: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find each value among sorted ones: its place, and if it is there (else place is invalid)."""
    place = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return place, among[place] == values


def _history(arrays: Arrays, length: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return targets int64 [M] and their previous tokens, nearest first, [M] each; padded if
    missing.
    """
    tokens, segments = arrays["tokens"].astype(np.int64), arrays["segments"]
    asked = arrays["label"] != NO_TARGET
    history = []
    for back in range(length):
        shifted = np.full_like(tokens, PAD)
        inside = segments[:, back:] == segments[:, : segments.shape[1] - back]
        shifted[:, back:] = np.where(inside, tokens[:, : tokens.shape[1] - back], PAD)
        history.append(shifted[asked])
    return arrays["label"][asked].astype(np.int64), history
