"""Joined scores of a network of several members.

A body with a whole number `members` returns scores [B, M, K]. In train mode the network passes them
on, and the loss of a row is the mean of its members' losses (training.objectives.losses). In eval
mode the network returns scores [B, K] of the mean prediction.

Shapes: B rows, M members, K scores.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import Declaration
from schemas.label_config import LabelKind
from schemas.records import Statistics
from training.objectives.targets import targets_of


class MemberMean(nn.Module):
    """Scores of the mean prediction: [B, M, K] -> [B, K].

    They are the log odds or the log of the mean probability, or the mean value of a regression.

    Args:
        parts: Columns of the scores of each label, and its kind.
    """

    def __init__(self, parts: tuple[tuple[slice, LabelKind], ...]) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, scores: Tensor) -> Tensor:
        """Map members' scores [B, M, K] -> [B, K]."""
        return torch.cat([_mean(scores[..., place], kind) for place, kind in self.parts], dim=1)


def _mean(scores: Tensor, kind: LabelKind) -> Tensor:
    if kind == "regression":
        return scores.mean(1)
    if kind == "binary":
        positive, negative = F.logsigmoid(scores), F.logsigmoid(-scores)
        return torch.logsumexp(positive, dim=1) - torch.logsumexp(negative, dim=1)
    return torch.logsumexp(torch.log_softmax(scores, dim=2), dim=1) - math.log(scores.shape[1])


def member_mean(declaration: Declaration, statistics: Statistics) -> MemberMean:
    """Return the mean that suits the labels of a task."""
    targets = targets_of(declaration, statistics)
    if targets:
        return MemberMean(tuple((target.columns, target.kind) for target in targets))
    kind: LabelKind = "regression" if not statistics.classes else "multiclass"
    return MemberMean(((slice(None), "binary" if declaration.task.kind == "binary" else kind),))
