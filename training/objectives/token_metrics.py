"""Metrics of a language model from sums over documents; every token has equal weight.

D documents. Predictions [D, 2]: sum of losses in nats, correctly predicted tokens. Targets [D, 2]:
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
    """Compute nats per token: the cross-entropy over all targets, ends of documents included."""
    return _ratio(y, p, w, 0, 0)


def perplexity(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Compute the perplexity, e to the loss; None above the range of a float.

    It is the number of equally likely tokens with the same uncertainty.
    """
    found = loss(y, p, w)
    return math.exp(found) if found is not None and found < math.log(np.finfo(float).max) else None


def bits_per_character(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Compute bits of a document, its end included, per character.

    The unit is the same for every tokenizer.
    """
    found = _ratio(y, p, w, 0, 1)
    return None if found is None else found / math.log(2)


def accuracy(y: np.ndarray, p: np.ndarray, w: np.ndarray | None) -> float | None:
    """Compute the fraction of tokens that were the most likely one."""
    return _ratio(y, p, w, 1, 0)


METRICS = {
    "loss": loss,
    "perplexity": perplexity,
    "bits_per_character": bits_per_character,
    "accuracy": accuracy,
}


def row_metrics(scores: np.ndarray, weight: np.ndarray | None = None) -> dict[str, float | None]:
    """Compute `loss`, `perplexity` and `accuracy` from sums by sequence [N, 3] of `TokenScorer`."""
    scores = np.asarray(scores, dtype=np.float64)
    targets, predictions = scores[:, [1]], scores[:, [0, 2]]
    weight = None if weight is None else np.asarray(weight, dtype=np.float64)
    return {
        name: METRICS[name](targets, predictions, weight)
        for name in ("loss", "perplexity", "accuracy")
    }


def resampled(predictions: np.ndarray, target: np.ndarray) -> Callable[[np.ndarray], Values]:
    """Return every metric as a function of weights by document, [R, D] → [R]; NaN if undefined."""

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
