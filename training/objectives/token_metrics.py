"""Metrics of a language model from sums over documents: each token counts once, however long its
document is.

D documents. Predictions [D, 2]: sum of losses in nats, tokens guessed right. Targets [D, 2]:
tokens, characters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Values = dict[str, np.ndarray]


def _ratio(
    y: np.ndarray, p: np.ndarray, w: np.ndarray | None, part: int, whole: int
) -> float | None:
    weight = np.ones(len(y)) if w is None else w
    found, total = float(weight @ p[:, part]), float(weight @ y[:, whole])
    return found / total if total > 0 and math.isfinite(found) else None


def loss(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Nats per token: the cross-entropy over all target tokens, the end of each document among
    them.
    """
    return _ratio(y, p, w, 0, 0)


def perplexity(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """e to the loss: among how many equally likely tokens the model is as unsure. Infinite beyond
    what a float holds is not defined.
    """
    found = loss(y, p, w)
    return math.exp(found) if found is not None and found < math.log(np.finfo(float).max) else None


def bits_per_character(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Bits for a document, its end included, by its characters: the same unit for every
    tokenizer.
    """
    found = _ratio(y, p, w, 0, 1)
    return None if found is None else found / math.log(2)


def accuracy(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Share of tokens that were the most likely one."""
    return _ratio(y, p, w, 1, 0)


METRICS = {
    "loss": loss,
    "perplexity": perplexity,
    "bits_per_character": bits_per_character,
    "accuracy": accuracy,
}


def row_metrics(scores: np.ndarray, weight: np.ndarray | None = None) -> dict[str, float | None]:
    """`loss`, `perplexity` and `accuracy` from sums by sequence [N, 3] as `TokenScorer`
    gives them.
    """
    scores = np.asarray(scores, dtype=np.float64)
    targets, predictions = scores[:, [1]], scores[:, [0, 2]]
    weight = None if weight is None else np.asarray(weight, dtype=np.float64)
    return {
        name: METRICS[name](targets, predictions, weight)
        for name in ("loss", "perplexity", "accuracy")
    }


def resampled(predictions: np.ndarray, target: np.ndarray) -> Callable[[np.ndarray], Values]:
    """Every metric as a function of weights by document, [R, D] → [R]; NaN where one is not
    defined.
    """

    def values(weights: np.ndarray) -> Values:
        losses, right = (weights @ predictions).T
        tokens, characters = (weights @ target).T
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            mean = losses / tokens
            found = {
                "loss": mean,
                "perplexity": np.exp(mean),
                "bits_per_character": losses / characters / math.log(2),
                "accuracy": right / tokens,
            }
        return {name: np.where(np.isfinite(value), value, np.nan) for name, value in found.items()}

    return values
