"""Link of a loss: raw scores to predictions, for losses whose link is not that of the task alone.

Evaluation (`metrics.predict`) and the exported program both call `link_of`, so they cannot differ.
Shapes: N rows, K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.config import Declaration
from schemas.records import Statistics
from schemas.task_metrics import LOG_MEAN_LOSSES

LARGEST_LOG = 80.0  # e to it fits float32; keeps a prediction finite and above 0
LARGEST_EXPONENT = 300.0  # of a transformed label: the square of e to it fits float64

Link = Callable[[Tensor], Tensor]


def link_of(declaration: Declaration, statistics: Statistics) -> Link | None:
    """Return the link of the declared loss of a single label, or None if its task has the usual
    one.

    Transformed labels (`task.transform`): scores [N, 1] → values [N] in the user's units. Poisson
    and Tweedie: scores [N, 1] → means [N] in the user's units. Ordinal: scores [N, K - 1] →
    probabilities [N, K].
    """
    if declaration.loss_kind in LOG_MEAN_LOSSES:
        return lambda scores: mean_of_log(scores[:, 0], statistics.target_scale)
    if (transform := statistics.target_transform) is not None:
        center, scale = statistics.target_center, statistics.target_scale
        return lambda scores: inverse_transform(transform, scores[:, 0] * scale + center)
    if declaration.loss_kind == "ordinal":
        return lambda scores: ordered_log_probabilities(scores).exp()
    return None


def mean_of_log(scores: Tensor, scale: float) -> Tensor:
    """Return `exp(score) * scale`; scores beyond ±80 count as ±80."""
    return scores.clamp(-LARGEST_LOG, LARGEST_LOG).exp() * scale


def bounded_log(transform: str, values: Tensor) -> Tensor:
    """Return transformed predictions within their bounds: e^±300, and for log1p at least 0.

    A square of the largest prediction then fits float64, and log1p never predicts below 0.
    """
    return values.clamp(0.0 if transform == "log1p" else -LARGEST_EXPONENT, LARGEST_EXPONENT)


def inverse_transform(transform: str, values: Tensor) -> Tensor:
    """Return predictions in the label's units from those on the scale of `task.transform`."""
    bounded = bounded_log(transform, values)
    return bounded.expm1() if transform == "log1p" else bounded.exp()


def on_trained_scale(statistics: Statistics, predictions: Tensor) -> Tensor:
    """Return predictions of one label on the scale that it was learned on.

    Differences of two programs are measured there: in units that span many powers of ten they
    would be those of the largest row alone.
    """
    if statistics.target_transform is None:
        return predictions
    return predictions.log1p() if statistics.target_transform == "log1p" else predictions.log()


def ordered_log_probabilities(scores: Tensor) -> Tensor:
    """Return log probabilities [N, K] of ordered classes from scores [N, K - 1].

    The log odds of a class above k are `e_0 = s_0` and `e_k = e_(k-1) - softplus(s_k)`: they fall
    with k, whatever the scores. Then `P(k) = sigmoid(e_(k-1)) - sigmoid(e_k)`, which is
    `sigmoid(e_(k-1)) sigmoid(-e_k) sigmoid(s_k)`, without a difference that could cancel. Two
    classes are a binary task with log odds `s_0`.

    Source: McCullagh 1980, with differences of thresholds as in softplus reparametrisation.
    """
    first, others = scores[:, :1], scores[:, 1:]
    # softplus(s) = -logsigmoid(-s), exact for large s, too
    above = torch.cat([first, first + F.logsigmoid(-others).cumsum(dim=1)], dim=1)
    # [N, K - 1] -> [N, K]: every row lies above the class before the first and below the last
    return (
        F.pad(F.logsigmoid(above), (1, 0))
        + F.pad(F.logsigmoid(-above), (0, 1))
        + F.pad(F.logsigmoid(others), (1, 1))
    )


def ordered_scores(logs: Tensor) -> Tensor:
    """Return the scores [B, C - 1] whose ordered classes have these log probabilities [B, C].

    It inverts `ordered_log_probabilities`: `s_0` is the log odds of a class above the first,
    and `sigmoid(s_k) = P(k) / (P(at least k) P(at most k))`. With probabilities that add up to 1
    this is `s_k = log P(k) - log P(above k) - log P(below k)`, without a difference that cancels.
    """
    below = logs.logcumsumexp(dim=1)[:, :-1]  # at most k, of each class but the last
    above = logs.flip(1).logcumsumexp(dim=1).flip(1)[:, 1:]  # at least k, but the first
    first = above[:, :1] - below[:, :1]
    # class k of the middle: below[k - 1] is P(at most k - 1), above[k] is P(at least k + 1)
    return torch.cat([first, logs[:, 1:-1] - above[:, 1:] - below[:, :-1]], dim=1)
