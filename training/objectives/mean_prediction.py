"""Mean prediction of several networks, given back as raw scores of one.

Whatever follows a network's scores (loss, temperature, export, evaluation) then applies unchanged.
The mean is computed from logarithms: a probability that rounds to 0 or 1 keeps its odds.

B rows, K scores, M members, C classes of a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.label_config import LabelKind
from schemas.records import Statistics
from schemas.task_metrics import LOG_MEAN_LOSSES
from training.objectives.link import (
    LARGEST_LOG,
    bounded_log,
    ordered_log_probabilities,
    ordered_scores,
)
from training.objectives.targets import targets_of


class Logs(NamedTuple):
    """Scores of a transformed label (`task.transform`): `score * scale + center` is its logarithm.

    The mean is that of predictions in the label's units. It is the same for log and log1p, since
    weights add up to 1.
    """

    transform: str
    center: float
    scale: float


# what scores say of a label: its kind, unless the loss or a transform has a link of its own
Link = LabelKind | Literal["log_mean", "ordinal"] | Logs
Column = tuple[Link, slice]


def combine(columns: Sequence[Column], scores: Tensor, weights: Tensor) -> Tensor:
    """Map scores [M, B, K] and weights [M], sum 1, → scores [B, K] of the weighted mean prediction.

    Args:
        columns: link of each label, and its columns of the scores.
        scores: of the members.
        weights: of the members; 0 leaves one out.
    """
    weights = weights.to(scores.dtype)
    found = [_mean_scores(link, scores[:, :, place], weights) for link, place in columns]
    return torch.cat(found, dim=1)


def label_columns(declaration: Declaration, statistics: Statistics) -> tuple[Column, ...]:
    """Return the link of each label and its columns of the scores.

    Raises:
        ConfigError: the task has no labels whose predictions have a mean.
    """
    if statistics.labels:
        return tuple(
            (_link(t.kind, t.declaration.loss_kind), t.columns)
            for t in targets_of(declaration, statistics)
        )
    match declaration.task.kind:
        case "binary" | "multiclass" | "regression" as kind:
            if (transform := statistics.target_transform) is not None:
                fitted = statistics.target_center, statistics.target_scale
                return ((Logs(transform, *fitted), slice(None)),)
            return ((_link(kind, declaration.loss_kind), slice(None)),)
    raise ConfigError(f"an ensemble of task {declaration.task.kind!r} has no mean prediction")


def _link(kind: LabelKind, loss: str) -> Link:
    if loss in LOG_MEAN_LOSSES:
        return "log_mean"
    return "ordinal" if loss == "ordinal" else kind


def _mean_scores(link: Link, scores: Tensor, weights: Tensor) -> Tensor:
    """Return the scores [B, K] of the weighted mean prediction from one label's [M, B, K]."""
    if link == "regression":
        return torch.tensordot(weights, scores, dims=1)
    shares = weights.log()[:, None, None]
    if isinstance(link, Logs):
        logs = bounded_log(link.transform, scores * link.scale + link.center)
        return (torch.logsumexp(shares + logs, dim=0) - link.center) / link.scale
    if link == "log_mean":  # bounded as in link.mean_of_log
        return torch.logsumexp(shares + scores.clamp(-LARGEST_LOG, LARGEST_LOG), dim=0)
    if link == "multiclass":
        return torch.logsumexp(shares + F.log_softmax(scores, dim=2), dim=0)
    if link == "ordinal":
        members = torch.stack([ordered_log_probabilities(one) for one in scores])
        return ordered_scores(torch.logsumexp(shares + members, dim=0))
    positive = torch.logsumexp(shares + F.logsigmoid(scores), dim=0)
    return positive - torch.logsumexp(shares + F.logsigmoid(-scores), dim=0)
