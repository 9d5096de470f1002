"""Joined scores of a network of several members.

A body with a whole number `members` returns scores [B, M, K]. In train mode the network passes them
on, and the loss of a row is the mean of its members' losses (training.objectives.losses). In eval
mode the network returns scores [B, K] of the mean prediction.

Shapes: B rows, M members, K scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.records import Statistics
from training.objectives.mean_prediction import Column, combine, label_columns


class MemberMean(nn.Module):
    """Scores of the mean prediction: [B, M, K] -> [B, K].

    Args:
        columns: Link of each label, and its columns of the scores.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.columns = tuple(columns)

    def forward(self, scores: Tensor) -> Tensor:
        """Map members' scores [B, M, K] -> [B, K]."""
        members = scores.shape[1]
        equal = torch.full((members,), 1 / members, dtype=scores.dtype, device=scores.device)
        # [B, M, K] -> [M, B, K]
        return combine(self.columns, scores.transpose(0, 1), equal)


def member_mean(declaration: Declaration, statistics: Statistics) -> MemberMean:
    """Return the mean that suits the labels and losses of a task."""
    return MemberMean(label_columns(declaration, statistics))
